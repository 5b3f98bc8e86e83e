"""Faults that other engines really had, section B: masks and padding."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cbbench.model.model import Model
from cbbench.model.reference import judge
from cbbench.request import Request
from tests.support.engines import (
    ATTENTIONS,
    CACHES,
    SCHEDULERS,
    assert_exact,
    every_pairing,
    requests,
    run,
    step_kinds,
    tiny,
    tiny_as,
    with_reference,
)
from tests.support.step_hooks import TickClock, nan_seen


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kv", CACHES)
def test_rows_that_are_mostly_padding_hold_no_nan(dtype: str, kv: str) -> None:
    """Case 12 on CPU."""
    model = tiny_as(dtype, "cpu")
    seen, hooks = nan_seen(model)
    engine = run(model, requests(model, "1/8@0 200/8@0", ignore_eos=True), "static", "padded", kv)
    for hook in hooks:
        hook.remove()
    assert engine.steps[0].passes[0][2] == 199, "one row was all padding but its last column"
    assert len(seen) >= 8 * 3 and not any(seen)
    if dtype == "float32":
        assert_exact(engine)
    assert {judge(model, s.request, s.output_ids).outcome for s in engine.sequences} <= {"exact", "tie"}


def test_a_chunk_over_a_longer_cache_is_aligned_to_its_end(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 15: `is_causal` is aligned to the top left, so it may stand only where queries and keys are as many."""
    calls, plain = [], F.scaled_dot_product_attention

    def spy(q: torch.Tensor, k: torch.Tensor, *rest: Any, is_causal: bool = False, **options: Any) -> torch.Tensor:
        calls.append((q.shape[-2], k.shape[-2], is_causal))
        return plain(q, k, *rest, is_causal=is_causal, **options)

    made = requests(model, "20/8@0", ignore_eos=True)
    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    engine = run(model, made, "chunked", "serial", options={"scheduler.max_num_batched_tokens": 6})
    assert [row[3] for step in engine.steps[:4] for row in step.rows] == [6, 6, 6, 2]
    assert {(q, k) for q, k, _ in calls} >= {(6, 6), (6, 12), (6, 18), (2, 20), (1, 27)}
    assert all(q == k for q, k, is_causal in calls if is_causal)
    assert_exact(engine)


@every_pairing
def test_equal_lengths_then_unequal_ones_are_both_exact(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 17: one attention object sees a batch that needs no padding, then one that does."""
    spec = "6/3@0 6/3@0 6/3@0 2/4@9 11/4@9 7/4@9"
    engine = run(model, requests(model, spec, ignore_eos=True), scheduler, attn, kv, max_num_seqs=3, clock=TickClock())
    prefills = [
        sorted(row[3] for row in step.rows) for step in engine.steps if len(step.rows) == 3 and all(row[2] == 0 for row in step.rows)
    ]
    assert prefills == [[6, 6, 6], [2, 7, 11]]
    assert_exact(engine)


@every_pairing
def test_pad_and_end_ids_inside_a_prompt_are_tokens_like_others(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 18."""
    rng = random.Random(4)
    prompts = [[rng.choice((0, 1, 2, 0, 2, rng.randrange(3, 300))) for _ in range(n)] for n in (5, 14, 9)]
    prompts[0][-1], prompts[1][0] = 0, 2
    made = [with_reference(model, Request(f"r{i}", tuple(p), 9)) for i, p in enumerate(prompts)]
    assert all({0, 2} & set(request.prompt_ids) for request in made)
    assert_exact(run(model, made, scheduler, attn, kv))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("attn", ATTENTIONS)
def test_the_id_that_pads_is_never_attended_to(scheduler: str, attn: str) -> None:
    """Case 19: no pad token is needed, and what stands in its place could be NaN."""
    model = tiny(pad_token_id=None, rms_norm_eps=1.1e-6)  # the norm only makes it a model of its own
    made = requests(model, "3/8@0 12/8@0 7/8@0", seed=1, ignore_eos=True)
    assert model.hf.config.pad_token_id is None and not any(0 in (*r.prompt_ids, *(r.output_ids or ())) for r in made)
    with torch.no_grad():
        model.hf.get_input_embeddings().weight[0] = torch.nan
    engine = run(model, made, scheduler, attn)
    assert (sum(passed[2] for passed in engine.steps[0].passes) == 9 + 5) == (attn == "padded")
    assert_exact(engine)


@pytest.mark.parametrize("kv", CACHES)
@pytest.mark.parametrize("attn", ATTENTIONS)
def test_decodes_and_prompt_chunks_share_a_step_without_mixing_up(model: Model, attn: str, kv: str) -> None:
    """Case 20."""
    spec = "4/30@0 3/30@0 5/30@0 4/30@0 60/9@0.05"
    options = {"scheduler.max_num_batched_tokens": 16}
    engine = run(model, requests(model, spec, ignore_eos=True), "chunked", attn, kv, max_num_seqs=5, options=options, clock=TickClock())
    mixed = [step for step in engine.steps if len(step.rows) == 5 and step.rows[-1][3] > 1]
    assert len(mixed) >= 4 and "mixed" in step_kinds(engine)
    assert all([row[3] for row in step.rows[:4]] == [1, 1, 1, 1] for step in mixed), "decodes first"
    assert_exact(engine)
