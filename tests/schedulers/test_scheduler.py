"""The rules that the schedulers' docstrings state, and the worked examples 2 to 4 of the metrics, on a virtual clock of 1 s a step."""

from __future__ import annotations

import random

import pytest

from cbbench.engine.loop import Engine
from cbbench.request import Request
from tests.engine.test_hard_cases_capacity import asked
from tests.support.engines import CACHES, SCHEDULERS, num_preemptions, run_virtual
from tests.support.step_hooks import first_step_of, last_step_of, queued_for_memory, split_chunks

SEEDS = range(8)


def crowd(seed: int) -> list[Request]:
    """Twelve requests of any length that come when they like; some in the order of the file, some not."""
    rng = random.Random(seed)
    return asked(" ".join(f"{rng.randint(1, 30)}/{rng.randint(1, 20)}@{rng.choice([0, 0, rng.randint(0, 40)])}" for _ in range(12)))


def crowded(scheduler: str, kv: str, seed: int) -> Engine:
    options = {"scheduler.max_num_batched_tokens": 16, "kv.block_size": 4, "kv.reserve": "exact"}
    return run_virtual(crowd(seed), scheduler, kv=kv, max_num_seqs=4, budget_tokens=72, options=options)


def age(engine: Engine, index: int) -> tuple[float, int]:
    return engine.sequences[index].request.arrival_s, index


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kv", CACHES)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_first_come_first_served(scheduler: str, kv: str, seed: int) -> None:
    engine = crowded(scheduler, kv, seed)
    by_arrival = sorted(engine.sequences, key=lambda s: age(engine, s.index))
    started = [first_step_of(engine, s.index) for s in by_arrival]
    assert started == sorted(started) and len(set(started)) > 3
    assert queued_for_memory(engine), "there was a reason to overtake"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kv", ["cat", "paged"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_old_are_never_evicted_by_the_young(scheduler: str, kv: str, seed: int) -> None:
    """Whoever runs in the step that evicted somebody is older than the one evicted."""
    engine = crowded(scheduler, kv, seed)
    steps = [step for step in engine.steps if step.preempted]
    assert scheduler == "static" or steps
    for step in steps:
        youngest = max(age(engine, index) for _, index, _, new in step.rows if new)
        assert min(age(engine, index) for index in step.preempted) > youngest
    oldest = min(engine.sequences, key=lambda s: age(engine, s.index))
    assert oldest.num_preemptions == 0


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_preempted_sequence_resumes_before_anybody_new(scheduler: str) -> None:
    engine = run_virtual(
        asked("8/20@0 8/20@0 8/20@0 1/2@0 1/2@0"), scheduler, kv="paged", max_num_seqs=3, budget_tokens=48, options={"kv.block_size": 4}
    )
    assert num_preemptions(engine) > 0
    evicted = min(index for step in engine.steps for index in step.preempted)
    first = next(step.step for step in engine.steps if step.preempted)
    resumed = next(step.step for step in engine.steps[first:] if any(row[1] == evicted for row in step.rows))
    assert all(first_step_of(engine, index) > resumed for index in (3, 4))


# static


@pytest.mark.parametrize("kv", CACHES)
def test_a_static_batch_is_closed_until_all_have_ended(kv: str) -> None:
    engine = run_virtual(asked("4/9@0 6/3@0 5/5@1 2/4@3"), "static", kv=kv, max_num_seqs=4)
    assert [first_step_of(engine, i) for i in range(4)] == [1, 1, 10, 10]
    assert [step.slots for step in engine.steps] == [2] * 14


@pytest.mark.parametrize("kv", CACHES)
def test_a_static_batch_holds_finished_rows_and_their_memory_to_the_end(kv: str) -> None:
    engine = run_virtual(asked("4/9@0 6/3@0 5/5@0"), "static", kv=kv)
    assert [(step.live, step.held) for step in engine.steps] == [(3, 0)] * 3 + [(2, 1)] * 2 + [(1, 2)] * 4
    for step in engine.steps:
        assert [row[1] for row in step.rows] == [0, 1, 2] and [index for index, _, _ in step.kv] == [0, 1, 2]
    assert [written for _, _, written in engine.steps[-1].kv] == [12, 8, 9]


@pytest.mark.parametrize("kv", ["cat", "paged"])
def test_held_rows_give_their_memory_up_before_a_live_one_is_preempted(kv: str) -> None:
    engine = run_virtual(asked("4/20@0 12/1@0"), "static", kv=kv, budget_tokens=24, options={"kv.block_size": 4})
    assert num_preemptions(engine) == 0
    resident = [len(step.kv) for step in engine.steps]
    assert resident[:3] == [2, 2, 2] and resident[-1] == 1 and sorted(resident, reverse=True) == resident


@pytest.mark.parametrize(
    ("spec", "started_s"),
    [("3/2@0 3/2@5 3/2@7", [10, 10, 10]), ("3/2@0 3/2@5 3/2@7 3/2@8", [8, 8, 8, 8]), ("3/2@0 3/2@11", [10, 21]), ("3/2@4", [14])],
    ids=["after max_wait_s", "at once when full", "too late for the first batch", "counted from the arrival"],
)
def test_an_incomplete_static_batch_waits_for_max_wait_s(spec: str, started_s: list[float]) -> None:
    engine = run_virtual(asked(spec), "static", max_num_seqs=4, options={"scheduler.max_wait_s": 10.0})
    assert [s.first_scheduled_s for s in engine.sequences] == started_s


def test_without_max_wait_s_a_static_batch_takes_what_is_there() -> None:
    engine = run_virtual(asked("3/2@0 3/2@0.5"), "static")
    assert [s.first_scheduled_s for s in engine.sequences] == [0, 2]


# continuous


@pytest.mark.parametrize("kv", CACHES)
def test_a_slot_is_taken_in_the_step_after_it_was_left(kv: str) -> None:
    engine = run_virtual(asked("4/9@0 6/3@0 5/5@0 2/4@0"), "continuous", kv=kv, max_num_seqs=2)
    assert [(first_step_of(engine, i), last_step_of(engine, i)) for i in range(4)] == [(1, 9), (1, 3), (4, 8), (9, 12)]
    slots = {index: slot for step in engine.steps for slot, index, _, _ in step.rows}
    assert slots == {0: 0, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("scheduler", ["continuous", "chunked"])
def test_an_arrival_enters_at_the_next_step(scheduler: str) -> None:
    engine = run_virtual(asked("4/9@0 6/3@2.5"), scheduler)
    assert engine.sequences[1].first_scheduled_s == 3 and first_step_of(engine, 1) == 4
    assert all(step.held == 0 for step in engine.steps)


def test_continuous_computes_a_prompt_whole() -> None:
    engine = run_virtual(asked("4/9@0 600/3@2"), "continuous")
    assert split_chunks(engine) == 0 and max(row[3] for step in engine.steps for row in step.rows) == 600


# chunked


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", [1, 3, 16, 64])
def test_no_step_is_over_the_token_budget_and_decodes_come_first(budget: int, seed: int) -> None:
    engine = run_virtual(crowd(seed), "chunked", max_num_seqs=4, options={"scheduler.max_num_batched_tokens": budget})
    decoding: set[int] = set()
    for step in engine.steps:
        assert 0 < sum(row[3] for row in step.rows) <= budget
        in_step = {row[1] for row in step.rows}
        assert len(decoding) > budget or decoding <= in_step, "a decode was left out although the budget had room"
        decoding = {
            i for _, i, start, new in step.rows if start + new >= engine.sequences[i].num_prompt and last_step_of(engine, i) > step.step + 1
        }


def test_a_long_prompt_never_stalls_running_decodes() -> None:
    """The rhythm of the two that decode is one token a step, before, while and after 100 prompt tokens go through 12 a step."""
    spec, options = "2/40@0 3/40@0 100/5@10", {"scheduler.max_num_batched_tokens": 12}
    engine = run_virtual(asked(spec), "chunked", options=options)
    assert split_chunks(engine) == 9 and first_step_of(engine, 2) == 11
    for sequence in engine.sequences[:2]:
        assert [b - a for a, b in zip(sequence.token_times_s, sequence.token_times_s[1:], strict=False)] == [1] * 39
    assert engine.sequences[2].token_times_s[0] == 20, "nine chunks of 10 and one more: 100 tokens in ten steps"


def test_a_chunk_that_does_not_finish_its_prompt_samples_nothing() -> None:
    engine = run_virtual(asked("25/3@0"), "chunked", options={"scheduler.max_num_batched_tokens": 10})
    assert [row[2:] for step in engine.steps for row in step.rows] == [(0, 10), (10, 10), (20, 5), (25, 1), (26, 1)]
    assert engine.sequences[0].token_times_s == [3, 4, 5]


# The worked examples of metrics.md: what the records must say.


def test_example_2_a_left_slot_is_taken_at_the_next_step() -> None:
    spec = "1/20@0 1/5@0 1/10@0 1/15@0 1/7@0 1/9@0 1/8@0"  # A to G
    engine = run_virtual(asked(spec), "continuous")
    a, b, c, d, e, f, g = range(7)
    assert [last_step_of(engine, i) for i in (a, b, c, d, e)] == [20, 5, 10, 15, 12]
    assert [first_step_of(engine, i) for i in (e, f, g)] == [6, 11, 13]
    slots = {index: slot for step in engine.steps for slot, index, _, _ in step.rows}
    assert slots == {a: 0, b: 1, c: 2, d: 3, e: 1, f: 2, g: 1}
    static = run_virtual(asked(spec), "static")
    assert [first_step_of(static, i) for i in (d, e)] == [1, 21]


def idle(engine: Engine, decode_only: bool = False) -> tuple[int, int]:
    """Empty or finished places, and all places, summed over steps."""
    steps = [step for step in engine.steps if not decode_only or {passed[0] for passed in step.passes} == {"decode"}]
    return sum(step.slots - step.live for step in steps), sum(step.slots for step in steps)


def prefill_padding(engine: Engine) -> tuple[int, int]:
    passes = [passed for step in engine.steps for passed in step.passes if passed[0] == "prefill"]
    return sum(passed[2] for passed in passes), sum(passed[1] for passed in passes)


def test_example_3_the_static_chapter() -> None:
    engine = run_virtual(asked("10/15@0 30/10@0 5/20@0 20/12@0"), "static", "padded")
    assert len(engine.steps) == 20
    assert (prefill_padding(engine), idle(engine), idle(engine, decode_only=True)) == ((55, 120), (23, 80), (23, 76))


@pytest.mark.parametrize(
    ("scheduler", "max_num_seqs", "num_steps", "idle_slots", "padding"),
    [("static", 4, 87, (72, 348), (32, 116)), ("continuous", 4, 85, (64, 340), None), ("static", 8, 48, (108, 384), (52, 136))],
)
def test_example_4_the_continuous_chapter(
    scheduler: str, max_num_seqs: int, num_steps: int, idle_slots: tuple[int, int], padding: tuple[int, int] | None
) -> None:
    spec = "17/37@0 6/39@0 14/17@0 14/37@0 8/36@0 6/27@0 12/48@0 7/35@0"
    engine = run_virtual(asked(spec), scheduler, "padded", max_num_seqs=max_num_seqs)
    assert len(engine.steps) == num_steps and idle(engine) == idle_slots
    assert padding in (None, prefill_padding(engine))
