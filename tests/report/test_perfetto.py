"""The exported trace keeps to the Trace Event Format, and its slices, arrows and counters are the run's."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings

from cbbench.report.perfetto import lines
from cbbench.results.rounds import SavedRound, choose
from cbbench.results.store import Run, read_run
from cbbench.results.timeline import Phase
from tests.engine.test_properties import Case, cases
from tests.results.test_timeline import records_of
from tests.support.places import RECORDS

VALIDATOR = jsonschema.Draft202012Validator(json.loads((Path(__file__).parent / "trace_event.schema.json").read_text()))
INFO: dict[str, Any] = {"workload": {"name": "w"}, "model": {"name": "none", "digest": None}, "arms": []}
Event = dict[str, Any]


def trace_of(chosen: list[SavedRound]) -> dict[str, Any]:
    def refuse(word: str) -> float:
        raise ValueError(word)

    found: dict[str, Any] = json.loads("".join(lines(chosen)), parse_constant=refuse)
    return found


def by_hand(steps: list[dict[str, Any]], requests: list[dict[str, Any]], arm: str = "arm") -> SavedRound:
    return SavedRound(Run(Path("run"), INFO, [], []), arm, 1, {"metrics": {}}, steps, requests)


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def assert_sound(trace: dict[str, Any]) -> None:
    """What the format asks beyond its shape."""
    VALIDATOR.validate(trace)
    events = trace["traceEvents"]
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    slices: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append(event)
    assert set(slices) <= named, "every thread has a name"
    assert len({tid for _, tid in named}) == len(named) and not {pid for pid, _ in named} & {tid for _, tid in named}
    for thread in slices.values():
        assert_nested(thread)
    assert_flows_bound([event for event in events if event["ph"] in "stf"], slices)
    counters: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["pid"], event["name"]].append(event)
    for series in counters.values():
        assert all(before["ts"] <= after["ts"] and before["args"].keys() == after["args"].keys() for before, after in pairwise(series))


def assert_nested(thread: list[Event]) -> None:
    """In file order each slice lies in the one that is open, or begins at or after its end."""
    open_until: list[int] = []
    last = 0
    for event in thread:
        start, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
        assert start >= last, "in order of time"
        last = start
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1], event
        open_until.append(end)


def assert_flows_bound(points: list[Event], slices: dict[tuple[int, int], list[Event]]) -> None:
    """Each arrow begins once and ends once, never goes back, and each of its points is inside a slice of its request."""
    ways: dict[int, list[Event]] = defaultdict(list)
    for point in points:
        ways[point["id"]].append(point)
    for way in ways.values():
        assert [point["ph"] for point in way] == ["s", *["t"] * (len(way) - 2), "f"] and len({point["pid"] for point in way}) == 1
        assert all(before["ts"] <= after["ts"] for before, after in pairwise(way))
        around = []
        for point in way:
            inside = [s for s in slices[point["pid"], point["tid"]] if ns(s["ts"]) <= ns(point["ts"]) < ns(s["ts"]) + ns(s["dur"])]
            assert len(inside) == 1, point
            around.append(inside[0]["name"].split(" ", 1))
        assert len({name for _, name in around}) == 1, "one request"


@pytest.mark.parametrize("name", ["tutorial", "long-prompt", "preemption"])
def test_a_real_run_gives_a_sound_trace_with_a_process_an_arm(name: str) -> None:
    chosen = choose(read_run(RECORDS / name))
    trace = trace_of(chosen)
    assert_sound(trace)
    assert (trace["displayTimeUnit"], trace["otherData"]["program"], trace["otherData"]["run"]) == ("ms", "cbbench", name)
    processes = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert processes == [f"{recorded.arm}, round {recorded.round}" for recorded in chosen]


@pytest.mark.parametrize("name", ["tutorial", "preemption"])
def test_slices_last_as_long_as_the_spans_steps_and_waits_that_they_are(name: str) -> None:
    chosen = choose(read_run(RECORDS / name))
    events = trace_of(chosen)["traceEvents"]
    for pid, recorded in enumerate(chosen, 1):
        lasting_ns: Counter[str] = Counter()
        for event in events:
            if event["ph"] == "X" and event["pid"] == pid:
                lasting_ns[event["cat"]] += ns(event["dur"])
        expected: Counter[str] = Counter()
        for span in recorded.spans:
            expected[str(span.kind)] += ns((span.end_s - span.start_s) * 1e6)
        for stay in recorded.stays:
            if stay.phase in (Phase.QUEUED, Phase.PREEMPTED):
                expected[str(stay.phase)] += ns((stay.end_s - stay.start_s) * 1e6)
        expected["step"] = ns(1e6 * sum(step["end_s"] - step["start_s"] for step in recorded.steps))
        expected["model"], expected["host"] = (ns(1e6 * recorded.metrics[key]) for key in ("model_s", "host_s"))
        assert lasting_ns.keys() == expected.keys()
        for kind, lasting in expected.items():
            assert lasting_ns[kind] == pytest.approx(lasting, abs=len(events)), f"{kind}, but for rounding to a nanosecond an event"


def test_counters_are_the_memory_and_the_queue_at_every_step_and_nothing_at_the_end() -> None:
    (recorded,) = choose(read_run(RECORDS / "preemption"))
    events = trace_of([recorded])["traceEvents"]
    memory = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "KV tokens"]
    waiting = [event["args"]["requests"] for event in events if event["ph"] == "C" and event["name"] == "waiting"]
    assert waiting == [*(step["waiting"] for step in recorded.steps), 0]
    assert {sum(parts.values()) for parts in memory[:-1]} == {208} and set(memory[-1].values()) == {0}
    assert max(parts["token states"] for parts in memory) == recorded.metrics["kv_used_tokens_peak"]


def test_the_arrow_of_a_preempted_request_goes_through_the_queue_to_its_recompute() -> None:
    events = trace_of(choose(read_run(RECORDS / "preemption")))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    ways: dict[int, list[str]] = defaultdict(list)
    for point in (event for event in events if event["ph"] in "stf"):
        (name,) = [s["name"] for s in slices if s["tid"] == point["tid"] and s["ts"] <= point["ts"] < s["ts"] + s["dur"]]
        ways[point["id"]].append(name)
    phases = ["queued", "prefill", "preempted", "recompute", "decode"]
    assert [f"{phase} tutorial-4-rhyme-with-moon" for phase in phases] in ways.values()
    assert ["queued tutorial-1-lemon-colour", "prefill tutorial-1-lemon-colour", "decode tutorial-1-lemon-colour"] in ways.values()
    assert len(ways) == 8


BAD: list[Event] = [
    {"ph": "X", "name": "a", "cat": "c", "ts": 1, "pid": 1, "tid": 2},
    {"ph": "X", "name": "a", "cat": "c", "ts": 1, "dur": -1, "pid": 1, "tid": 2},
    {"ph": "X", "name": "a", "cat": "c", "ts": 1, "dur": 1, "pid": 1, "tid": 2, "cname": "pink"},
    {"ph": "f", "name": "a", "cat": "c", "ts": 1, "id": 3, "pid": 1, "tid": 2},
    {"ph": "s", "name": "a", "cat": "c", "ts": 1, "pid": 1, "tid": 2},
    {"ph": "C", "name": "a", "cat": "c", "ts": 1, "pid": 1, "tid": 1, "args": {"series": "7"}},
    {"ph": "M", "name": "thread_name", "ts": 0, "pid": 1, "tid": 1, "args": {"sort_index": 1}},
    {"ph": "M", "name": "colour", "ts": 0, "pid": 1, "tid": 1, "args": {"name": "x"}},
    {"ph": "Z", "name": "a", "ts": 0, "pid": 1, "tid": 1},
]


@pytest.mark.parametrize("event", BAD, ids=lambda event: f"{event['ph']} {event['name']}")
def test_the_schema_refuses_what_the_format_does_not_know(event: Event) -> None:
    assert not VALIDATOR.is_valid({"traceEvents": [event]})


@given(case=cases())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_trace_of_any_run_is_sound(case: Case) -> None:
    assert_sound(trace_of([by_hand(*records_of(case))]))


def test_a_system_without_step_records_shows_its_requests_in_flight_by_what_it_tells() -> None:
    base = {"state": "finished", "output_ids": [7, 8], "reason": "length", "prompt_tokens": 3, "num_preemptions": None, "submitted_s": None}
    requests = [
        base | {"id": "told", "index": 0, "arrival_s": 0.0, "first_scheduled_s": 1.0, "token_times_s": [2.0, 3.0], "ended_s": 3.0},
        base | {"id": "untold", "index": 1, "arrival_s": 0.5, "first_scheduled_s": None, "token_times_s": None, "ended_s": 4.0},
        base | {"id": "nothing", "index": 2, "arrival_s": 0.0, "first_scheduled_s": None, "token_times_s": None, "ended_s": None},
    ]
    trace = trace_of([by_hand([], requests)])
    assert_sound(trace)
    assert sorted((event["name"], event["ts"], event["dur"]) for event in trace["traceEvents"] if event["ph"] == "X") == [
        ("decode told", 2e6, 1e6), ("decode untold", 5e5, 3.5e6), ("prefill told", 1e6, 1e6), ("queued told", 0.0, 1e6),
    ]  # fmt: skip


def test_ids_of_any_kind_stand_in_the_trace_as_text() -> None:
    request = {"index": 0, "prompt_tokens": 3, "output_ids": [7], "arrival_s": 0.0, "first_scheduled_s": 1.0, "token_times_s": [2.0]}
    trace = trace_of([by_hand([], [request | {"id": 'a"\n\x1b[31m\ud800 [bold]'}], arm='"arm"\\')])
    assert_sound(trace)
    assert {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"} == {
        f'{phase} a"\\n\\x1b[31m\\ud800 [bold]' for phase in ("queued", "prefill")
    }
