"""What the pictures show: who sat in which slot, what became of each request, and memory over time.

Made from the records of one cell alone, like the metrics, and in agreement with them: the idle spans add up to
`slot_idle_frac`, the areas of memory to the memory table. Every picture (report, show, plot, export) draws these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np

from cbbench.results.metrics import final_lengths, kv_split

Record = dict[str, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]


class Kind(StrEnum):
    """What a slot does in a step."""

    PREFILL = "prefill"
    RECOMPUTE = "recompute"  # positions that were computed before a preemption
    DECODE = "decode"
    STALLED = "stalled"  # live, but no token of it fitted into the step
    HELD = "held"  # finished, and kept in the batch
    STARVED = "starved"  # empty, although requests wait
    DRAINED = "drained"  # empty, nothing waits


IDLE = (Kind.HELD, Kind.STARVED, Kind.DRAINED)


@dataclass(slots=True)
class Span:
    """Steps on end in which a slot does the same for the same sequence. `sequence` is None where the slot is empty."""

    slot: int
    kind: Kind
    sequence: int | None
    first_step: int
    last_step: int
    start_s: float
    end_s: float
    num_tokens: int  # positions computed

    @property
    def num_steps(self) -> int:
        return self.last_step - self.first_step + 1


def slot_spans(steps: list[Record], requests: list[Record]) -> list[Span]:
    """Every slot of every step, in order of start and slot. A wait for arrivals between two steps ends no span."""
    prompts = {r["index"]: r["prompt_tokens"] for r in requests}
    open_spans: dict[int, Span] = {}
    spans: list[Span] = []
    for step, doing in zip(steps, _occupants(steps, prompts), strict=True):
        for slot in [slot for slot in open_spans if slot not in doing]:
            del open_spans[slot]
        for slot, (kind, sequence, num_tokens) in doing.items():
            span = open_spans.get(slot)
            if span is None or (span.kind, span.sequence) != (kind, sequence):
                number = step["step"]
                span = open_spans[slot] = Span(slot, kind, sequence, number, number, step["start_s"], step["end_s"], 0)
                spans.append(span)
            span.last_step, span.end_s = step["step"], step["end_s"]
            span.num_tokens += num_tokens
    return spans


def _occupants(steps: list[Record], prompts: dict[int, int]) -> Iterable[dict[int, tuple[Kind, int | None, int]]]:
    """Per step: slot -> what it does, for whom, and how many tokens that computes."""
    last_seen = {sequence: step["step"] for step in steps for _, sequence, _, _ in step["rows"]}
    seat: dict[int, int] = {}  # sequence -> its slot
    high_water: dict[int, int] = {}
    for step in steps:
        for sequence in step["preempted"]:
            seat.pop(sequence, None)
        doing: dict[int, tuple[Kind, int | None, int]] = {}
        for slot, sequence, start, num_new in step["rows"]:
            seat[sequence] = slot
            done = high_water.get(sequence, 0)
            if not num_new:
                kind = Kind.HELD
            elif start < done:
                kind = Kind.RECOMPUTE
            else:
                kind = Kind.DECODE if num_new == 1 and start >= prompts[sequence] else Kind.PREFILL
            high_water[sequence] = max(done, start + num_new)
            doing[slot] = (kind, sequence, num_new)
        for sequence, slot in seat.items():
            doing.setdefault(slot, (Kind.STALLED, sequence, 0))
        empty = Kind.STARVED if step["waiting"] else Kind.DRAINED
        for slot in range(step["slots"]):
            doing.setdefault(slot, (empty, None, 0))
        for sequence in [sequence for sequence in seat if last_seen[sequence] <= step["step"]]:
            del seat[sequence]
        yield doing


class Phase(StrEnum):
    """Where a request is."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"


@dataclass(slots=True)
class Stay:
    """A request in one phase."""

    sequence: int
    phase: Phase
    start_s: float
    end_s: float


def stays(steps: list[Record], requests: list[Record]) -> list[Stay]:
    """Each request's way: queued until first scheduled, prefill until its first token, decode until its last; preempted
    from the start of the step that took its memory until a step computes it again, which lies over the others."""
    found: list[Stay] = []
    for r in requests:
        times = r["token_times_s"] or []
        first_s = times[0] if times else None
        marks = [(Phase.QUEUED, r["arrival_s"], r["first_scheduled_s"]), (Phase.PREFILL, r["first_scheduled_s"], first_s)]
        marks += [(Phase.DECODE, first_s, times[-1] if times else None)]
        found += [Stay(r["index"], phase, start, end) for phase, start, end in marks if start is not None and end is not None]
    out_since: dict[int, float] = {}
    for step in steps:
        out_since |= dict.fromkeys(step["preempted"], step["start_s"])
        for _, sequence, _, _ in step["rows"]:
            if sequence in out_since:
                found.append(Stay(sequence, Phase.PREEMPTED, out_since.pop(sequence), step["start_s"]))
    return found


# What reserved tokens are for, and the metric that has the share over a run.
SHARES = {"token states": "kv_utilization", "future": "kv_future_frac", "internal": "kv_internal_frac", "external": "kv_external_frac"}
PARTS = (*SHARES, "cached", "free")


@dataclass
class Memory:
    """Token slots of the cache in each step, [steps] each; they sum to its size."""

    start_s: Floats
    end_s: Floats
    parts: dict[str, Floats]  # PARTS


def memory(steps: list[Record], requests: list[Record]) -> Memory:
    """Definitions: metrics.kv_memory. `external` is free memory in which the next waiting request has no hole; `cached` is free
    and can still be found."""
    final = final_lengths(requests)
    rows = []
    for step in steps:
        free, external, cached = step["free_tokens"], step["external_tokens"], step.get("cached_tokens", 0)
        rows.append((step["start_s"], step["end_s"], *kv_split(step, final), external, cached, free - external - cached))
    columns = np.array(rows, float).reshape(-1, 2 + len(PARTS)).T
    return Memory(columns[0], columns[1], dict(zip(PARTS, columns[2:], strict=True)))


def thinned(values: Floats, num: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Which points of a series to draw: each bucket's first, lowest, highest and last, so that no peak is lost; all of
    them where there are no more than `num`."""
    if len(values) <= num:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), max(num // 4, 1) + 1).astype(int)
    kept = {i for low, high in pairwise(edges.tolist()) for i in _corners(values[low:high], low)}
    return np.array(sorted(kept))


def _corners(values: Floats, offset: int) -> list[int]:
    return [offset, offset + int(values.argmin()), offset + int(values.argmax()), offset + len(values) - 1]
