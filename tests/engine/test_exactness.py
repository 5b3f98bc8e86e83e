"""Every pairing gives the tokens of plain greedy generation. A new strategy file is tested here without a change.

Each test first proves that what it is about took place: equal tokens of a run in which nothing happened prove nothing.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from cbbench.model.model import Model
from tests.support.engines import (
    ATTENTIONS,
    CACHES,
    CONFIGS,
    SCHEDULERS,
    assert_exact,
    build,
    every_pairing,
    num_preemptions,
    requests,
    run,
    run_virtual,
    step_kinds,
    tiny,
)
from tests.support.step_hooks import TickClock, queued_for_memory, split_chunks

MIXED = "1/4@0 17/9@0 5/12@0 30/3@0 8/1@0 16/16@0 3/20@0 33/7@0 2/11@0"
GROWING = ("cat", "paged", "prefix")  # caches that take memory as a sequence grows, so that others may have to give way
SMALL = {"scheduler.max_num_batched_tokens": 7, "kv.block_size": 7, "kv.reserve": "exact"}


@every_pairing
@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_pairing_is_exact(architecture: str, scheduler: str, attn: str, kv: str) -> None:
    model = tiny(architecture)
    engine = run(model, requests(model, MIXED), scheduler, attn, kv, options={"scheduler.max_num_batched_tokens": 7, "kv.block_size": 7})
    assert len({len(s.output_ids) for s in engine.sequences}) > 3
    assert len({token for s in engine.sequences for token in s.output_ids}) > 30
    assert_exact(engine)


@every_pairing
def test_arrivals_during_the_run_leave_every_pairing_exact(model: Model, scheduler: str, attn: str, kv: str) -> None:
    spec = "12/9@0 30/7@0.02 5/12@0.04 17/3@0.05 1/4@0.06 9/8@0.07 3/6@5 20/5@5.01"
    engine = run(model, requests(model, spec), scheduler, attn, kv, max_num_seqs=3, options=SMALL, clock=TickClock())
    submitted = [engine.submitted_s[s.index] for s in engine.sequences]
    assert sum(engine.steps[0].end_s < moment < 5 for moment in submitted) >= 4, "requests came while others ran"
    assert any(step.start_s >= 5 for step in engine.steps) and len({step.waiting for step in engine.steps}) > 1, (
        "the engine waited, and so did requests"
    )
    assert ("mixed" in step_kinds(engine)) == (scheduler != "static")
    assert_exact(engine)


@every_pairing
def test_memory_that_runs_short_leaves_every_pairing_exact(model: Model, scheduler: str, attn: str, kv: str) -> None:
    made = requests(model, "9/24@0 11/22@0 8/25@0 10/18@0 20/12@0 3/9@0", ignore_eos=True)
    engine = run(model, made, scheduler, attn, kv, budget_tokens=77, options={**SMALL, "scheduler.max_num_batched_tokens": 24})
    if kv in GROWING:
        assert num_preemptions(engine) > 0 and sum(s.recomputed_tokens for s in engine.sequences) > 0
    else:
        assert num_preemptions(engine) or queued_for_memory(engine)
    assert_exact(engine)


@pytest.mark.parametrize("kv", CACHES)
@pytest.mark.parametrize("attn", ATTENTIONS)
@pytest.mark.parametrize("budget", [1, 3, 5])
def test_chunks_smaller_than_a_block_are_exact(model: Model, attn: str, kv: str, budget: int) -> None:
    options = {"scheduler.max_num_batched_tokens": budget, "kv.block_size": 16}
    engine = run(model, requests(model, "20/6@0 33/5@0 7/9@0"), "chunked", attn, kv, options=options)
    assert split_chunks(engine) > 6
    assert budget == 1 or "mixed" in step_kinds(engine)
    assert_exact(engine)


@pytest.mark.parametrize("attn", ATTENTIONS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("block_size", [1, 7, 16])
def test_block_sizes_are_exact(model: Model, scheduler: str, attn: str, block_size: int) -> None:
    options = {"scheduler.max_num_batched_tokens": 11, "kv.block_size": block_size}
    engine = run(model, requests(model, MIXED), scheduler, attn, "paged", options=options)
    reserved = {reserved for step in engine.steps for _, reserved, _ in step.kv}
    assert all(tokens % block_size == 0 for tokens in reserved) and len(reserved) > 2
    assert_exact(engine)


@pytest.mark.parametrize("attn", ATTENTIONS)
@pytest.mark.parametrize("reserve", ["max_len", "pow2", "exact"])
@pytest.mark.parametrize("placement", ["first-fit", "buddy"])
def test_arena_options_are_exact_also_with_too_little_room(model: Model, attn: str, reserve: str, placement: str) -> None:
    options = {"kv.reserve": reserve, "kv.placement": placement}
    engine = run(model, requests(model, MIXED), "continuous", attn, "preallocated", budget_tokens=64, options=options)
    assert queued_for_memory(engine) and num_preemptions(engine) == 0
    assert_exact(engine)


@pytest.mark.parametrize("kv", CACHES)
@pytest.mark.parametrize("attn", ATTENTIONS)
def test_a_static_batch_holds_finished_rows_and_stays_exact(model: Model, attn: str, kv: str) -> None:
    engine = run(model, requests(model, "5/2@0 9/12@0 14/7@0 3/1@0", ignore_eos=True), "static", attn, kv)
    positions = sum(passed[1] for step in engine.steps for passed in step.passes)
    tokens = sum(s.num_computed for s in engine.sequences)
    assert sum(step.held for step in engine.steps) == 10 + 5 + 11
    assert positions == (tokens + 26 + (9 + 5 + 0 + 11) if attn == "padded" else tokens), "only a rectangle computes held rows"
    assert_exact(engine)


@every_pairing
def test_early_ends_and_ignored_ends_are_exact(scheduler: str, attn: str, kv: str) -> None:
    model = tiny(eos_token_id=list(range(2, 300, 6)))
    stopping = requests(model, "5/16@0 9/16@0 3/16@0 20/16@0")
    running_on = requests(model, "5/16@0 9/16@0 3/16@0 20/16@0", seed=1, ignore_eos=True)
    made = [*stopping, *(type(r)(f"on-{r.id}", r.prompt_ids, r.max_new_tokens, 0.0, True, r.output_ids) for r in running_on)]
    engine = run(model, made, scheduler, attn, kv, options=SMALL)
    assert {s.reason for s in engine.sequences[:4]} >= {"eos"} and len({len(s.output_ids) for s in engine.sequences[:4]}) > 2
    assert all(s.reason == "length" for s in engine.sequences[4:])
    assert any(set(s.output_ids[:-1]) & model.eos_ids for s in engine.sequences[4:]), "an end of sequence came and was ignored"
    assert_exact(engine)


@every_pairing
def test_a_virtual_run_plans_and_counts_what_the_real_one_does(model: Model, scheduler: str, attn: str, kv: str) -> None:
    arm: dict[str, Any] = {"budget_tokens": 77, "options": SMALL}
    made = requests(model, MIXED)
    real, virtual = run(model, made, scheduler, attn, kv, **arm), run_virtual(made, scheduler, attn, kv, **arm)
    assert len(real.steps) > 20
    assert [(s.rows, s.passes, s.kv, s.free_tokens, s.preempted) for s in real.steps] == [
        (s.rows, s.passes, s.kv, s.free_tokens, s.preempted) for s in virtual.steps
    ]


@pytest.mark.parametrize("kv", CACHES)
def test_the_pools_of_these_tests_are_poisoned(model: Model, kv: str) -> None:
    engine = build(model, requests(model, MIXED), kv=kv)
    pool: Any = getattr(engine.cache, "pool", None)
    assert pool is not None or kv == "cat", "a cache without a pool keeps no memory that was never written"
    if pool is not None:
        assert pool.keys.isnan().all() and pool.values.isnan().all() and pool.keys.numel() > 0
    blocks = getattr(engine.cache, "free_blocks", None)
    assert (blocks is not None) == (kv in ("paged", "prefix"))
    assert blocks is None or blocks not in (sorted(blocks), sorted(blocks)[::-1])


def test_the_model_has_its_own_attention_back_after_a_run_and_after_a_failure(model: Model) -> None:
    own = model.hf.config._attn_implementation
    ids = torch.tensor([random.Random(0).choices(range(3, 300), k=9)])
    before = model.hf(ids).logits
    with model.serving():
        assert model.hf.config._attn_implementation != own
    with pytest.raises(RuntimeError), model.serving():
        raise RuntimeError
    assert model.hf.config._attn_implementation == own
    assert torch.equal(model.hf(ids).logits, before)
