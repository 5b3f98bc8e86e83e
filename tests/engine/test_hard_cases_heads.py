"""Faults that other engines really had, section C: heads, windows, kinds of caches."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from cbbench.engine.executor import StepResult
from cbbench.engine.loop import Engine
from cbbench.model.model import Model
from cbbench.plan import Plan
from tests.support.engines import ATTENTIONS, assert_exact, every_pairing, requests, run, tiny
from tests.support.step_hooks import forget_on_release, run_watched


@every_pairing
def test_three_query_heads_of_six_share_a_kv_head_in_order(scheduler: str, attn: str, kv: str) -> None:
    """Case 21, 6/3 heads; 4/2 are everywhere else. test_attention.py shows that tiling would differ."""
    model = tiny(hidden_size=96, num_attention_heads=6, num_key_value_heads=3)
    assert model.spec.num_kv_heads == 3
    assert_exact(run(model, requests(model, "3/8@0 12/6@0 7/9@0"), scheduler, attn, kv))


WINDOWS = {
    "total length passes the window, case 23": "6/6@0",
    "before and at a full window, case 24": "3/2@0 7/4@0",
    "three windows long, case 25": "5/30@0 20/12@0 1/25@0",
}


@every_pairing
@pytest.mark.parametrize("spec", WINDOWS.values(), ids=list(WINDOWS))
def test_a_sliding_window_is_honoured(scheduler: str, attn: str, kv: str, spec: str) -> None:
    """Cases 23 to 25."""
    model = tiny("mistral", sliding_window=8)
    made = requests(model, spec, ignore_eos=True)
    whole = requests(tiny("mistral"), spec, ignore_eos=True)
    assert "30" not in spec or [r.output_ids for r in made] != [r.output_ids for r in whole], "the window matters"
    options = {"scheduler.max_num_batched_tokens": 6, "kv.block_size": 3}
    assert_exact(run(model, made, scheduler, attn, kv, options=options))


@every_pairing
def test_layers_with_and_without_a_window_stand_in_one_model(scheduler: str, attn: str, kv: str) -> None:
    """Case 25."""
    model = tiny("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert model.hf.config.layer_types == ["full_attention", "sliding_attention"]
    made = requests(model, "5/30@0 20/12@0 1/25@0", ignore_eos=True)
    assert [r.output_ids for r in made] != [r.output_ids for r in requests(tiny("qwen2"), "5/30@0 20/12@0 1/25@0", ignore_eos=True)]
    assert_exact(run(model, made, scheduler, attn, kv, options={"scheduler.max_num_batched_tokens": 6}))


@every_pairing
def test_a_half_filled_last_block_is_never_read_to_its_end(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 26: the pool is NaN, so that a slot not written shows even at weight 0."""
    made = requests(model, "7/1@0 8/1@0 9/1@0 7/9@0 8/9@0 9/9@0", ignore_eos=True)
    engine = run(model, made, scheduler, attn, kv, max_num_seqs=6, options={"kv.block_size": 8, "scheduler.max_num_batched_tokens": 8})
    written = {written for step in engine.steps for _, _, written in step.kv}
    assert written >= {7, 8, 9, 15, 16, 17}
    assert_exact(engine)


@every_pairing
def test_memory_given_back_is_never_read_again(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 27: memory goes from one request to the next, once with the old content left in it, once overwritten with NaN."""
    made = requests(model, "9/4@0 17/3@0 5/12@0 11/9@0 3/7@0 14/5@0", ignore_eos=True)
    arm: dict[str, Any] = {"max_num_seqs": 2, "options": {"kv.block_size": 4, "kv.reserve": "exact"}, "budget_tokens": 40}
    assert_exact(run(model, made, scheduler, attn, kv, **arm))
    engine_is_pooled = kv != "cat"
    forgotten: list[list[int]] = []

    def first(engine: Engine, _: Plan) -> None:
        if engine_is_pooled and not engine.steps:
            forgotten.append(forget_on_release(engine))

    assert_exact(run_watched(model, made, scheduler, attn, kv, before=first, **arm))
    assert not engine_is_pooled or set(forgotten[0]) == set(range(6))


@pytest.mark.parametrize("attn", ATTENTIONS)
def test_growth_by_copying_counts_both_copies_and_keeps_only_the_new_one(model: Model, attn: str) -> None:
    """Case 29."""
    old: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def before(engine: Engine, _: Plan) -> None:
        cache: Any = engine.cache
        old[:] = [weakref.ref(tensor) for layers in cache.tensors.values() for pair in layers for tensor in pair]

    def after(_: Engine, __: Plan, ___: StepResult) -> None:
        alive.extend(ref() is not None for ref in old)

    made = requests(model, "32/48@0", ignore_eos=True)
    engine = run_watched(model, made, "continuous", attn, "cat", before=before, after=after)
    assert len(alive) == 47 * 4 and not any(alive), "somebody still holds a tensor that has been replaced"
    one_layer_bytes = model.spec.bytes_per_token // model.spec.num_layers
    largest = 32 + 46 if attn in ("serial", "unbatched") else 32 + 47
    assert engine.cache.peak_extra_bytes == largest * one_layer_bytes, "the last growth copied 78 tokens, the form that is read all 79"
    growth = sum(32 + i for i in range(47)) * model.spec.bytes_per_token
    assert sum(step.copied_bytes for step in engine.steps) >= growth
    whole = run(model, made, "continuous", attn, "preallocated")
    assert whole.cache.peak_extra_bytes == 0
    assert sum(step.copied_bytes for step in whole.steps) == 0 or attn == "padded"


@every_pairing
def test_more_positions_than_the_model_has_are_refused_with_both_numbers(scheduler: str, attn: str, kv: str) -> None:
    """Case 30."""
    model = tiny("gpt2", n_positions=64)
    made = requests(model, "5/6@0 60/5@0 9/4@0", ignore_eos=True)
    too_long = type(made[0])("long", tuple(range(3, 63)), 10)
    engine = run(model, [made[0], too_long, *made[1:]], scheduler, attn, kv)
    assert_exact(engine, refused=["long"])
    assert "69" in (engine.sequences[1].reason or "") and "64" in (engine.sequences[1].reason or "")
    assert engine.sequences[2].num_computed == 64, "all positions that there are can be used"
