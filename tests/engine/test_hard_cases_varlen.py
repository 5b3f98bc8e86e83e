"""Faults that other engines really had, section D: varlen attention, block tables, borders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cbbench import plugins
from cbbench.attention._varlen_cuda import check_cu_seqlens
from cbbench.engine.executor import StepResult
from cbbench.engine.loop import Engine
from cbbench.model.model import Model
from cbbench.plan import Plan
from cbbench.request import Request
from tests.support.engines import ATTENTIONS, CACHES, SCHEDULERS, assert_exact, every_pairing, requests, run, run_virtual
from tests.support.step_hooks import run_watched, split_chunks


@pytest.mark.parametrize("kv", CACHES)
@pytest.mark.parametrize("attn", ATTENTIONS)
@pytest.mark.parametrize("scheduler", ["static", "chunked"])
def test_a_sequence_that_samples_nothing_gets_no_token(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Cases 31 and 84: held rows, waiting requests and prompts cut short; those without tokens are in no packed pass."""
    expected: dict[int, int] = {}
    num_silent = 0

    def before(engine: Engine, _: Plan) -> None:
        assert {s.index: len(s.output_ids) for s in engine.sequences} == (expected or dict.fromkeys(range(16), 0))

    def after(engine: Engine, plan: Plan, result: StepResult) -> None:
        nonlocal num_silent
        sampled = {sequence.index for sequence, _ in result.tokens}
        assert sampled == {row.sequence.index for row in plan.rows if row.samples}
        assert all(row.num_new for forward_pass in result.passes for row in forward_pass.rows if forward_pass.width is None)
        num_silent += sum(not row.samples for row in plan.rows)
        expected.update({s.index: len(s.output_ids) + (s.index in sampled) for s in engine.sequences})

    made = requests(model, " ".join([f"{2 + i % 5}/{3 + i % 4}@0" for i in range(14)] + ["40/4@0", "33/5@0"]))
    options = {"scheduler.max_num_batched_tokens": 5}
    engine = run_watched(model, made, scheduler, attn, kv, max_num_seqs=16, options=options, before=before, after=after)
    assert num_silent > 10 and (split_chunks(engine) > 5) == (scheduler == "chunked")
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
    engine = run_virtual([Request(f"r{i}", (3,) * 9, 5) for i in range(5)], scheduler)
    assert not hasattr(engine.cache, "pool") and len(engine.steps) > 5
