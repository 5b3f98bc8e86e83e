"""Closed loop: a turn comes its think time after the turn before has ended, however that ended, and counts from then.
Times are those of a virtual clock, one second a step.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.clock import Clock, VirtualClock
from cbbench.engine.executor import Executor, StepResult, VirtualExecutor
from cbbench.engine.loop import Engine
from cbbench.kvcache.base import KVSpec
from cbbench.plan import Plan
from cbbench.request import Request, State
from tests.support.engines import CACHES, SCHEDULERS, strategies
from tests.support.step_hooks import Before, TickClock, Watched
from tests.support.virtual_runs import metrics

TURN = re.compile(r"(\w+):(\d+)/(\d+)(?:@([\d.]+))?(?:>(\w+)\+([\d.]+))?")
every_scheduler = pytest.mark.parametrize("scheduler", SCHEDULERS)


def turns(text: str) -> list[Request]:
    """`a:3/2@1 b:4/5>a+2`: a with 3 prompt and 2 output tokens at 1; b, 2 seconds after a has ended."""
    words = [TURN.fullmatch(word) for word in text.split()]
    groups = [word.groups() for word in words if word]
    return [
        Request(name, tuple(range(1, int(prompt) + 1)), int(new), float(at or 0), True, after=after, think_s=float(think or 0))
        for name, prompt, new, at, after, think in groups
    ]


class Sleeping(VirtualExecutor):
    """Steps that take their time on any clock."""

    def step(self, plan: Plan, clock: Clock) -> StepResult:
        clock.wait_until(clock.now() + self.step_s)
        return StepResult([(row.sequence, 0) for row in plan.live if row.samples], self.attention.lay_out(plan), self.step_s)


def play(
    asked: list[Request], *arm: str, before: Before | None = None, clock: Clock | None = None, step_s: float = 1, **limits: Any
) -> Engine:
    made = strategies(KVSpec(2, 2, 16, 4), asked, *arm, **limits)
    executor: Executor = (
        VirtualExecutor(made["attn"], made["kv"], step_s, 0) if clock is None else Sleeping(made["attn"], made["kv"], step_s, 0)
    )
    engine = Engine(made["scheduler"], made["kv"], executor, clock or VirtualClock(), check=True)
    engine.executor = Watched(engine, before, None)
    engine.run(asked)
    return engine


def cancelling(name: str, step: int) -> Before:
    """During that step; it takes effect at the step's end."""
    return lambda engine, _: engine.cancel(name) if len(engine.steps) == step else None


def due(engine: Engine) -> dict[str, float]:
    return {line["id"]: line["arrival_s"] for line in engine.record().request_lines()}


def token_times(engine: Engine) -> dict[str, list[float]]:
    return {line["id"]: line["token_times_s"] for line in engine.record().request_lines()}


@every_scheduler
def test_a_turn_is_due_its_think_time_after_the_end_of_the_one_before_and_counts_from_then(scheduler: str) -> None:
    engine = play(turns("a:3/2@1 b:4/3>a+5"), scheduler)
    assert due(engine) == {"a": 1, "b": 3 + 5} and token_times(engine) == {"a": [2, 3], "b": [9, 10, 11]}
    row = metrics(engine)
    assert (row["ttft_s_max"], row["e2e_s_max"], row["queue_wait_s_max"], row["lateness_s_max"]) == (1, 3, 0, 0)
    assert row["duration_s"] == 11 - 1, "thinking is part of the run"


@pytest.mark.parametrize(("scheduler", "started_s"), [("continuous", 3), ("chunked", 3), ("static", 10)])
def test_waiting_and_lateness_of_a_turn_count_from_when_it_was_due(scheduler: str, started_s: float) -> None:
    engine = play(turns("long:2/10@0 a:3/2@0 b:4/2>a+0.5"), scheduler)
    b = engine.record().request_lines()[2]
    assert (b["arrival_s"], b["submitted_s"], b["first_scheduled_s"]) == (2.5, 3, started_s), "a ended at 2, held or not"
    row = metrics(engine)
    assert (row["lateness_s_max"], row["queue_wait_s_max"]) == (0.5, started_s - 2.5)
    assert (row["ttft_s_max"], b["token_times_s"][-1] - b["arrival_s"]) == (started_s + 1 - 2.5, started_s + 2 - 2.5)


@every_scheduler
def test_a_chain_of_three_runs_one_after_another(scheduler: str) -> None:
    engine = play(turns("a:3/2@0 b:4/1>a+1 c:5/2>b+0 other:2/1@3"), scheduler)
    assert due(engine) == {"a": 0, "b": 3, "c": 4, "other": 3}
    assert token_times(engine) == {"a": [1, 2], "b": [4], "c": [5, 6], "other": [4]}


@every_scheduler
def test_two_turns_after_one_come_each_at_its_time(scheduler: str) -> None:
    engine = play(turns("a:3/1@0 b:4/1>a+4 c:2/1>a+0.5 d:2/1>a+4"), scheduler)
    assert due(engine) == {"a": 0, "b": 5, "c": 1.5, "d": 5}
    assert token_times(engine) == {"a": [1], "b": [6], "c": [2.5], "d": [6]}


@every_scheduler
def test_what_comes_after_a_refused_request_comes(scheduler: str) -> None:
    engine = play(turns("e:0/3@2 f:3/1>e+1.5 g:0/1>e+0 h:2/1>g+0 big:90/9@0 i:2/1>big+1"), scheduler, budget_tokens=64)
    assert {s.request.id for s in engine.sequences if s.state is State.REFUSED} == {"e", "g", "big"}
    assert due(engine) == {"e": 2, "f": 3.5, "g": 2, "h": 2, "big": 0, "i": 1}
    assert {name: times for name, times in token_times(engine).items() if times} == {"i": [2], "h": [3], "f": [4.5]}


@every_scheduler
def test_what_comes_after_a_cancelled_request_comes(scheduler: str) -> None:
    engine = play(turns("a:3/9@0 b:2/1>a+1"), scheduler, before=cancelling("a", 2))
    assert (engine.sequences[0].state, due(engine)["b"]) == (State.CANCELLED, 3 + 1) and token_times(engine)["b"] == [5]
    engine = play(turns("r:2/5@0 w:2/5@0 f:2/1>w+0.25"), scheduler, max_num_seqs=1, before=cancelling("w", 1))
    assert due(engine)["f"] == 2 + 0.25 and token_times(engine) == {"r": [1, 2, 3, 4, 5], "w": [], "f": [6]}


@every_scheduler
def test_a_turn_that_has_not_come_can_be_cancelled_and_the_next_one_comes_after_that(scheduler: str) -> None:
    text = "long:2/9@0 a:2/2@0 b:2/3>a+4 c:2/1>b+1"
    for step, at in ((0, 1), (3, 4)):  # before a has ended, and in the time after
        engine = play(turns(text), scheduler, before=cancelling("b", step))
        b, c = engine.record().requests[2:]
        assert (b.state, b.submitted_s, b.output_ids) == ("cancelled", None, []) and c.arrival_s == at + 1
    engine = play(turns("a:2/2@0 b:2/1>a+0"), scheduler, before=cancelling("b", 1))  # at the moment it comes
    assert engine.sequences[1].state is State.CANCELLED and len(engine.steps) == 2


@every_scheduler
def test_a_chain_can_be_cancelled_at_once(scheduler: str) -> None:
    def before(engine: Engine, _: Plan) -> None:
        for name in "dcba" if len(engine.steps) == 1 else "":
            engine.cancel(name)

    engine = play(turns("a:2/9@0 b:2/3>a+0 c:2/1>b+1 d:2/2>c+1"), scheduler, before=before)
    assert {s.state for s in engine.sequences} == {State.CANCELLED} and len(engine.steps) == 2


quarters = st.integers(0, 20).map(lambda quarter: quarter / 4)
one = st.tuples(st.integers(0, 12), st.integers(1, 6), quarters, st.one_of(st.none(), st.integers(0, 11)), quarters)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(one, min_size=1, max_size=12), st.sampled_from(SCHEDULERS), st.sampled_from(CACHES), st.integers(1, 4),
    st.integers(16, 80), st.dictionaries(st.integers(0, 11), st.integers(0, 20)),
)  # fmt: skip
def test_all_end_and_none_starts_before_the_one_before_has_ended_and_the_time_has_passed(
    forest: list[Any], scheduler: str, kv: str, slots: int, budget: int, cancels: dict[int, int]
) -> None:
    """Whatever the sessions: with preemptions, refusals and cancellations."""
    asked = [
        Request(
            f"{i}", tuple(range(1, prompt + 1)), new, at, True, after=None if before is None or not i else f"{before % i}", think_s=think
        )
        for i, (prompt, new, at, before, think) in enumerate(forest)
    ]

    def before(engine: Engine, _: Plan) -> None:
        for index, step in cancels.items():
            if step == len(engine.steps):
                engine.cancel(str(index))

    engine = play(asked, scheduler, "varlen", kv, before=before, max_num_seqs=slots, budget_tokens=budget)
    lines = {line["id"]: line for line in engine.record().request_lines()}
    for request in asked:
        line = lines[request.id]
        assert line["state"] in ("finished", "refused", "cancelled")
        if request.after is None:
            assert line["arrival_s"] == request.arrival_s
        elif line["submitted_s"] is not None:
            parent = lines[request.after]
            end_s = {
                "finished": lambda parent=parent: parent["token_times_s"][-1], "refused": lambda parent=parent: parent["submitted_s"],
                "cancelled": lambda parent=parent: engine.steps[cancels[parent["index"]]].end_s,
            }[parent["state"]]()  # fmt: skip
            assert line["arrival_s"] == end_s + request.think_s <= line["submitted_s"]
        if line["token_times_s"]:
            assert line["arrival_s"] <= line["submitted_s"] <= line["first_scheduled_s"] < line["token_times_s"][0]


def test_a_turn_counts_from_the_last_token_on_a_clock_that_moves_between_two_looks_too() -> None:
    engine = play(turns("a:3/2@0 b:4/1>a+0.5"), clock=TickClock())
    assert due(engine)["b"] == token_times(engine)["a"][-1] + 0.5
