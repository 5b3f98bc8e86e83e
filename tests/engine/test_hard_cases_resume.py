"""Faults that other engines really had, section E: preemption and resume. The plug-in schedulers here force what must come out right."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from pydantic import Field

from cbbench.engine.loop import Engine
from cbbench.model.model import Model
from cbbench.plan import Plan, Room
from cbbench.request import State
from cbbench.schedulers.continuous import Continuous
from tests.support.engines import ATTENTIONS, CACHES, SCHEDULERS, assert_exact, every_pairing, num_preemptions, requests, run
from tests.support.step_hooks import queued_for_memory, run_watched

GROWING = ("cat", "paged", "prefix")


class EvictsAll(Continuous):
    """Takes the memory of every running sequence away once, when the oldest has `after` output tokens."""

    class Options(Continuous.Options):
        after: int = Field(1, ge=1)

    options: Options
    done = False

    def plan(self, now_s: float, room: Room) -> Plan:
        if not self.done and self.running and len(self.running[0].output_ids) == self.options.after:
            self.done = True
            while self.running:
                self.give_way(room)
        return super().plan(now_s, room)


class EvictsOldest(Continuous):
    """Where memory runs short the oldest gives way, also when it is the one that asks."""

    def give_way(self, room: Room) -> None:
        oldest = self.running.pop(0)
        room.preempt(oldest)
        self.waiting.appendleft(oldest)


@pytest.fixture
def positions(model: Model) -> Iterator[dict[int, list[int]]]:
    """The position ids that the model itself was given, by sequence, over the run."""
    seen: dict[int, list[int]] = {}

    def look(_: torch.nn.Module, __: Any, given: dict[str, Any]) -> None:
        if "cbbench" not in given:
            return
        forward_pass, ids = given["cbbench"].forward_pass, given["position_ids"]
        if forward_pass.width is None:
            by_row = ids[0].split([row.num_new for row in forward_pass.rows])
        else:
            by_row = [line[len(line) - row.num_new :] for line, row in zip(ids, forward_pass.rows, strict=True)]
        for row, part in zip(forward_pass.rows, by_row, strict=True):
            seen.setdefault(row.sequence.index, []).extend(part.tolist())

    hook = model.hf.register_forward_pre_hook(look, with_kwargs=True)
    yield seen
    hook.remove()


@every_pairing
def test_two_that_outgrow_the_pool_together_are_exact(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 41: B = 16, N = 3; each needs its second block at 17 tokens, and there is one."""
    options = {"kv.block_size": 16, "kv.reserve": "exact"}
    engine = run(model, requests(model, "15/20@0 15/20@0", ignore_eos=True), scheduler, attn, kv, budget_tokens=48, options=options)
    assert num_preemptions(engine) > 0 if kv in GROWING else queued_for_memory(engine) or num_preemptions(engine) > 0
    assert_exact(engine)


@every_pairing
def test_every_position_is_computed_once_a_life(model: Model, positions: dict[int, list[int]], scheduler: str, attn: str, kv: str) -> None:
    """Case 44: 0, 1, 2, ... over prefill, chunks, decode; after a preemption once more from 0, or from behind what the cache still
    knows, and never one too high."""
    made = requests(model, "9/14@0 11/12@0 8/15@0", ignore_eos=True)
    options = {"scheduler.max_num_batched_tokens": 7, "kv.block_size": 4, "kv.reserve": "exact"}
    engine = run(model, made, scheduler, attn, kv, budget_tokens=48, options=options)
    assert num_preemptions(engine) > 0 or kv not in GROWING
    for sequence in engine.sequences:
        seen = positions[sequence.index]
        starts = [0, *(i for i, (before, position) in enumerate(pairwise(seen), 1) if position != before + 1)]
        lives = [seen[a:b] for a, b in zip(starts, [*starts[1:], len(seen)], strict=True)]
        assert len(lives) <= 1 + sequence.num_preemptions and seen[0] == 0
        assert all(life == list(range(life[0], life[0] + len(life))) and (life[0] == 0 or kv == "prefix") for life in lives)
        assert all(later[0] % 4 == 0 and later[0] <= before[-1] for before, later in pairwise(lives))
        assert lives[-1][-1] + 1 == sequence.request.max_kv_tokens, "the last token is never fed back"
        assert len(seen) == sequence.request.max_kv_tokens + sequence.recomputed_tokens
    assert_exact(engine)


@pytest.mark.parametrize("kv", CACHES)
@pytest.mark.parametrize("attn", ATTENTIONS)
@pytest.mark.parametrize("after", [1, 5, 12], ids=["one token", "some", "three blocks"])
def test_all_preempted_at_once_resume_by_a_prefill_over_prompt_and_output(model: Model, attn: str, kv: str, after: int) -> None:
    """Cases 45 and 46: "has output" is no decode, and no token is lost or doubled (B = 4)."""
    made = requests(model, "7/20@0 12/20@0 3/20@0", ignore_eos=True)
    options = {"scheduler.after": after, "kv.block_size": 4}
    engine = run(model, made, f"{__name__}:EvictsAll", attn, kv, budget_tokens=120, options=options)
    (resumed,) = [step for step in engine.steps if step.preempted]
    assert sorted(resumed.preempted) == [0, 1, 2]
    tokens = [7 + after, 12 + after, 3 + after]
    known = [(num - 1) // 4 * 4 if kv == "prefix" else 0 for num in tokens]  # its own blocks, but not the last token
    assert [row[1:] for row in resumed.rows] == [(i, start, num - start) for i, (start, num) in enumerate(zip(known, tokens, strict=True))]
    assert kv == "prefix" or {passed[0] for passed in resumed.passes} == {"prefill"}
    assert [s.recomputed_tokens for s in engine.sequences] == [num - 1 - start for start, num in zip(known, tokens, strict=True)]
    assert all(len(s.output_ids) == 20 == len(s.token_times_s) for s in engine.sequences)
    assert_exact(engine)


@pytest.mark.parametrize("kv", GROWING)
@pytest.mark.parametrize("attn", ATTENTIONS)
def test_a_sequence_that_preempts_itself_is_in_one_queue(model: Model, attn: str, kv: str) -> None:
    """Case 48: B = 16, N = 3, the plug-in makes the oldest the victim of its own growth."""
    itself = 0

    def before(engine: Engine, plan: Plan) -> None:
        nonlocal itself
        scheduler = engine.scheduler
        both = {s.index for s in scheduler.waiting} & {s.index for s in scheduler.running}
        assert not both and all(row.sequence in scheduler.running for row in plan.rows)
        assert len(plan.rows) == len({row.sequence.index for row in plan.rows})
        assert all(s.index not in engine.cache.written for s in scheduler.waiting), "a waiting sequence holds no memory"
        itself += sum(s.num_preemptions > 0 and s.index == 0 for s in scheduler.waiting)

    made = requests(model, "15/20@0 15/20@0", ignore_eos=True)
    arm: dict[str, Any] = {"budget_tokens": 48, "options": {"kv.block_size": 16}}
    engine = run_watched(model, made, f"{__name__}:EvictsOldest", attn, kv, before=before, **arm)
    assert itself > 0 and engine.sequences[0].num_preemptions > 0
    assert_exact(engine)


@pytest.mark.parametrize("kv", GROWING)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_preempted_sequence_keeps_its_tokens_and_their_times(model: Model, scheduler: str, kv: str) -> None:
    """Case 46: what was said stays said; only keys and values are computed again."""
    told: dict[int, list[int]] = {}

    def before(engine: Engine, _: Plan) -> None:
        for sequence in engine.sequences:
            assert sequence.output_ids[: len(told.get(sequence.index, []))] == told.get(sequence.index, [])
            told[sequence.index] = list(sequence.output_ids)
            if sequence.state is State.WAITING and sequence.num_preemptions:
                assert sequence.num_computed == 0

    made = requests(model, "9/24@0 11/22@0 8/25@0", ignore_eos=True)
    engine = run_watched(model, made, scheduler, "varlen", kv, budget_tokens=64, options={"kv.block_size": 8}, before=before)
    assert num_preemptions(engine) > 0
    for sequence in engine.sequences:
        assert sequence.token_times_s == sorted(set(sequence.token_times_s)) and len(sequence.token_times_s) == len(sequence.output_ids)
    assert_exact(engine)
