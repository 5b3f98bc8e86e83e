"""Faults that other engines really had, sections C and D: heads, windows, kinds of caches, varlen attention."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from cbbench import plugins
from cbbench.attention._varlen_cuda import check_cu_seqlens
from cbbench.engine import Engine
from cbbench.executor import StepResult
from cbbench.model import Model
from cbbench.plan import Plan
from tests.engines import ATTENTIONS, CACHES, SCHEDULERS, assert_exact, every_pairing, requests, run, run_virtual, tiny
from tests.watch import forget_on_release, run_watched, split_chunks


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny()


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
    full = requests(tiny("mistral"), spec, ignore_eos=True)
    assert ([r.output_ids for r in made] != [r.output_ids for r in full]) == (
        spec != WINDOWS["before and at a full window, case 24"] or made != full
    )
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
    assert engine.cache.peak_extra_bytes == (32 + 46) * one_layer_bytes, "the last growth had a copy of 78 tokens beside the new one"
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


@pytest.mark.parametrize("kv", CACHES)
@pytest.mark.parametrize("attn", ATTENTIONS)
def test_sequences_without_new_tokens_are_out_of_a_packed_pass(model: Model, attn: str, kv: str) -> None:
    """Cases 31 and 84: a row with nothing scheduled is in no pass, and no token is appended to it."""
    lengths: dict[int, int] = {}
    unscheduled = 0

    def before(engine: Engine, plan: Plan) -> None:
        nonlocal unscheduled
        lengths.update({s.index: len(s.output_ids) for s in engine.sequences})
        unscheduled += len(engine.scheduler.running) - len(plan.live)

    def after(engine: Engine, plan: Plan, result: StepResult) -> None:
        sampled = {sequence.index for sequence, _ in result.tokens}
        assert sampled == {row.sequence.index for row in plan.rows if row.samples}
        assert all(row.num_new for forward_pass in result.passes for row in forward_pass.rows if forward_pass.width is None)
        assert all(len(s.output_ids) == lengths[s.index] for s in engine.sequences), "tokens are booked by the engine, after the step"

    made = requests(model, " ".join([f"{2 + i % 5}/{3 + i % 4}@0" for i in range(14)] + ["40/4@0", "33/5@0"]))
    options = {"scheduler.max_num_batched_tokens": 5}
    engine = run_watched(model, made, "chunked", attn, kv, max_num_seqs=16, options=options, before=before, after=after)
    assert unscheduled > 10 and split_chunks(engine) > 5
    assert_exact(engine)


@pytest.mark.parametrize("attn", ATTENTIONS)
@pytest.mark.parametrize("scheduler", ["static", "continuous"])
def test_a_block_table_is_as_long_as_the_tokens_it_holds(model: Model, scheduler: str, attn: str) -> None:
    """Case 33: prompts and outputs around multiples of the block size, B = 4."""
    prompts, outputs = (3, 4, 5, 7, 8, 9), (1, 2, 4, 5)
    made = requests(model, " ".join(f"{p}/{g}@0" for p in prompts for g in outputs), ignore_eos=True)
    engine = run(model, made, scheduler, attn, "paged", max_num_seqs=8, options={"kv.block_size": 4})
    held = [(reserved, written) for step in engine.steps for _, reserved, written in step.kv]
    assert len(held) > 70 and all(reserved == -(-written // 4) * 4 for reserved, written in held)
    assert_exact(engine)


@pytest.mark.parametrize("attn", ATTENTIONS)
@pytest.mark.parametrize("block_size", [1, 7, 16, 256, 768])
def test_any_positive_block_size_runs_on_a_cpu(model: Model, attn: str, block_size: int) -> None:
    """Case 35."""
    engine = run(model, requests(model, "20/9@0 17/6@0"), attn=attn, budget_tokens=2 * 768, options={"kv.block_size": block_size})
    assert {reserved % block_size for step in engine.steps for _, reserved, _ in step.kv} == {0}
    assert_exact(engine)


@pytest.mark.parametrize("block_size", [0, -1, "16", True, 1.5, None])
def test_a_block_size_that_is_no_positive_integer_is_refused(block_size: object) -> None:
    """Case 35."""
    with pytest.raises(ValidationError, match="block_size"):
        plugins.find("kv", "paged").Options(block_size=block_size)


@pytest.mark.parametrize("borders", [[1, 3, 5], [0, 3, 3, 5], [0, 4, 3, 5], [0, 3, 4], [0, 3, 6]])
def test_borders_that_do_not_cover_every_row_stop_the_run(borders: list[int]) -> None:
    """Case 37."""
    import numpy as np

    check_cu_seqlens(np.array([0, 3, 5], np.int32), 5)
    with pytest.raises(AssertionError, match=r"cu_seqlens"):
        check_cu_seqlens(np.array(borders, np.int32), 5)


@every_pairing
def test_borders_of_every_pass_are_sound(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 37: begins at 0, never falls, ends at the number of keys, int32; and the rows of a pass are those of the plan."""
    num_views = 0

    def before(engine: Engine, plan: Plan) -> None:
        cache: Any = engine.cache
        plain = type(cache).view

        def view(rows: Any) -> Any:
            nonlocal num_views
            num_views += 1
            made = plain(cache, rows)
            borders = made.cu_seqlens
            assert borders.dtype == "int32" and borders[0] == 0 and (borders[1:] >= borders[:-1]).all()
            assert borders[-1] == sum(row.stop for row in rows) and len(borders) == len(rows) + 1
            return made

        cache.view = view

    def after(_: Engine, plan: Plan, result: StepResult) -> None:
        live = [row.sequence.index for p in result.passes for row in p.rows if row.num_new]
        assert sorted(live) == sorted(row.sequence.index for row in plan.live), "each live row in exactly one pass"

    made = requests(model, "5/6@0 17/3@0 9/9@0 2/4@0 11/5@0")
    options = {"scheduler.max_num_batched_tokens": 6, "kv.block_size": 4}
    engine = run_watched(model, made, scheduler, attn, kv, max_num_seqs=3, options=options, before=before, after=after)
    assert num_views == sum(len(step.passes) for step in engine.steps)
    assert_exact(engine)


@pytest.mark.parametrize("attn", ATTENTIONS)
def test_a_decode_gives_no_weight_to_slots_behind_its_length(model: Model, attn: str) -> None:
    """Case 38: behind the length of a half-filled page stand large finite keys, which would win every softmax."""

    def loud(engine: Engine, _: Plan) -> None:
        cache: Any = engine.cache
        if not engine.steps:
            cache.pool.keys.fill_(1e4)
            cache.pool.values.fill_(1e4)

    engine = run_watched(model, requests(model, "9/12@0 14/12@0", ignore_eos=True), "continuous", attn, "paged", before=loud)
    assert any(reserved > written for step in engine.steps for _, reserved, written in step.kv)
    assert_exact(engine)


@pytest.mark.parametrize(
    ("backend", "device", "dtype", "said"),
    [("flash-attn", "cpu", "float32", "cuda"), ("torch", "cpu", "bfloat16", "cuda"), ("cpu", "cuda", "bfloat16", "cuda"),
     ("auto", "cuda", "float32", "float32"), ("auto", "cpu", "bfloat16", "bfloat16"), ("auto", "mps", "float32", "mps")],
)  # fmt: skip
def test_a_kernel_that_cannot_run_is_refused_by_name(backend: str, device: str, dtype: str, said: str) -> None:
    """Case 40: never a silent change of attention."""
    varlen = plugins.find("attn", "varlen")
    why_not = varlen.cannot_run(device, dtype, varlen.Options(backend=backend))
    assert why_not and "varlen" in why_not and said in why_not


def test_the_kernel_that_runs_is_named() -> None:
    """Case 40."""
    varlen = plugins.find("attn", "varlen")
    assert varlen.cannot_run("cpu", "float32", varlen.Options()) is None
    attention: Any = varlen(varlen.Options())
    assert attention.backend("cpu", "float32") == "cpu"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_virtual_runs_need_no_tensors(scheduler: str) -> None:
    """Accounting alone: no cache allocates before a model is there."""
    from cbbench.request import Request

    engine = run_virtual([Request(f"r{i}", (3,) * 9, 5) for i in range(5)], scheduler)
    assert not hasattr(engine.cache, "pool") and len(engine.steps) > 5
