"""A run in the Trace Event Format, JSON object flavour, which ui.perfetto.dev and chrome://tracing open.

A process is an arm. Its threads are the steps (host and model time inside), the slots, and the places of the queue; the
arrows follow a request through them. Counters are the memory's parts and the queue. Times are microseconds.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from cbbench import __version__
from cbbench.report.printable import printable
from cbbench.results.metrics import only_decodes
from cbbench.results.rounds import SavedRound
from cbbench.results.timeline import Kind, Phase, Stay

Event = dict[str, Any]
PROGRAM = {"program": "cbbench"}
HEAD = '{"otherData": ' + json.dumps(PROGRAM)[:-1]  # how every file begins, by which an export knows its own
FIRST_TID = 1000  # above every pid: a thread whose number is the process's counts as its main thread
# Names of chrome://tracing's own colours; Perfetto colours by name.
COLOURS = {
    Kind.PREFILL: "rail_response", Kind.RECOMPUTE: "terrible", Kind.DECODE: "thread_state_running", Kind.STALLED: "thread_state_runnable",
    Kind.HELD: "grey", Kind.STARVED: "bad", Kind.DRAINED: "white",
}  # fmt: skip


def lines(chosen: list[SavedRound]) -> Iterator[str]:
    """The file's text, an event a line."""
    info = chosen[0].run.info
    about = {
        **PROGRAM, "version": __version__, "run": printable(chosen[0].run.name), "workload": info["workload"]["name"],
        "model": info["model"]["name"], "note": "in a step, host time stands before model time; the records hold only their sums",
    }  # fmt: skip
    yield f'{{"otherData": {json.dumps(about)}, "displayTimeUnit": "ms", "traceEvents": [\n'
    separator = ""
    for event in events(chosen):
        yield separator + json.dumps(event, allow_nan=False)
        separator = ",\n"
    yield "\n]}\n"


def events(chosen: list[SavedRound]) -> Iterator[Event]:
    tids, flow_ids = count(FIRST_TID), count(1)
    for pid, recorded in enumerate(chosen, 1):
        yield from _Process(recorded, pid, tids, flow_ids).events()


def names(recorded: SavedRound) -> dict[int, str]:
    return {r["index"]: printable(r["id"]) for r in recorded.requests}


def nanoseconds(time_s: float) -> int:
    """Times are rounded once, so that slices that touch still do."""
    return round(time_s * 1e9)


@dataclass
class _Slice:
    """Part of a thread's time; `sequence` is the request that the arrows follow through it."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    tid: int
    args: dict[str, Any]
    sequence: int | None = None
    colour: str | None = None


@dataclass
class _Process:
    recorded: SavedRound
    pid: int
    tids: count[int]
    flow_ids: count[int]
    threads: list[Event] = field(default_factory=list)

    def events(self) -> Iterator[Event]:
        slices = [*self.steps(), *self.slots(), *self.waits()]
        yield self.metadata("process_name", self.pid, name=f"{self.recorded.arm}, round {self.recorded.round}")
        yield self.metadata("process_sort_index", self.pid, sort_index=self.pid)
        yield from self.threads
        # A slice stands before what lies in it: earlier, or as early and longer.
        yield from (self.complete(s) for s in sorted(slices, key=lambda s: (s.start_ns, -s.end_ns)))
        yield from self.flows(slices)
        yield from self.counters()

    def metadata(self, kind: str, tid: int, **args: Any) -> Event:
        return {"ph": "M", "name": kind, "pid": self.pid, "tid": tid, "ts": 0, "args": args}

    def thread(self, name: str) -> int:
        tid = next(self.tids)
        self.threads += [self.metadata("thread_name", tid, name=name), self.metadata("thread_sort_index", tid, sort_index=tid)]
        return tid

    def complete(self, s: _Slice) -> Event:
        event = {"ph": "X", "name": s.name, "cat": s.category, "pid": self.pid, "tid": s.tid, "ts": s.start_ns / 1000,
                 "dur": (s.end_ns - s.start_ns) / 1000, "args": s.args}  # fmt: skip
        return event | ({"cname": s.colour} if s.colour else {})

    def steps(self) -> Iterator[_Slice]:
        if not self.recorded.steps:
            return
        tid = self.thread("steps")
        for step in self.recorded.steps:
            start, end = nanoseconds(step["start_s"]), nanoseconds(step["end_s"])
            middle = max(end - nanoseconds(step["model_s"]), start)
            args = {key: step[key] for key in ("step", "slots", "live", "held", "waiting", "copied_bytes", "model_s")}
            args["computed_tokens"] = sum(num_new for *_, num_new in step["rows"])
            yield _Slice("decode step" if only_decodes(step) else "step with prefill", "step", start, end, tid, args)
            yield _Slice("host", "host", start, middle, tid, {})
            yield _Slice("model", "model", middle, end, tid, {})

    def slots(self) -> Iterator[_Slice]:
        ids = names(self.recorded)
        tid_of = {slot: self.thread(f"slot {slot}") for slot in sorted({span.slot for span in self.recorded.spans})}
        for span in self.recorded.spans:
            name = span.kind if span.sequence is None else f"{span.kind} {ids[span.sequence]}"
            args = {"first_step": span.first_step, "last_step": span.last_step, "computed_tokens": span.num_tokens}
            yield _Slice(name, span.kind, nanoseconds(span.start_s), nanoseconds(span.end_s), tid_of[span.slot], args, span.sequence,
                         COLOURS[span.kind])  # fmt: skip

    def waits(self) -> Iterator[_Slice]:
        """Requests in the queue, again after a preemption; of a system without step records also those in flight. Each has
        the lowest place that is free: slices of a thread must not overlap. A wait of no time is not drawn."""
        ids = names(self.recorded)
        out = (Phase.QUEUED, Phase.PREEMPTED)
        yield from self.placed("queue", [stay for stay in self.recorded.stays if stay.phase in out], ids)
        if not self.recorded.steps:
            flights = [stay for stay in self.recorded.stays if stay.phase not in out]
            untold = [r for r in self.recorded.requests if not r["token_times_s"] and r.get("ended_s") is not None]
            flights += [Stay(r["index"], Phase.DECODE, r["first_scheduled_s"] or r["arrival_s"], r["ended_s"]) for r in untold]
            yield from self.placed("in flight", flights, ids)

    def placed(self, where: str, stays: list[Stay], ids: dict[int, str]) -> Iterator[_Slice]:
        tid_of: list[int] = []
        free: list[int] = []
        taken: list[tuple[int, int]] = []  # end, place
        for stay in sorted(stays, key=lambda stay: (stay.start_s, stay.end_s)):
            start, end = nanoseconds(stay.start_s), nanoseconds(stay.end_s)
            if start >= end:
                continue
            while taken and taken[0][0] <= start:
                heapq.heappush(free, heapq.heappop(taken)[1])
            if not free:
                heapq.heappush(free, len(tid_of))
                tid_of.append(self.thread(f"{where} {len(tid_of)}"))
            place = heapq.heappop(free)
            heapq.heappush(taken, (end, place))
            yield _Slice(f"{stay.phase} {ids[stay.sequence]}", stay.phase, start, end, tid_of[place], {}, stay.sequence)

    def flows(self, slices: list[_Slice]) -> Iterator[Event]:
        """Arrows bind to the slice around their point; points of a request never go back in time."""
        ways: dict[int, list[_Slice]] = defaultdict(list)
        for s in slices:
            if s.sequence is not None and s.end_ns > s.start_ns:
                ways[s.sequence].append(s)
        for _, way in sorted(ways.items()):
            way.sort(key=lambda s: (s.end_ns, s.start_ns))
            flow_id, point_ns = next(self.flow_ids), 0
            for place, s in enumerate(way if len(way) > 1 else []):
                point_ns = max((s.start_ns + s.end_ns) // 2, point_ns)
                phase = "s" if place == 0 else "t" if place < len(way) - 1 else "f"
                event = {"ph": phase, "name": "request", "cat": "request", "id": flow_id, "pid": self.pid, "tid": s.tid,
                         "ts": point_ns / 1000}  # fmt: skip
                yield event | ({"bp": "e"} if phase == "f" else {})

    def counters(self) -> Iterator[Event]:
        """At the start of every step, and nothing at the end."""
        steps, parts = self.recorded.steps, self.recorded.memory.parts
        for i, step in enumerate(steps):
            yield self.counter("KV tokens", step["start_s"], {name: int(values[i]) for name, values in parts.items()})
            yield self.counter("waiting", step["start_s"], {"requests": step["waiting"]})
        if steps:
            yield self.counter("KV tokens", steps[-1]["end_s"], dict.fromkeys(parts, 0))
            yield self.counter("waiting", steps[-1]["end_s"], {"requests": 0})

    def counter(self, name: str, time_s: float, args: dict[str, int]) -> Event:
        return {"ph": "C", "name": name, "cat": "counter", "pid": self.pid, "tid": self.pid, "ts": nanoseconds(time_s) / 1000, "args": args}
