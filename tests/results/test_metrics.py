"""The numbers of metrics.md, exactly: its worked examples run through the engine under the virtual clock, one second a step."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import cbbench.model.load
from cbbench.engine.loop import Engine
from cbbench.kvcache.base import KVSpec
from cbbench.model import attention_interface, gguf
from cbbench.results.metrics import distribution, roofline, summarize
from tests.support.engines import run_virtual
from tests.support.virtual_runs import SMOLLM2_BYTES, asked, metrics


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
    assert distribution([1.0, 2.0, 3.0, 10.0]) == {
        "mean": 4.0,
        "p50": 2.5,
        "p90": pytest.approx(7.9),
        "p99": pytest.approx(9.79),
        "max": 10,
    }


# KV bytes per token, from the layers of the whole model.


def spec_of(config: Any, dtype: torch.dtype) -> KVSpec:
    """What the model's layers ask for. Its weights are memory that nobody has written, so no gigabytes are filled."""
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return attention_interface.probe(shell.to_empty(device="cpu"))[0]


def test_a_token_of_qwen3_takes_114688_bytes_in_bf16() -> None:
    config = AutoConfig.for_model(**json.loads((cbbench.model.load.SHAPES / "qwen3-0.6b.json").read_text()))
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


def test_a_chunk_in_the_middle_of_a_prompt_is_no_sample() -> None:
    """The head is multiplied with sampled tokens alone: of 8 + 8 + 4 prompt tokens in chunks, with the last."""
    cost = {"weight_bytes": 0, "token_weights": 0, "sample_weights": 1000, "attention_products": 0}
    cell = {"rates": {"bytes_per_s": 1e30, "flop_per_s": 2000.0}, "model_cost": cost, "bytes_per_token": 1}
    prefill, decode = ["prefill", 8, 0, 0, 0], ["decode", 1, 0, 20, 0]
    rows = [(0, 0, 0, 8), (0, 0, 8, 8), (0, 0, 16, 4), (0, 0, 20, 1)]
    steps = [
        {"passes": [decode if row == rows[-1] else prefill], "rows": [row], "start_s": float(i), "end_s": i + 1.0}
        for i, row in enumerate(rows)
    ]
    found = roofline(steps, [{"index": 0, "prompt_tokens": 20}], cell)
    assert (found["prefill_roofline_frac"], found["decode_roofline_frac"]) == (pytest.approx(1 / 3), pytest.approx(1.0))


@pytest.mark.parametrize(("bytes_per_s", "share"), [(1000.0, 1.0), (4000.0, 0.6), (1e9, 0.0)])
def test_the_roofline_says_which_ceiling_held(bytes_per_s: float, share: float) -> None:
    """Weights of 1,000 bytes and 0.1 s of arithmetic a row: one row needs 0.1 s, four need 0.4 s; reading takes 1, 0.25 or no time.
    At 4,000 bytes a second reading bounds three steps of one row (0.25 s each) and arithmetic one of four (0.5 of 1.25 s)."""
    cost = {"weight_bytes": 1000, "token_weights": 500, "sample_weights": 0, "attention_products": 0}
    cell = {"rates": {"bytes_per_s": bytes_per_s, "flop_per_s": 8000.0}, "model_cost": cost, "bytes_per_token": 0.0001}
    steps = [
        {"passes": [["decode", n, 0, 0, 0]], "rows": [(slot, slot, 9, 1) for slot in range(n)], "start_s": 0.0, "end_s": 1.0}
        for n in (1, 1, 1, 4)
    ]
    found = roofline(steps, [{"index": i, "prompt_tokens": 9} for i in range(4)], cell)
    assert found["decode_memory_bound_frac"] == pytest.approx(share, abs=1e-3) and found["prefill_memory_bound_frac"] is None
