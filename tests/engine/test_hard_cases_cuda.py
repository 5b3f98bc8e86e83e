"""Faults that other engines really had and that only a GPU can show. The equality gate is defined in fp32; half precision has its own
rule: exact, or a first difference where the two best logits nearly tie, which is reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cbbench import plugins
from cbbench.model.model import Model
from cbbench.model.reference import judge
from tests.support.engines import ALL, ATTENTIONS, CACHES, SCHEDULERS, assert_exact, requests, run, tiny_as
from tests.support.step_hooks import nan_seen

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")]

HALF = ["bfloat16", "float16"]


def runs_in(dtype: str) -> list[str]:
    """Attentions that say they can run in this dtype on a GPU. Static, so that this file can be collected anywhere."""
    return [a for a in ATTENTIONS if plugins.find("attn", a).cannot_run("cuda", dtype, plugins.find("attn", a).Options()) is None]


def model_in(dtype: str, architecture: str = "llama", **changes: Any) -> Model:
    return tiny_as(dtype, "cuda", architecture, **changes)


def assert_by_the_rule(model: Model, engine: Any) -> None:
    """Each request's verdict is exact or tie, and a tie has its position and gap."""
    verdicts = [judge(model, s.request, s.output_ids) for s in engine.sequences]
    assert {v.outcome for v in verdicts} <= {"exact", "tie"}, verdicts
    assert all(v.gap is not None and v.position is not None for v in verdicts if v.outcome == "tie")
    assert engine.cache.free_tokens() == engine.cache.capacity_tokens()


@pytest.mark.parametrize(("scheduler", "attn", "kv"), [arm for arm in ALL if arm[1] in runs_in("float32")])
def test_fp32_is_exact_on_a_gpu(scheduler: str, attn: str, kv: str) -> None:
    """Cases 4 and 5."""
    model = model_in("float32")
    options = {"scheduler.max_num_batched_tokens": 7, "kv.block_size": 7}
    assert_exact(run(model, requests(model, "1/4@0 17/9@0 5/12@0 30/3@0 8/1@0 16/16@0"), scheduler, attn, kv, options=options))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("scheduler", "attn", "kv"), ALL)
def test_half_precision_is_exact_or_tied(dtype: str, scheduler: str, attn: str, kv: str) -> None:
    """Cases 4, 5 and 7."""
    assert attn in runs_in(dtype)
    model = model_in(dtype)
    made = requests(model, "20/32@0 20/32@0 3/32@0 255/8@0 256/8@0 257/8@0", ignore_eos=True)
    assert_by_the_rule(model, run(model, made, scheduler, attn, kv, max_num_seqs=6))


@pytest.mark.parametrize("dtype", ["float32", *HALF])
@pytest.mark.parametrize("kv", CACHES)
def test_rows_that_are_mostly_padding_hold_no_nan_on_a_gpu(dtype: str, kv: str) -> None:
    """Case 12."""
    model = model_in(dtype)
    seen, hooks = nan_seen(model)
    engine = run(model, requests(model, "1/8@0 200/8@0", ignore_eos=True), "static", "padded", kv)
    for hook in hooks:
        hook.remove()
    assert len(seen) >= 8 * 3 and not any(seen)
    assert_by_the_rule(model, engine)


@pytest.mark.parametrize("attn", ATTENTIONS)
def test_fp16_scores_in_the_tens_give_no_nan(attn: str) -> None:
    """Case 14: weights three times as large, so that scores are an order above those of a trained model."""
    model = model_in("float16", initializer_range=1.2)
    seen, hooks = nan_seen(model)
    engine = run(model, requests(model, "1/8@0 60/8@0 9/8@0", ignore_eos=True), "static", attn)
    for hook in hooks:
        hook.remove()
    assert seen and not any(seen)
    assert_by_the_rule(model, engine)


@pytest.mark.parametrize("block_size", [16, 256])
def test_one_long_and_many_short_requests_are_right_in_one_kernel_call(block_size: int) -> None:
    """Case 36: in pages and packed."""
    model = model_in("bfloat16", max_position_embeddings=8192)
    made = requests(model, " ".join(["4000/12@0", *["5/12@0"] * 15]), ignore_eos=True)
    budget = 16 * 4096
    engine = run(model, made, "continuous", "varlen", "paged", max_num_seqs=16, budget_tokens=budget, options={"kv.block_size": block_size})
    assert max(step.live for step in engine.steps) == 16
    copied = sum(step.copied_bytes for step in engine.steps)
    assert (copied == 0) == (block_size == 256), "pages are read in place where the kernel can, and a copy is counted where not"
    assert_by_the_rule(model, engine)


@pytest.mark.parametrize("max_num_seqs", range(1, 34))
def test_every_batch_size_is_right(max_num_seqs: int) -> None:
    """Case 39."""
    single, half = model_in("float32"), model_in("bfloat16")
    spec = " ".join(f"{3 + i % 11}/6@0" for i in range(max_num_seqs))
    for attn in runs_in("float32"):
        engine = run(single, requests(single, spec, ignore_eos=True), attn=attn, max_num_seqs=max_num_seqs)
        assert max(step.live for step in engine.steps) == max_num_seqs
        assert_exact(engine)
    assert_by_the_rule(half, run(half, requests(half, spec, ignore_eos=True), attn="varlen", max_num_seqs=max_num_seqs))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("attn", ATTENTIONS)
def test_windows_are_honoured_on_a_gpu(scheduler: str, attn: str) -> None:
    """Cases 23 to 25."""
    model = model_in("bfloat16", "mistral", sliding_window=8)
    made = requests(model, "5/30@0 20/12@0 1/25@0", ignore_eos=True)
    assert_by_the_rule(model, run(model, made, scheduler, attn, options={"scheduler.max_num_batched_tokens": 6}))


def test_fp32_varlen_is_refused_and_the_half_precision_kernel_is_named() -> None:
    """Case 40."""
    varlen: Any = plugins.find("attn", "varlen")
    assert "float32" in varlen.cannot_run("cuda", "float32", varlen.Options())
    assert varlen(varlen.Options()).backend("cuda", "bfloat16") in ("flash-attn", "torch")
