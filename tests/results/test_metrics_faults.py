"""Faults that other benchmarks have had in their numbers (hard-cases.md, section G), and identities that hold in every run."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cbbench.clock
from cbbench.clock import RealClock, VirtualClock
from cbbench.request import Request
from cbbench.results.metrics import summarize
from tests.support.engines import ATTENTIONS, CACHES, SCHEDULERS, requests, run, run_virtual, tiny
from tests.support.virtual_runs import asked, metrics


def test_62_63_one_token_outputs_have_no_tpot_and_no_itl() -> None:
    row = metrics(run_virtual(asked(*[(5, 1)] * 3)))
    assert [row[f"{name}_{key}"] for name in ("tpot_s", "itl_s") for key in ("mean", "p50", "p90", "p99", "max")] == [None] * 10
    assert row["requests_completed"] == row["output_tokens"] == 3
    assert row["ttft_s_p50"] == row["e2e_s_p50"] == row["normalized_latency_s_max"] == 1


def test_63_a_mix_of_one_token_early_end_and_refusal_is_strict_json() -> None:
    mix = [*asked((5, 1), (5, 4), allowed=9), Request("empty", (), 4), Request("huge", (1,) * 500, 4)]
    row = metrics(run_virtual(mix, budget_tokens=64))
    assert (row["requests_completed"], row["requests_refused"], row["requests_failed"]) == (2, 2, 0)
    assert (row["tpot_s_p50"], row["output_tokens"], row["prompt_tokens"]) == (1, 5, 10)
    assert all(math.isfinite(value) for value in row.values() if isinstance(value, int | float))


def test_64_nothing_completed_gives_nulls_and_not_zeros() -> None:
    row = metrics(run_virtual([Request("a", (), 4), Request("b", (1,) * 99, 9)], budget_tokens=16))
    assert (row["requests_completed"], row["requests_refused"], row["steps"], row["output_tokens"]) == (0, 2, 0, 0)
    none = [key for key in row if key.endswith(("_per_s", "_p50", "_mean", "_max", "_frac", "utilization")) or key == "duration_s"]
    assert len(none) > 30
    assert {key: row[key] for key in none} == dict.fromkeys(none)


def test_66_tokens_are_counted_by_their_ids_also_where_all_are_the_same() -> None:
    row = metrics(run_virtual(asked((3, 100))))
    assert (row["output_tokens"], row["output_tok_per_s"]) == (100, 1.0)


def test_67_an_early_end_counts_the_tokens_that_came() -> None:
    engine = run_virtual(asked((8, 5), allowed=64))
    row = metrics(engine)
    assert engine.sequences[0].reason == "eos"
    assert (row["output_tokens"], row["tpot_s_p50"], row["output_tok_per_s"], row["steps"]) == (5, 1, 1, 5)


def test_69_the_first_token_is_no_gap() -> None:
    row = metrics(run_virtual(asked((4, 3), arrival_s=1.0), max_num_seqs=1))
    assert (row["ttft_s_max"], row["itl_s_max"], row["tpot_s_max"]) == (1, 1, 1)
    late = metrics(run_virtual(asked(*[(4, 3)] * 2, arrival_s=1.0), max_num_seqs=1))
    assert (late["ttft_s_max"], late["itl_s_max"]) == (4, 1), "waiting is in TTFT and in no gap"


def test_70_arrivals_every_5_ms_are_due_at_absolute_times_while_steps_take_20_ms() -> None:
    load = [replace(r, arrival_s=0.005 * i) for i, r in enumerate(asked(*[(3, 1)] * 200))]
    engine = run_virtual(load, max_num_seqs=8, step_s=0.02)
    lines, row = engine.record().request_lines(), metrics(engine)
    assert [line["arrival_s"] for line in lines] == [0.005 * i for i in range(200)]
    assert lines[-1]["token_times_s"][-1] < 199 * 0.005 + 0.041, "the load kept its rate: nothing was pushed back"
    assert row["ttft_s_max"] == max(line["token_times_s"][0] - line["arrival_s"] for line in lines)
    assert 0.01 < row["lateness_s_max"] <= 0.02 + 1e-9, "the loop looks once a step, and says how late"
    assert row["ttft_s_mean"] == pytest.approx(row["lateness_s_mean"] + 0.02)


def test_70_work_between_two_waits_of_the_real_clock_is_not_added_to_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    fake = SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s + 1e-6))
    monkeypatch.setattr(cbbench.clock, "time", fake)
    clock = RealClock()
    seen = []
    for i in range(200):
        clock.wait_until(0.005 * i)
        seen.append(clock.now())
        now[0] += 0.002
    assert seen == pytest.approx([0.005 * i for i in range(200)], abs=1e-5)


def test_72_a_wall_clock_that_jumps_back_changes_no_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(wall: Any) -> dict[str, Any]:
        ticks = iter(range(10**6))
        fake = SimpleNamespace(perf_counter=lambda: 0.001 * next(ticks), sleep=lambda _: None, time=wall)
        monkeypatch.setattr(cbbench.clock, "time", fake)
        monkeypatch.setattr("time.time", wall)
        model = tiny()
        return metrics(run(model, requests(model, "5/8@0 17/6@0.05 3/4@0.1"), clock=RealClock()))

    jumps = iter(range(10**9, 0, -3600))
    steady, jumping = measured(lambda: 1e9), measured(lambda: float(next(jumps)))
    assert steady == jumping
    assert steady["requests_completed"] == 3 and steady["ttft_s_p50"] > 0


def test_74_percentiles_stand_beside_the_mean_and_waiting_is_split_from_computing() -> None:
    load = [replace(r, arrival_s=2.0 * i) for i, r in enumerate(asked(*[(3, 2)] * 99))]
    calm = metrics(run_virtual(load))
    cold = metrics(run_virtual([replace(r, arrival_s=1.0) for r in asked((3, 300), (3, 2))] + load[2:], max_num_seqs=1))
    assert calm["ttft_s_p50"] == calm["ttft_s_max"] == 1 and calm["queue_wait_s_max"] == 0
    assert cold["ttft_s_p50"] != cold["ttft_s_mean"] and cold["ttft_s_max"] > cold["ttft_s_p90"]
    assert cold["ttft_s_max"] - cold["queue_wait_s_max"] == 1, "the rest is queueing"


# Identities that hold in every run.


def test_recomputed_tokens_and_preemptions_are_what_the_steps_show() -> None:
    engine = run_virtual(asked(*[(15, 20)] * 3), budget_tokens=64)
    row = metrics(engine)
    computed = sum(new for step in engine.steps for *_, new in step.rows)
    assert row["preemptions"] == sum(len(step.preempted) for step in engine.steps) > 0
    assert row["recomputed_tokens"] == computed - sum(r.max_kv_tokens for r in asked(*[(15, 20)] * 3)) > 0


def test_time_of_steps_is_model_time_and_host_time() -> None:
    record = run_virtual(asked((4, 3))).record()
    steps, lines = record.step_lines(), record.request_lines()
    slow = [step | {"start_s": 2.0 * i, "end_s": 2.0 * i + 2, "model_s": 1.5} for i, step in enumerate(steps)]
    row = summarize(slow, lines, {})
    assert (row["model_s"], row["host_s"], row["decode_step_s_p50"], row["decode_host_frac"]) == (4.5, 1.5, 2, 0.25)


def test_waiting_for_an_arrival_belongs_to_no_step() -> None:
    first, second = asked((3, 2), (3, 2))
    engine = run_virtual([first, replace(second, arrival_s=100.0)])
    assert [(step.start_s, step.end_s) for step in engine.steps] == [(0, 1), (1, 2), (100, 101), (101, 102)]
    assert isinstance(engine.clock, VirtualClock)
    assert all(later - earlier > 0 for earlier, later in pairwise(step.end_s for step in engine.steps))


def test_keys_behind_a_shorter_row_and_all_keys_of_a_held_row_are_decode_padding() -> None:
    shorter = metrics(run_virtual(asked((10, 2), (30, 2)), attn="padded"))
    assert shorter["decode_padding_frac"] == 20 / 62
    held = metrics(run_virtual(asked((10, 1), (30, 3)), "static", "padded"))
    assert held["decode_padding_frac"] == (31 + 32) / (62 + 64)
    assert metrics(run_virtual(asked((10, 1), (30, 3)), "static", "varlen"))["decode_padding_frac"] == 0


def test_an_empty_slot_is_starved_while_a_queue_waits_and_drained_after() -> None:
    """Two slots, memory for one: four steps with the second request in the queue, four with nobody there."""
    row = metrics(run_virtual(asked((10, 4), (10, 4)), kv="cat", max_num_seqs=2, budget_tokens=16))
    parts = [row[f"slot_idle_{reason}_frac"] for reason in ("finished", "starved", "drain")]
    assert (parts, row["slot_idle_frac"]) == ([0, 4 / 16, 4 / 16], 8 / 16)
    assert [row[f"decode_idle_{reason}_frac"] for reason in ("finished", "starved", "drain")] == [0, 3 / 12, 3 / 12]


def test_reserved_memory_is_split_by_what_it_is_for() -> None:
    """One region of 20 slots for 4 + 3 - 1 = 6 tokens; steps of a second with 4, 5 and 6 written."""
    row = metrics(run_virtual(asked((4, 3)), kv="preallocated", budget_tokens=32, options={"kv.max_len": 20}))
    assert row["kv_utilization"] == pytest.approx((4 + 5 + 6) / 60)
    assert row["kv_future_frac"] == pytest.approx((2 + 1 + 0) / 60)
    assert row["kv_internal_frac"] == pytest.approx(14 * 3 / 60)
    assert row["kv_external_frac"] == 0


def test_free_memory_in_holes_too_small_for_the_next_request_is_external() -> None:
    """Arena of 40: regions of 10, 20 and 10; the outer two end first and leave 20 free, in no hole of 16."""
    load = [Request(f"r{i}", (1,) * prompt, new) for i, (prompt, new) in enumerate([(8, 3), (8, 13), (8, 3), (4, 13)])]
    engine = run_virtual(load, kv="preallocated", budget_tokens=40, options={"kv.reserve": "exact"})
    assert [step.external_tokens for step in engine.steps] == [0, 0, 0, *[20] * 10, *[0] * 13]
    assert metrics(engine)["kv_external_frac"] > 0


REQUEST = st.tuples(st.integers(0, 40), st.integers(1, 24), st.integers(1, 24), st.sampled_from([0.0, 0.0, 1.5, 30.0]))
OPTIONS = st.fixed_dictionaries(
    {
        "kv.block_size": st.sampled_from([1, 7, 16]),
        "kv.reserve": st.sampled_from(["max_len", "pow2", "exact"]),
        "kv.placement": st.sampled_from(["first-fit", "buddy"]),
        "scheduler.max_num_batched_tokens": st.sampled_from([1, 9, 64]),
    }
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(REQUEST, min_size=1, max_size=9), st.sampled_from(SCHEDULERS), st.sampled_from(ATTENTIONS), st.sampled_from(CACHES),
    st.integers(1, 4), st.integers(16, 160), OPTIONS,
)  # fmt: skip
def test_fractions_sum_to_one_in_any_run(
    shapes: list[tuple[int, int, int, float]], scheduler: str, attn: str, kv: str, slots: int, budget: int, options: dict[str, Any]
) -> None:
    load = [Request(f"r{i}", (1,) * p, new, at, False, (7,) * min(ended, new)) for i, (p, new, ended, at) in enumerate(shapes)]
    row = metrics(run_virtual(load, scheduler, attn, kv, slots, budget, options))
    memory = [row[f"kv_{name}"] for name in ("utilization", "future_frac", "internal_frac", "external_frac")]
    assert memory == [None] * 4 if row["steps"] == 0 else sum(memory) == pytest.approx(1)
    for name in ("slot_idle", "decode_idle"):
        parts = [row[f"{name}_{reason}_frac"] for reason in ("finished", "starved", "drain")]
        assert parts == [None] * 3 if row[f"{name}_frac"] is None else sum(parts) == pytest.approx(row[f"{name}_frac"])
    fractions = [value for key, value in row.items() if key.endswith(("_frac", "utilization")) and value is not None]
    assert all(0 <= value <= 1 for value in fractions), row
    assert row["requests_completed"] + row["requests_refused"] == len(load)
