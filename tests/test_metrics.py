"""The numbers of metrics.md, exactly: its worked examples run through the engine under the virtual clock, one second a step."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import cbbench.clock
import cbbench.model
from cbbench import gguf, seam
from cbbench.clock import RealClock, VirtualClock
from cbbench.engine import Engine
from cbbench.kvcache.base import KVSpec
from cbbench.metrics import distribution, summarize
from cbbench.request import Request
from tests.engines import requests, run, run_virtual, tiny

SMOLLM2_BYTES = 46_080


def asked(*lengths: tuple[int, int], allowed: int | None = None, arrival_s: float = 0.0) -> list[Request]:
    """(prompt, output) lengths -> requests that end there; `allowed` new tokens, where it is more than they use."""
    return [
        Request(f"r{i}", tuple(range(1, prompt + 1)), allowed or output, arrival_s, allowed is None, (7,) * output)
        for i, (prompt, output) in enumerate(lengths)
    ]


def metrics(engine: Engine, **cell: Any) -> dict[str, Any]:
    """Through JSON text, as from disk: whatever is no strict JSON fails here."""
    lines = [json.loads(json.dumps(rows, allow_nan=False)) for rows in (engine.record().step_lines(), engine.record().request_lines())]
    row = summarize(*lines, {"bytes_per_token": SMOLLM2_BYTES, **cell})
    json.dumps(row, allow_nan=False)
    return row


def starts_and_ends(engine: Engine) -> dict[str, tuple[int, int]]:
    """The first and last step of each request, counted from 1."""
    found = {}
    for sequence in engine.sequences:
        steps = [step.step + 1 for step in engine.steps for _, index, _, new in step.rows if index == sequence.index and new]
        found[sequence.request.id] = (min(steps), max(steps))
    return found


# The worked examples of metrics.md, by number.


def test_example_1_four_regions_of_500_hold_720_tokens_and_blocks_of_16_736() -> None:
    four = asked((470, 11), (20, 11), (190, 11), (5, 6), allowed=31)
    ends = [s.num_prompt + len(s.output_ids) - 1 for s in run_virtual(four).sequences]
    assert ends == [480, 30, 200, 10]
    whole = run_virtual(four, kv="preallocated", budget_tokens=2000, options={"kv.max_len": 500})
    assert metrics(whole)["kv_final_utilization"] == 720 / 2000 == 0.36
    assert metrics(run_virtual(four, options={"kv.block_size": 16}))["kv_final_utilization"] == 720 / 736


def test_example_2_continuous_refills_a_slot_at_once_and_static_waits_for_the_longest() -> None:
    queue = asked(*((1, output) for output in (20, 5, 10, 15, 7, 9, 9)))
    names = dict(zip("ABCDEFG", (r.id for r in queue), strict=True))
    continuous = starts_and_ends(run_virtual(queue, "continuous"))
    assert [continuous[names[x]] for x in "ABCD"] == [(1, 20), (1, 5), (1, 10), (1, 15)]
    assert continuous[names["E"]] == (6, 12), "E takes B's slot"
    assert continuous[names["F"]][0] == 11, "F takes C's"
    assert continuous[names["G"]][0] == 13, "G takes E's"
    assert starts_and_ends(run_virtual(queue, "static"))[names["E"]][0] == 21


def test_example_3_the_static_chapter_of_the_tutorial() -> None:
    row = metrics(run_virtual(asked((10, 15), (30, 10), (5, 20), (20, 12)), "static", "padded"))
    assert (row["steps"], row["prefill_padding_frac"]) == (20, 55 / 120)
    assert (row["slot_idle_frac"], row["decode_idle_frac"]) == (23 / 80, 23 / 76)
    assert row["slot_idle_finished_frac"] == 23 / 80, "all of it held by finished rows"


CHAPTER = ((17, 37), (6, 39), (14, 17), (14, 37), (8, 36), (6, 27), (12, 48), (7, 35))


@pytest.mark.parametrize(
    ("scheduler", "slots", "steps", "idle", "padding"),
    [("static", 4, 87, (72, 348), (32, 116)), ("continuous", 4, 85, (64, 340), None), ("static", 8, 48, (108, 384), (52, 136))],
)
def test_example_4_the_continuous_chapter_of_the_tutorial(
    scheduler: str, slots: int, steps: int, idle: tuple[int, int], padding: tuple[int, int] | None
) -> None:
    engine = run_virtual(asked(*CHAPTER), scheduler, "padded", max_num_seqs=slots)
    row = metrics(engine)
    assert row["steps"] == steps
    assert row["slot_idle_frac"] == idle[0] / idle[1]
    assert sum(step.slots for step in engine.steps) == idle[1]
    if padding:
        assert row["prefill_padding_frac"] == padding[0] / padding[1]
        assert sum(p[1] for step in engine.steps for p in step.passes if p[0] == "prefill") == padding[1]


@pytest.mark.parametrize(("prompts", "positions", "shown"), [((47, 312, 128), 936, 48.0), ((8, 256, 32), 768, 61.5)])
def test_example_5_packed_against_padded(prompts: tuple[int, ...], positions: int, shown: float) -> None:
    batch = asked(*((prompt, 1) for prompt in prompts))
    padded, packed = (run_virtual(batch, attn=attn) for attn in ("padded", "varlen"))
    assert padded.steps[0].passes[0][1] == positions
    assert packed.steps[0].passes[0][1] == sum(prompts)
    assert metrics(padded)["prefill_padding_frac"] == (positions - sum(prompts)) / positions == pytest.approx(shown / 100, abs=5e-4)
    assert metrics(packed)["prefill_padding_frac"] == 0


def test_example_6_thirty_of_fifty_tokens_used_by_eight_requests() -> None:
    eight = asked(*[(11, 20)] * 8, allowed=40)
    assert {r.max_kv_tokens for r in eight} == {50}
    whole, paged = (metrics(run_virtual(eight, kv=kv, max_num_seqs=8, options={"kv.block_size": 16})) for kv in ("preallocated", "paged"))
    assert whole["kv_final_utilization"] == 240 / 400 == 0.6
    assert paged["kv_final_utilization"] == 240 / 256 == 0.9375
    assert whole["kv_reserved_tokens_peak"] == 400 and paged["kv_reserved_tokens_peak"] == 256


def drawn_lengths(seed: int, cap: int, num: int) -> np.ndarray:
    """Output lengths of Anyscale's study: exponential with mean 128, those over the cap not taken."""
    lengths = np.random.default_rng(seed).exponential(128, 40 * num)
    return lengths[lengths <= cap][:num]


def use_of_slots(lengths: np.ndarray, batch: int) -> float:
    batches = lengths[: len(lengths) // batch * batch].reshape(-1, batch)
    return float(batches.sum() / (batch * batches.max(1).sum()))


@pytest.mark.parametrize(("cap", "batch", "published"), [(32, 16, 0.512), (128, 12, 0.487), (512, 8, 0.387), (1536, 4, 0.484)])
def test_example_7_slot_use_of_static_batches_over_exponential_lengths(cap: int, batch: int, published: float) -> None:
    thousands = [use_of_slots(drawn_lengths(seed, cap, 1000), batch) for seed in range(200)]
    assert abs(published - np.mean(thousands)) < 2 * np.std(thousands), "the published value is a draw of 1000 requests"
    lengths = np.ceil(drawn_lengths(0, cap, 10 * batch)).astype(int)
    row = metrics(run_virtual(asked(*((1, int(n)) for n in lengths)), "static", max_num_seqs=batch))
    assert 1 - row["slot_idle_frac"] == pytest.approx(use_of_slots(lengths, batch), rel=1e-12)
    assert row["steps"] == lengths.reshape(-1, batch).max(1).sum()


def golden() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Example 8 as records: arrival 1, tokens at 5, 6 and 8."""
    (record,) = run_virtual(asked((4, 3), arrival_s=1.0)).record().request_lines()
    return [], [record | {"token_times_s": [5.0, 6.0, 8.0], "first_scheduled_s": 3.0, "submitted_s": 1.5}]


def test_example_8_tokens_at_5_6_8_after_arrival_at_1() -> None:
    row = summarize(*golden(), {})
    expected = {"ttft_s": [4], "itl_s": [1, 2], "tpot_s": [1.5], "e2e_s": [7], "normalized_latency_s": [7 / 3]}
    expected |= {"queue_wait_s": [2], "lateness_s": [0.5]}
    for name, values in expected.items():
        assert {key: row[f"{name}_{key}"] for key in ("mean", "p50", "p90", "p99", "max")} == distribution(values), name
    assert (row["duration_s"], row["output_tok_per_s"], row["total_tok_per_s"], row["requests_per_s"]) == (7, 3 / 7, 1, 1 / 7)


def test_a_run_under_the_virtual_clock_stamps_arrival_wait_and_tokens() -> None:
    first, second = asked((4, 3), (4, 2), arrival_s=1.0)
    engine = run_virtual([first, replace(second, arrival_s=1.25)], max_num_seqs=1, step_s=0.5)
    one, two = engine.record().request_lines()
    assert (one["first_scheduled_s"], one["token_times_s"]) == (1.0, [1.5, 2.0, 2.5])
    assert (two["submitted_s"], two["first_scheduled_s"], two["token_times_s"]) == (1.5, 2.5, [3.0, 3.5])
    row = metrics(engine)
    assert (row["ttft_s_max"], row["queue_wait_s_max"], row["lateness_s_max"], row["itl_s_max"]) == (1.75, 1.25, 0.25, 0.5)


@pytest.mark.parametrize("value", [0.0, 3.25])
def test_percentiles_of_one_value_are_that_value(value: float) -> None:
    assert set(distribution([value]).values()) == {value}


def test_percentiles_of_none_are_null_and_of_many_are_linear() -> None:
    assert distribution([]) == {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}
    assert distribution([1.0, 2.0, 3.0, 10.0]) == {"mean": 4.0, "p50": 2.5, "p90": pytest.approx(7.9), "p99": pytest.approx(9.79), "max": 10}


# KV bytes per token, from the layers of the whole model.


def spec_of(config: Any, dtype: torch.dtype) -> KVSpec:
    """What the model's layers ask for. Its weights are memory that nobody has written, so no gigabytes are filled."""
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return seam.probe(shell.to_empty(device="cpu"))


def test_a_token_of_qwen3_takes_114688_bytes_in_bf16() -> None:
    config = AutoConfig.for_model(**json.loads((cbbench.model.SHAPES / "qwen3-0.6b.json").read_text()))
    spec = spec_of(config, torch.bfloat16)
    assert spec == KVSpec(num_layers=28, num_kv_heads=8, head_dim=128, itemsize=2)
    assert spec.bytes_per_token == 114_688
    assert spec.head_dim != config.hidden_size // config.num_attention_heads


@pytest.mark.real_model
def test_a_token_of_smollm2_takes_46080_bytes_in_fp32() -> None:
    config = AutoConfig.from_pretrained(gguf.converted(gguf.embedded()))
    assert spec_of(config, torch.float32).bytes_per_token == SMOLLM2_BYTES


def test_bytes_are_tokens_times_the_bytes_of_one_and_null_where_those_are_unknown() -> None:
    engine = run_virtual(asked((16, 17)), options={"kv.block_size": 16})
    row = metrics(engine, peak_extra_bytes=5)
    assert row["kv_peak_bytes"] == 32 * SMOLLM2_BYTES + 5
    assert row["kv_reserved_bytes"] == pytest.approx(SMOLLM2_BYTES * (1 * 16 + 16 * 32) / 17)
    assert row["kv_used_bytes"] == pytest.approx(SMOLLM2_BYTES * sum(range(16, 33)) / 17)
    unknown = metrics(engine, bytes_per_token=0)
    assert {unknown[f"kv_{name}_bytes"] for name in ("peak", "reserved", "used", "copy")} == {None}


# Faults that other benchmarks have had (hard-cases.md, section G, by number).


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
    assert all(math.isfinite(value) for value in row.values() if value is not None)


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
    fake = SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(cbbench.clock, "time", fake)
    clock = RealClock()
    seen = []
    for i in range(200):
        clock.wait_until(0.005 * i)
        seen.append(clock.now())
        now[0] += 0.002
    assert seen == pytest.approx([0.005 * i for i in range(200)])


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
    steps, lines = run_virtual(asked((4, 3))).record().step_lines(), golden()[1]
    slow = [step | {"start_s": 2.0 * i, "end_s": 2.0 * i + 2, "model_s": 1.5} for i, step in enumerate(steps)]
    row = summarize(slow, lines, {})
    assert (row["model_s"], row["host_s"], row["decode_step_s_p50"], row["decode_host_frac"]) == (4.5, 1.5, 2, 0.25)


def test_waiting_for_an_arrival_belongs_to_no_step() -> None:
    first, second = asked((3, 2), (3, 2))
    engine = run_virtual([first, replace(second, arrival_s=100.0)])
    assert [(step.start_s, step.end_s) for step in engine.steps] == [(0, 1), (1, 2), (100, 101), (101, 102)]
    assert isinstance(engine.clock, VirtualClock)
    assert all(later - earlier > 0 for earlier, later in pairwise(step.end_s for step in engine.steps))


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


def test_the_report_needs_no_file_of_the_run_but_its_records() -> None:
    assert "torch" not in Path(cbbench.__path__[0], "metrics.py").read_text().replace("without torch", "")
