"""Faults that other engines really had, section F: capacity and liveness. Most need no model: a virtual run plans the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from cbbench import plugins
from cbbench.errors import StuckError
from cbbench.model.model import Model
from cbbench.plan import Plan, Room
from cbbench.request import Request, State
from cbbench.schedulers.base import Scheduler
from tests.support.engines import (
    ATTENTIONS,
    CACHES,
    SCHEDULERS,
    assert_exact,
    every_pairing,
    num_preemptions,
    requests,
    run,
    run_virtual,
    tiny,
)
from tests.support.step_hooks import split_chunks


class PlansNothing(Scheduler):
    def plan(self, now_s: float, room: Room) -> Plan:
        return Plan()


class TreadsWater(Scheduler):
    """Gives everything back after each step: always busy, never further."""

    def plan(self, now_s: float, room: Room) -> Plan:
        while self.running:
            self.give_way(room)
        self.admit(room)
        return Plan([self.rest_of(sequence) for sequence in self.running if not sequence.output_ids] or [self.first_of(room)])

    def first_of(self, room: Room) -> Any:
        row = self.rest_of(self.running[0])
        row.num_new = 1
        return row


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny(max_position_embeddings=2048)


BLOCKS = ("paged", "prefix")  # memory in blocks


def asked(spec: str) -> list[Request]:
    """p/g@t without a model, no two prompts alike, every output as long as allowed."""
    lengths = [[float(x) for x in re.split("[/@]", word)] for word in spec.split()]
    return [Request(f"r{i}", (3 + i,) * int(p), int(g), t, output_ids=tuple(range(int(g)))) for i, (p, g, t) in enumerate(lengths)]


@every_pairing
def test_a_request_larger_than_the_pool_is_refused_and_the_others_finish(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 49: B = 16, N = 2; 39 positions need 3 blocks."""
    made = requests(model, "5/5@0 30/10@0 9/6@0")
    options = {"kv.block_size": 16, "kv.reserve": "exact"}
    engine = run(model, made, scheduler, attn, kv, budget_tokens=32, options=options)
    assert_exact(engine, refused=["r1"])
    needed, available = ("3", "2") if kv in BLOCKS else ("39", "32")
    assert re.findall(r"\d+", (engine.sequences[1].reason or "").replace("of 16", "")) == [needed, available]


@every_pairing
def test_a_prompt_over_the_pool_does_not_block_the_queue(model: Model, scheduler: str, attn: str, kv: str) -> None:
    """Case 50: within the model's positions, over the pool."""
    options = {"kv.block_size": 16, "kv.reserve": "exact"}
    engine = run(model, requests(model, "5/5@0 1000/5@0 5/5@0"), scheduler, attn, kv, budget_tokens=512, options=options)
    assert_exact(engine, refused=["r1"])
    assert engine.sequences[1].first_scheduled_s is None and not engine.sequences[1].output_ids


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("kv", CACHES)
@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_an_exact_fit_runs_and_one_token_more_is_refused(scheduler: str, kv: str, block_size: int) -> None:
    """Cases 51 and 52: no hidden null block, and admission and scheduler keep one rule."""
    options = {"kv.block_size": block_size, "kv.reserve": "exact"}
    engine = run_virtual(asked("40/9@0"), scheduler, kv=kv, budget_tokens=48, options=options)
    assert_exact(engine)
    assert max(written for step in engine.steps for _, _, written in step.kv) == 48 and engine.steps[-1].free_tokens == 0
    for spec in ("40/10@0", "41/9@0"):
        assert_exact(run_virtual(asked(spec), scheduler, kv=kv, budget_tokens=48, options=options), refused=["r0"])


@pytest.mark.parametrize("kv", CACHES)
def test_a_chunked_prompt_has_all_its_room_before_its_first_chunk(kv: str) -> None:
    """Case 53: two prompts of 200, a pool for 1.3 of them."""
    options = {"scheduler.max_num_batched_tokens": 32, "kv.reserve": "exact"}
    engine = run_virtual(asked("200/20@0 200/20@0"), "chunked", kv=kv, budget_tokens=288, options=options)
    assert split_chunks(engine) >= 12
    for step in engine.steps:
        assert all(reserved >= 200 for _, reserved, _ in step.kv)
    assert num_preemptions(engine) == 0 and sum(s.recomputed_tokens for s in engine.sequences) == 0
    assert_exact(engine)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("kv", CACHES)
def test_nobody_overtakes_a_large_request_and_queue_times_show_it(scheduler: str, kv: str) -> None:
    """Case 55: the documented policy. Small ones would fit beside the first, and wait behind the second."""
    spec = " ".join(["200/8@0", "400/4@0", *["4/4@0"] * 20])
    engine = run_virtual(asked(spec), scheduler, kv=kv, max_num_seqs=8, budget_tokens=448, options={"kv.reserve": "exact"})
    first, big, *small = (s.first_scheduled_s for s in engine.sequences)
    assert first == 0 and big is not None and big >= 8, "the large one waits until the first has left"
    assert all(moment is not None and moment >= big for moment in small)
    assert_exact(engine)


@pytest.mark.parametrize("attn", ATTENTIONS)
@pytest.mark.parametrize("budget", [1, 2, 8])
def test_a_budget_below_a_block_or_the_number_of_sequences_makes_progress_each_step(model: Model, attn: str, budget: int) -> None:
    """Case 56: T = 8 with B = 16; T = 1; T = 2 with S = 4."""
    options = {"scheduler.max_num_batched_tokens": budget, "kv.block_size": 16}
    engine = run(model, requests(model, "20/4@0 9/5@0 1/6@0 13/3@0 5/4@0"), "chunked", attn, options=options)
    assert all(0 < sum(row[3] for row in step.rows) <= budget for step in engine.steps)
    assert_exact(engine)


@pytest.mark.parametrize("budget", [0, -1, True, "8", 1.5])
def test_a_budget_that_is_no_positive_integer_is_refused(budget: object) -> None:
    """Case 56."""
    with pytest.raises(ValidationError, match="max_num_batched_tokens"):
        plugins.find("scheduler", "chunked").Options(max_num_batched_tokens=budget)


@every_pairing
def test_requests_that_end_at_their_first_token_free_their_slot(scheduler: str, attn: str, kv: str) -> None:
    """Case 58: S = 2, ten of one token, and ten whose first token is an end of sequence."""
    plain = tiny()
    ends = sorted({(r.output_ids or ())[0] for r in requests(plain, " ".join(f"{p}/1@0" for p in range(3, 13)))})
    model = tiny(eos_token_id=ends)
    short = requests(model, " ".join(f"{p}/1@0" for p in range(3, 13)))
    eos = [Request(f"e{r.id}", r.prompt_ids, 30, output_ids=r.output_ids) for r in short]
    engine = run(model, [*short, *eos], scheduler, attn, kv, max_num_seqs=2)
    assert max(step.live for step in engine.steps) == 2 and all(len(s.output_ids) == 1 for s in engine.sequences)
    assert [s.reason for s in engine.sequences[10:]] == ["eos"] * 10
    assert_exact(engine)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("kv", CACHES)
def test_a_workload_of_refused_requests_and_an_empty_one_end_by_themselves(scheduler: str, kv: str) -> None:
    """Case 50's kind: nothing to run is no reason to wait for ever."""
    engine = run_virtual(asked("90/5@0 70/5@3"), scheduler, kv=kv, budget_tokens=32)
    assert_exact(engine, refused=["r0", "r1"])
    assert not engine.steps and not run_virtual([], scheduler, kv=kv, budget_tokens=32).steps


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_prompt_without_tokens_is_refused_alone(model: Model, scheduler: str) -> None:
    """Case 76, in the engine."""
    good = requests(model, "5/5@0 9/3@0")
    engine = run(model, [good[0], Request("empty", (), 5), good[1]], scheduler)
    assert_exact(engine, refused=["empty"])
    assert engine.sequences[1].reason == "the prompt has no tokens"


def test_a_scheduler_that_plans_nothing_is_stopped_with_a_dump() -> None:
    """Case 50's kind: an engine with work that cannot move says so."""
    with pytest.raises(StuckError, match=r"plans nothing although there is work(.|\n)*r0: waiting, 0 of 5 computed"):
        run_virtual(asked("5/5@0"), f"{__name__}:PlansNothing")


def test_a_scheduler_that_computes_the_same_for_ever_is_stopped_with_a_dump() -> None:
    """Case 56's kind: steps that make no progress are bounded."""
    with pytest.raises(StuckError, match=r"computes nothing new for \d+ steps(.|\n)*r0: "):
        run_virtual(asked("5/5@0"), f"{__name__}:TreadsWater", budget_tokens=16)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_states_at_the_end_are_finished_or_refused(scheduler: str) -> None:
    engine = run_virtual(asked("5/5@0 90/5@0 3/2@7"), scheduler, budget_tokens=32, kv="paged")
    assert [s.state for s in engine.sequences] == [State.FINISHED, State.REFUSED, State.FINISHED]
