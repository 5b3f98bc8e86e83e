"""Faults that other engines really had, case 60: cancelling, in every state that a request can be in, and Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cbbench.engine.loop import Engine
from cbbench.model.model import Model
from cbbench.plan import Plan
from cbbench.request import Sequence, State
from tests.support.engines import SCHEDULERS, assert_exact, build, every_pairing, requests
from tests.support.step_hooks import TickClock, Watched, run_watched

SPEC = "20/12@0 17/14@0 20/12@0 6/9@0 9/7@0"
OPTIONS = {"scheduler.max_num_batched_tokens": 9, "kv.block_size": 4, "kv.reserve": "exact"}
Moment = Callable[[Sequence], bool]


def cancel_at(model: Model, scheduler: str, attn: str, kv: str, moment: Moment, budget_tokens: int = 160) -> tuple[Engine, Sequence]:
    """Cancels the first request that is ever seen at this moment, from inside a step, twice, with an unknown id besides."""
    chosen: list[Sequence] = []

    def before(engine: Engine, _: Plan) -> None:
        found = [s for s in engine.sequences if not s.is_over and moment(s)]
        if found and not chosen:
            chosen.append(found[0])
            for request_id in (found[0].request.id, "nobody", found[0].request.id):
                engine.cancel(request_id)
        elif chosen and chosen[0].state is State.CANCELLED:
            engine.cancel(chosen[0].request.id)  # once more, long after

    made = requests(model, SPEC, ignore_eos=True)
    engine = run_watched(model, made, scheduler, attn, kv, max_num_seqs=3, budget_tokens=budget_tokens, options=OPTIONS, before=before)
    assert chosen, "no request was ever in this state"
    return engine, chosen[0]


def assert_left_alone(engine: Engine, cancelled: Sequence) -> None:
    """The others are exact, all memory is back, and the cancelled one is in no later step and keeps its tokens."""
    assert_exact(engine, cancelled=[cancelled.request.id])
    assert cancelled.reason == "cancelled" and len(cancelled.output_ids) < cancelled.request.max_new_tokens
    record = engine.record().requests[cancelled.index]
    assert record.state == "cancelled" and record.output_ids == cancelled.output_ids and len(record.token_times_s) == len(record.output_ids)
    last = [step.step for step in engine.steps if any(index == cancelled.index for index, _, _ in step.kv)]
    assert len(last) < len(engine.steps), "others went on without it"


@every_pairing
def test_a_waiting_request_can_be_cancelled(model: Model, scheduler: str, attn: str, kv: str) -> None:
    engine, cancelled = cancel_at(model, scheduler, attn, kv, lambda s: s.index == 3 and s.state is State.WAITING)
    assert cancelled.first_scheduled_s is None and not cancelled.output_ids
    assert_left_alone(engine, cancelled)


@every_pairing
def test_a_decoding_request_can_be_cancelled(model: Model, scheduler: str, attn: str, kv: str) -> None:
    engine, cancelled = cancel_at(model, scheduler, attn, kv, lambda s: len(s.output_ids) == 3)
    assert len(cancelled.output_ids) == 4, "the step in which it was cancelled still counts"
    assert_left_alone(engine, cancelled)


@pytest.mark.parametrize("attn", ["padded", "serial", "unbatched", "varlen"])
@pytest.mark.parametrize("kv", ["cat", "paged", "preallocated"])
def test_a_request_can_be_cancelled_between_its_chunks(model: Model, attn: str, kv: str) -> None:
    engine, cancelled = cancel_at(model, "chunked", attn, kv, lambda s: 0 < s.num_computed < s.num_prompt - 9)
    assert 0 < cancelled.num_computed < cancelled.num_prompt and not cancelled.output_ids
    assert_left_alone(engine, cancelled)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("kv", ["cat", "paged"])
def test_a_preempted_request_can_be_cancelled(model: Model, scheduler: str, kv: str) -> None:
    engine, cancelled = cancel_at(model, scheduler, "varlen", kv, lambda s: s.state is State.WAITING and s.num_preemptions > 0, 72)
    assert cancelled.output_ids and cancelled.num_computed == 0
    assert_left_alone(engine, cancelled)


@every_pairing
def test_a_request_cancelled_in_the_step_that_ends_it_has_ended(model: Model, scheduler: str, attn: str, kv: str) -> None:
    engine, ended = cancel_at(model, scheduler, attn, kv, lambda s: len(s.output_ids) == s.request.max_new_tokens - 1)
    assert ended.state is State.FINISHED
    assert_exact(engine)


@every_pairing
def test_a_finished_row_that_a_static_batch_holds_is_not_cancelled_any_more(model: Model, scheduler: str, attn: str, kv: str) -> None:
    asked: list[str] = []

    def before(engine: Engine, _: Plan) -> None:
        asked.extend(s.request.id for s in engine.sequences if s.is_over)
        for request_id in asked:
            engine.cancel(request_id)

    engine = run_watched(model, requests(model, SPEC), scheduler, attn, kv, max_num_seqs=3, before=before)
    assert asked
    assert_exact(engine)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_request_that_has_not_arrived_can_be_cancelled(model: Model, scheduler: str) -> None:
    made = requests(model, "5/6@0 9/6@3 7/5@4")
    engine = build(model, made, scheduler, clock=TickClock())
    engine.cancel("r1")
    with model.serving():
        engine.run(made)
    assert_exact(engine, cancelled=["r1"])
    assert engine.record().requests[1].submitted_s is None and not any(row[1] == 1 for step in engine.steps for row in step.rows)


@every_pairing
def test_all_requests_can_be_cancelled_at_once(model: Model, scheduler: str, attn: str, kv: str) -> None:
    def before(engine: Engine, _: Plan) -> None:
        if len(engine.steps) == 4:
            for sequence in engine.sequences:
                engine.cancel(sequence.request.id)

    engine = run_watched(model, requests(model, SPEC, ignore_eos=True), scheduler, attn, kv, max_num_seqs=3, options=OPTIONS, before=before)
    assert len(engine.steps) == 5
    assert_exact(engine, cancelled=[s.request.id for s in engine.sequences])


def test_unknown_ids_change_nothing(model: Model) -> None:
    made = requests(model, SPEC)
    engine = run_watched(model, made, before=lambda engine, _: engine.cancel(f"nobody{len(engine.steps)}"))
    assert_exact(engine)
    assert len(engine.steps) > 9 and len(engine.to_cancel) <= 1, "names do not pile up"


@every_pairing
def test_ctrl_c_leaves_a_record_of_what_ran_and_the_model_as_it_was(model: Model, scheduler: str, attn: str, kv: str) -> None:
    def interrupt(engine: Engine, _: Plan) -> None:
        if len(engine.steps) == 4:
            raise KeyboardInterrupt

    made = requests(model, SPEC, ignore_eos=True)
    engine = build(model, made, scheduler, attn, kv)
    engine.executor = Watched(engine, interrupt, None)
    own = model.hf.config._attn_implementation
    with pytest.raises(KeyboardInterrupt), model.serving():
        engine.run(made)
    assert model.hf.config._attn_implementation == own
    record = engine.record(interrupted=True)
    assert record.interrupted and len(record.step_lines()) == 4 and len(record.request_lines()) == len(made)
    for line, request in zip(record.request_lines(), made, strict=True):
        got = tuple(line["output_ids"])
        assert got == (request.output_ids or ())[: len(got)] and line["state"] in ("running", "waiting")
