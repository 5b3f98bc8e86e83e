"""The promises of the gate, by a small simulation through the real command; `make power` runs the whole one."""

from __future__ import annotations

from collections import Counter

import pytest

from cbbench.compare.stats import RECOMMENDED_ROUNDS
from tests.compare.power import World, promises, shares


@pytest.mark.parametrize("wild", [False, True])
def test_nothing_changed_fails_no_gate(wild: bool) -> None:
    found = shares(World(0.03, wild=wild), RECOMMENDED_ROUNDS, 100, 1)
    assert found["failed"] <= 0.02 and found["passed"] >= 0.8


def test_nothing_changed_at_five_percent_of_noise_fails_no_gate() -> None:
    assert shares(World(0.05), RECOMMENDED_ROUNDS, 100, 2)["failed"] <= 0.02


@pytest.mark.parametrize("wild", [False, True])
def test_ten_percent_slower_fails_the_gate(wild: bool) -> None:
    assert shares(World(0.03, 1.1, wild, shared=True), RECOMMENDED_ROUNDS, 100, 3)["failed"] >= 0.95


def test_one_wild_round_of_ten_leaves_room_for_a_verdict() -> None:
    """The plain signed-rank interval had none: nothing was resolved, and +10 % was never found."""
    world = World(0.01, wild=True)
    assert shares(world, 10, 60, 4)["passed"] >= 0.8
    assert shares(World(0.01, 1.1, wild=True, shared=True), 10, 60, 5)["failed"] >= 0.85


def test_rounds_of_one_process_fail_no_gate_by_their_launch() -> None:
    world = World(0.05, launch=True)
    assert shares(world, RECOMMENDED_ROUNDS, 60, 6, False) == {"failed": 0.0, "unknown": 1.0, "passed": 0.0}
    assert shares(world, RECOMMENDED_ROUNDS, 60, 6, False, "--allow", "process")["failed"] > 0.1, "who allows it is told so"


def test_the_rounds_that_would_tell_tell_four_times_in_five() -> None:
    total: Counter[str] = Counter()
    for seed, ratio in enumerate((1.0, 1.03, 1.07)):
        said, kept = promises(World(0.04, ratio), 10, 60, seed)
        total.update(said=said, kept=kept)
    assert total["said"] > 20 and total["kept"] / total["said"] >= 0.8
