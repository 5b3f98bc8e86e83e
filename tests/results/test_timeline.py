"""What the pictures show agrees with the metrics, over random runs and by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.request import Request
from cbbench.results.metrics import summarize
from cbbench.results.timeline import IDLE, Kind, Phase, Span, memory, slot_spans, stays, thinned
from tests.engine.test_properties import Case, cases, crowd
from tests.support.engines import run_virtual

Records = tuple[list[dict[str, Any]], list[dict[str, Any]]]
IDLE_METRICS = {Kind.HELD: "slot_idle_finished_frac", Kind.STARVED: "slot_idle_starved_frac", Kind.DRAINED: "slot_idle_drain_frac"}
AREA_METRICS = {
    "token states": "kv_utilization", "future": "kv_future_frac", "internal": "kv_internal_frac", "external": "kv_external_frac"
}  # fmt: skip


def records_of(case: Case) -> Records:
    run = run_virtual(case.requests, case.scheduler, case.attn, case.kv, **case.arm).record()
    return run.step_lines(), run.request_lines()


def assert_agrees(steps: list[dict[str, Any]], requests: list[dict[str, Any]]) -> list[Span]:
    metrics, spans = summarize(steps, requests, {}), slot_spans(steps, requests)
    assert_slots_agree(steps, spans, metrics)
    assert_tokens_agree(steps, requests, spans)
    assert_memory_agrees(steps, requests, metrics)
    assert_stays_are_lawful(requests, steps)
    return spans


def assert_slots_agree(steps: list[dict[str, Any]], spans: list[Span], metrics: dict[str, Any]) -> None:
    covered = Counter((span.slot, step) for span in spans for step in range(span.first_step, span.last_step + 1))
    assert covered == Counter((slot, step["step"]) for step in steps for slot in range(step["slots"])), "every slot of every step, once"
    num_steps: Counter[Kind] = Counter()
    for span in spans:
        num_steps[span.kind] += span.num_steps
        assert (span.start_s, span.end_s) == (steps[span.first_step]["start_s"], steps[span.last_step]["end_s"])
        assert (span.sequence is None) == (span.kind in (Kind.STARVED, Kind.DRAINED))
    total = sum(step["slots"] for step in steps)
    for kind, key in IDLE_METRICS.items() if total else ():
        assert num_steps[kind] / total == pytest.approx(metrics[key], abs=1e-12), key
    if total:
        assert sum(num_steps[kind] for kind in IDLE) / total == pytest.approx(metrics["slot_idle_frac"], abs=1e-12)
    for slot in {span.slot for span in spans}:
        for before, after in pairwise(span for span in spans if span.slot == slot):
            assert before.end_s <= after.start_s and before.last_step < after.first_step


def assert_tokens_agree(steps: list[dict[str, Any]], requests: list[dict[str, Any]], spans: list[Span]) -> None:
    computed: Counter[int] = Counter()
    for step in steps:
        for _, sequence, _, num_new in step["rows"]:
            computed[sequence] += num_new
    of_spans: Counter[int] = Counter()
    for span in spans:
        if span.sequence is not None:
            of_spans[span.sequence] += span.num_tokens
        assert (span.num_tokens > 0) == (span.kind in (Kind.PREFILL, Kind.RECOMPUTE, Kind.DECODE)), span
    assert +of_spans == +computed
    for r in requests:
        kinds = {span.kind for span in spans if span.sequence == r["index"]}
        assert (Kind.RECOMPUTE in kinds) == (r["recomputed_tokens"] > 0)


def assert_memory_agrees(steps: list[dict[str, Any]], requests: list[dict[str, Any]], metrics: dict[str, Any]) -> None:
    found = memory(steps, requests)
    sizes = [step["free_tokens"] - step["extra_tokens"] + sum(reserved for _, reserved, _ in step["kv"]) for step in steps]
    assert sum(found.parts.values(), np.zeros(len(steps))).tolist() == sizes and len(set(sizes)) <= 1, "the parts sum to the cache"
    assert all((values >= 0).all() for values in found.parts.values())
    areas = {name: float(values @ (found.end_s - found.start_s)) for name, values in found.parts.items() if name not in ("cached", "free")}
    whole = sum(areas.values())
    for name, key in AREA_METRICS.items():
        assert metrics[key] == (pytest.approx(areas[name] / whole, abs=1e-9) if whole else None), key


def assert_stays_are_lawful(requests: list[dict[str, Any]], steps: list[dict[str, Any]]) -> None:
    found = stays(steps, requests)
    for r in requests:
        mine = [stay for stay in found if stay.sequence == r["index"]]
        assert all(stay.start_s <= stay.end_s for stay in mine)
        way = [stay for stay in mine if stay.phase is not Phase.PREEMPTED]
        assert all(before.end_s == after.start_s for before, after in pairwise(way))
        assert len(mine) - len(way) == r["num_preemptions"]
        if r["state"] == "finished":
            assert [stay.phase for stay in way] == [Phase.QUEUED, Phase.PREFILL, Phase.DECODE]
            assert (way[0].start_s, way[-1].end_s) == (r["arrival_s"], r["token_times_s"][-1])


@given(case=cases())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_pictures_of_any_run_agree_with_its_metrics(case: Case) -> None:
    assert_agrees(*records_of(case))


@pytest.mark.parametrize("kv", ["cat", "paged"])
@pytest.mark.parametrize("scheduler", ["static", "continuous", "chunked"])
def test_they_agree_where_memory_is_tight_and_many_are_preempted(scheduler: str, kv: str) -> None:
    kinds: set[Kind] = set()
    for seed in range(15):
        kinds |= {span.kind for span in assert_agrees(*records_of(crowd(seed, scheduler, kv)))}
    wanted = {Kind.PREFILL, Kind.DECODE, Kind.RECOMPUTE, Kind.DRAINED if scheduler != "static" else Kind.HELD}
    assert wanted <= kinds
    assert Kind.STALLED not in kinds, "chunked admits only into what is left of its budget, so whoever has begun goes on"


def spans_by_hand(spec: str, *arm: str, **limits: Any) -> list[tuple[int, str, int | None, int, int, int]]:
    """slot, kind, sequence, first and last step, positions; `spec` is prompt/output@arrival."""
    made = []
    for index, word in enumerate(spec.split()):
        lengths, _, arrival = word.partition("@")
        prompt, output = (int(part) for part in lengths.split("/"))
        made.append(Request(f"r{index}", (3,) * prompt, output, float(arrival or 0), output_ids=tuple(range(output))))
    run = run_virtual(made, *arm, **limits).record()
    found = assert_agrees(run.step_lines(), run.request_lines())
    return [(span.slot, str(span.kind), span.sequence, span.first_step, span.last_step, span.num_tokens) for span in found]


def test_a_finished_row_is_held_in_a_static_batch() -> None:
    assert spans_by_hand("5/2 3/4", "static", "padded", "preallocated", max_num_seqs=2) == [
        (0, "prefill", 0, 0, 0, 5), (1, "prefill", 1, 0, 0, 3),
        (0, "decode", 0, 1, 1, 1), (1, "decode", 1, 1, 3, 3),
        (0, "held", 0, 2, 3, 0),
    ]  # fmt: skip


def test_a_slot_is_drained_when_nothing_waits() -> None:
    assert spans_by_hand("5/2 3/4", "continuous", "varlen", "paged", max_num_seqs=2) == [
        (0, "prefill", 0, 0, 0, 5), (1, "prefill", 1, 0, 0, 3),
        (0, "decode", 0, 1, 1, 1), (1, "decode", 1, 1, 3, 3),
        (0, "drained", None, 2, 3, 0),
    ]  # fmt: skip


def test_a_slot_is_starved_while_one_waits_for_memory() -> None:
    """12 tokens of memory: the second needs 8 and gets them when the first has left."""
    limits: dict[str, Any] = {"max_num_seqs": 2, "budget_tokens": 12, "options": {"kv.reserve": "exact"}}
    assert spans_by_hand("6/3 6/3", "continuous", "varlen", "preallocated", **limits) == [
        (0, "prefill", 0, 0, 0, 6), (1, "starved", None, 0, 2, 0),
        (0, "decode", 0, 1, 2, 2),
        (0, "prefill", 1, 3, 3, 6), (1, "drained", None, 3, 5, 0),
        (0, "decode", 1, 4, 5, 2),
    ]  # fmt: skip


def test_a_preempted_sequence_is_recomputed() -> None:
    """Two of two prompt tokens each and blocks of one: at 7 blocks the younger gives its three up, and begins again with
    all that it knew."""
    found = spans_by_hand("2/6 2/6", "continuous", "varlen", "paged", max_num_seqs=2, budget_tokens=7, options={"kv.block_size": 1})
    assert found == [
        (0, "prefill", 0, 0, 0, 2), (1, "prefill", 1, 0, 0, 2),
        (0, "decode", 0, 1, 5, 5), (1, "decode", 1, 1, 1, 1),
        (1, "starved", None, 2, 5, 0),
        (0, "recompute", 1, 6, 6, 4), (1, "drained", None, 6, 9, 0),
        (0, "decode", 1, 7, 9, 3),
    ]  # fmt: skip


def step_by_hand(number: int, rows: list[tuple[int, int, int, int]], **changes: Any) -> dict[str, Any]:
    """A step of one second and two slots."""
    step = {"step": number, "start_s": float(number), "end_s": number + 1.0, "slots": 2, "waiting": 0, "rows": rows, "preempted": []}
    return step | changes


def request_by_hand(index: int, prompt_tokens: int, **changes: Any) -> dict[str, Any]:
    return {"index": index, "prompt_tokens": prompt_tokens, "arrival_s": 0.0, "first_scheduled_s": None, "token_times_s": None} | changes


def test_a_sequence_without_a_token_in_a_step_is_stalled() -> None:
    """As under a scheduler of one's own, which lets a prompt wait in its slot while another decodes."""
    steps = [step_by_hand(0, [(0, 0, 0, 1), (1, 1, 0, 2)]), step_by_hand(1, [(0, 0, 1, 1)]), step_by_hand(2, [(1, 1, 2, 2)])]
    found = slot_spans(steps, [request_by_hand(0, 1), request_by_hand(1, 4)])
    assert [(span.slot, span.kind, span.sequence, span.first_step, span.num_steps, span.num_tokens) for span in found] == [
        (0, Kind.PREFILL, 0, 0, 1, 1), (1, Kind.PREFILL, 1, 0, 1, 2),
        (0, Kind.DECODE, 0, 1, 1, 1), (1, Kind.STALLED, 1, 1, 1, 0),
        (1, Kind.PREFILL, 1, 2, 1, 2), (0, Kind.DRAINED, None, 2, 1, 0),
    ]  # fmt: skip


def test_a_prompt_of_one_token_is_a_prefill_and_a_wait_for_arrivals_ends_no_span() -> None:
    steps = [step_by_hand(0, [(0, 0, 0, 1)]), step_by_hand(1, [(0, 1, 0, 1)], start_s=5.0, end_s=6.0)]
    first, empty, second = slot_spans(steps, [request_by_hand(0, 1), request_by_hand(1, 1)])
    assert (first.kind, second.kind) == (Kind.PREFILL, Kind.PREFILL)
    assert (empty.kind, empty.first_step, empty.last_step, empty.start_s, empty.end_s) == (Kind.DRAINED, 0, 1, 0.0, 6.0)


def test_a_request_is_queued_then_computes_its_prompt_then_decodes_and_its_preemption_lies_over_that() -> None:
    steps = [
        step_by_hand(0, [(0, 0, 0, 3)]), step_by_hand(1, [(0, 0, 3, 1)]), step_by_hand(2, [], preempted=[0]),
        step_by_hand(3, []), step_by_hand(4, [(0, 0, 0, 5)]),
    ]  # fmt: skip
    times = [1.0, 2.0, 5.0]
    requests = [request_by_hand(0, 3, arrival_s=-0.5, first_scheduled_s=0.25, token_times_s=times), request_by_hand(1, 3)]
    assert [(stay.sequence, str(stay.phase), stay.start_s, stay.end_s) for stay in stays(steps, requests)] == [
        (0, "queued", -0.5, 0.25), (0, "prefill", 0.25, 1.0), (0, "decode", 1.0, 5.0), (0, "preempted", 2.0, 4.0),
    ]  # fmt: skip


def test_of_a_peer_that_tells_little_only_what_is_known_is_a_stay() -> None:
    requests = [request_by_hand(0, 3, first_scheduled_s=1.0), request_by_hand(1, 3, token_times_s=[2.0, 3.0])]
    assert [(stay.sequence, str(stay.phase), stay.start_s, stay.end_s) for stay in stays([], requests)] == [
        (0, "queued", 0.0, 1.0), (1, "decode", 2.0, 3.0)
    ]  # fmt: skip
    assert slot_spans([], requests) == []


def test_thinning_keeps_both_ends_and_every_extreme() -> None:
    assert thinned(np.arange(5.0), 5).tolist() == [0, 1, 2, 3, 4]
    spike = np.zeros(1000)
    spike[537], spike[123] = 9.0, -4.0
    kept = thinned(spike, 40)
    assert {0, 123, 537, 999} <= set(kept.tolist()) and len(kept) <= 40


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), num=st.integers(1, 320))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_thinning_never_loses_the_lowest_or_the_highest_point(values: list[float], num: int) -> None:
    kept = thinned(np.array(values), num).tolist()
    chosen = [values[index] for index in kept]
    assert kept == sorted(set(kept)) and (min(chosen), max(chosen)) == (min(values), max(values))
    assert kept[0] == 0 and kept[-1] == len(values) - 1
    assert len(kept) <= max(num, 4) or len(values) <= num
