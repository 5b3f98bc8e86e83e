"""Random workloads under random options: the laws that no engine may break, whatever it is asked. Examples are derandomised."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.engine.loop import Engine
from cbbench.request import Request, State
from tests.support.engines import ATTENTIONS, CACHES, SCHEDULERS, assert_exact, num_preemptions, run, run_virtual, tiny, with_reference
from tests.support.step_hooks import TickClock

MODEL = {"num_hidden_layers": 1}


@dataclass
class Case:
    """An arm and what it is asked; `budget_tokens` may be too small for some or all."""

    requests: list[Request]
    scheduler: str
    attn: str
    kv: str
    max_num_seqs: int
    budget_tokens: int
    options: dict[str, Any]

    @property
    def arm(self) -> dict[str, Any]:
        return {"max_num_seqs": self.max_num_seqs, "budget_tokens": self.budget_tokens, "options": self.options}

    def refused(self) -> set[str]:
        """Ids that cannot ever run, reckoned here a second time from the caches' docstrings."""
        return {r.id for r in self.requests if not r.prompt_ids or not self.fits(r)}

    def fits(self, request: Request) -> bool:
        need = len(request.prompt_ids) + request.max_new_tokens - 1
        if self.kv in ("paged", "prefix"):
            block = self.options["kv.block_size"]
            return -(-need // block) <= self.budget_tokens // block
        if self.kv == "cat":
            return need <= self.budget_tokens
        longest = max(r.max_kv_tokens for r in self.requests)
        pow2 = len(request.prompt_ids) + next(1 << n for n in range(20) if 1 << n >= request.max_new_tokens)
        region = {"max_len": longest, "pow2": pow2, "exact": need}[self.options["kv.reserve"]]
        if self.options["kv.placement"] == "first-fit":
            return region <= self.budget_tokens
        return next(1 << n for n in range(20) if 1 << n >= region) <= self.budget_tokens


@st.composite
def cases(draw: st.DrawFn, longest_prompt: int = 40, longest_output: int = 24) -> Case:
    made = []
    for index in range(draw(st.integers(1, 10))):
        prompt = draw(st.one_of(st.integers(1, longest_prompt), st.sampled_from([0, 1, 15, 16, 17])))
        max_new_tokens = draw(st.integers(1, longest_output))
        output = draw(st.integers(1, max_new_tokens))  # shorter than allowed where an end of sequence comes
        arrival_s = draw(st.sampled_from([0.0, 0.0, 0.5, 3.0, 7.0, 30.0]))
        ids = tuple((index * 37 + i * 11) % 297 + 3 for i in range(prompt))
        made.append(Request(f"r{index}", ids, max_new_tokens, arrival_s, output_ids=tuple(range(output))))
    options = {
        "kv.block_size": draw(st.sampled_from([1, 3, 7, 16])),
        "kv.reserve": draw(st.sampled_from(["max_len", "pow2", "exact"])),
        "kv.placement": draw(st.sampled_from(["first-fit", "buddy"])),
        "scheduler.max_num_batched_tokens": draw(st.sampled_from([1, 2, 5, 16, 100])),
        "scheduler.max_wait_s": draw(st.sampled_from([0.0, 2.0])),
    }
    arm = [draw(st.sampled_from(names)) for names in (SCHEDULERS, ATTENTIONS, CACHES)]
    return Case(made, *arm, draw(st.integers(1, 6)), draw(st.integers(0, 150)), options)


def assert_lawful(engine: Engine, case: Case) -> None:
    """What holds in every step record of every run."""
    stop: dict[int, int] = {}  # where each sequence's next row must begin
    for before, step in zip([None, *engine.steps], engine.steps, strict=False):
        assert sum(reserved for _, reserved, _ in step.kv) - step.extra_tokens + step.free_tokens == engine.cache.capacity_tokens()
        assert all(0 <= written <= reserved for _, reserved, written in step.kv)
        assert 0 <= step.external_tokens <= step.free_tokens
        assert step.live + step.held <= case.max_num_seqs and 0 < step.slots <= case.max_num_seqs
        assert before is None or step.start_s >= before.end_s >= before.start_s
        assert len({slot for slot, *_ in step.rows}) == len(step.rows) and all(slot < case.max_num_seqs for slot, *_ in step.rows)
        assert sum(new for *_, new in step.rows) == sum(passed[1] - passed[2] for passed in step.passes) > 0
        for index in step.preempted:
            stop[index] = 0
        for _, index, start, new in step.rows:
            known = case.kv == "prefix" and not stop.get(index)  # found in the cache: it starts behind that
            assert start == stop.get(index, 0) or known, "positions are computed in order, and again only after a preemption"
            stop[index] = start + new
    for sequence in engine.sequences:
        if sequence.state is State.FINISHED:
            assert stop[sequence.index] == sequence.num_tokens - 1, "the last token is never fed back"
            computed = sum(new for step in engine.steps for _, index, _, new in step.rows if index == sequence.index)
            found = sequence.num_tokens - 1 + sequence.recomputed_tokens - computed
            assert found == sequence.cached_tokens or (case.kv == "prefix" and sequence.num_preemptions and found >= 0)
            assert len(sequence.output_ids) == len(sequence.token_times_s) <= sequence.request.max_new_tokens
            assert sequence.first_scheduled_s is not None and sequence.first_scheduled_s >= sequence.request.arrival_s
            assert sequence.token_times_s == sorted(set(sequence.token_times_s))


@given(case=cases())
@settings(max_examples=400, deadline=None, derandomize=True)
def test_any_workload_ends_by_itself_lawfully(case: Case) -> None:
    """Hard case 59 and all of section F: liveness, exact memory, and refusals of exactly those that cannot fit."""
    engine = run_virtual(case.requests, case.scheduler, case.attn, case.kv, **case.arm)
    assert_lawful(engine, case)
    assert_exact(engine, refused=case.refused())


def crowd(seed: int, scheduler: str, kv: str) -> Case:
    """Eight or more, most of them at once, in a pool that holds the largest and a little more."""
    rng = random.Random(seed)
    lengths = [(rng.randint(1, 12), rng.randint(8, 24), rng.choice([0.0, 0.0, 0.0, 6.0])) for _ in range(rng.randint(8, 12))]
    made = [Request(f"r{i}", (3,) * p, g, at, output_ids=tuple(range(rng.randint(g // 2, g)))) for i, (p, g, at) in enumerate(lengths)]
    block = rng.choice([1, 3, 7, 16])
    budget = (-(-max(r.max_kv_tokens for r in made) // block) + rng.randint(0, 2)) * block
    options = {"kv.block_size": block, "scheduler.max_num_batched_tokens": rng.choice([1, 4, 16, 100])}
    return Case(made, scheduler, rng.choice(ATTENTIONS), kv, 4, budget, options)


@pytest.mark.parametrize("kv", ["cat", "paged"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_crowds_in_a_small_pool_are_lawful_and_never_evict_the_oldest(scheduler: str, kv: str) -> None:
    total = 0
    for seed in range(60):
        case = crowd(seed, scheduler, kv)
        engine = run_virtual(case.requests, scheduler, case.attn, kv, **case.arm)
        assert_lawful(engine, case)
        assert_exact(engine)
        assert min(engine.sequences, key=lambda s: (s.request.arrival_s, s.index)).num_preemptions == 0
        total += num_preemptions(engine)
    assert total > 60, "each run had one on average"


@given(case=cases(longest_prompt=24, longest_output=10))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_workload_on_a_model_is_exact_and_lawful(case: Case) -> None:
    model = tiny(**MODEL, eos_token_id=list(range(2, 300, 9)))
    case.requests = [with_reference(model, request) for request in case.requests]
    engine = run(model, case.requests, case.scheduler, case.attn, case.kv, clock=TickClock(0.01), **case.arm)
    assert_lawful(engine, case)
    assert_exact(engine, refused=case.refused())


@given(case=cases())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_virtual_run_is_the_same_every_time(case: Case) -> None:
    one, two = (run_virtual(case.requests, case.scheduler, case.attn, case.kv, **case.arm) for _ in range(2))
    assert one.record() == two.record()
