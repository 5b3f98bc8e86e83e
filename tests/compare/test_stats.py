"""The statistics behind a verdict agree with paper and pencil, with scipy, and with each other under mirror, shift and scale."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.compare.stats import MIN_ROUNDS, Shift, hodges_lehmann, prediction_interval, rounds_needed, tail_rank
from cbbench.compare.verdicts import Outcome, Subject, Values, judge_paired
from cbbench.results.compared_metrics import METRICS
from cbbench.runs.runner import order

FEW = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=12)
EXAMPLES = settings(derandomize=True, deadline=None, max_examples=60)


@pytest.mark.parametrize(
    ("values", "estimate", "low", "high"),
    [
        ([7.0], 7.0, None, None),
        ([1.0, 2.0], 1.5, None, None),  # Walsh averages 1, 1.5, 2
        ([0.0, 1.0, 5.0], 1.0, None, None),  # of so few only the values themselves
        ([-3.0, -2.0, -1.0], -2.0, None, None),
        ([2.0, 2.0, 5.0], 2.0, None, None),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3.5, 1.0, 6.0),  # six values: the interval is the smallest and the largest
        ([4.0] * 6, 4.0, 4.0, 4.0),
        ([0.0] * 10, 0.0, 0.0, 0.0),
        ([1.0, 1.0, 1.0, 9.0, 9.0, 9.0], 5.0, 1.0, 9.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 4.0, 2.0, 6.0),  # P(W <= 2) = 3/128: at each end two averages go, 1 and 1.5
    ],
)
def test_estimate_and_interval_by_hand(values: list[float], estimate: float, low: float | None, high: float | None) -> None:
    assert hodges_lehmann(values) == Shift(estimate, low, high, len(values))


def test_no_interval_where_the_level_cannot_be_reached() -> None:
    for level, num in ((0.95, 6), (0.99, 8)):
        assert hodges_lehmann(range(num - 1), level).half_width is None
        assert hodges_lehmann(range(num), level).half_width is not None
    assert MIN_ROUNDS == 6
    assert tail_rank(0.025, 0) is None


@pytest.mark.parametrize("num", range(6, 21))
def test_the_interval_is_what_scipys_exact_test_does_not_reject(num: int) -> None:
    """Between two neighbouring Walsh averages no p-value changes, so a point in each gap tells of the whole gap."""
    values = np.random.default_rng(num).normal(0.3, 1.0, num)
    walsh = np.sort([(a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2)])
    inside = (walsh[:-1] + walsh[1:]) / 2
    kept = scipy.stats.wilcoxon(values[:, None] - inside[None, :], axis=0, method="exact").pvalue > 0.05
    shift = hodges_lehmann(values, reach=num)
    gaps = np.flatnonzero(kept)
    assert (shift.low, shift.high) == pytest.approx((walsh[gaps[0]], walsh[gaps[-1] + 1]), rel=1e-12)
    assert kept[gaps[0] : gaps[-1] + 1].all()
    assert shift.estimate == pytest.approx(np.median(walsh), rel=1e-12)


def subset_sums(num: int) -> Iterator[int]:
    for chosen in itertools.product((0, 1), repeat=num):
        yield sum(rank for rank, is_in in enumerate(chosen, 1) if is_in)


@pytest.mark.parametrize("num", range(1, 13))
def test_tail_rank_by_counting_every_sign(num: int) -> None:
    counts = np.bincount(list(subset_sums(num)))
    for tail in (0.1, 0.05, 0.025, 0.01, 0.005, 0.0005, 0.25, 0.5**num):
        fitting = [k for k in range(len(counts)) if counts[: k + 1].sum() / 2**num <= tail]
        assert tail_rank(tail, num) == (max(fitting) if fitting else None), tail


@pytest.mark.parametrize("tail", [0.025, 0.005])
def test_tail_rank_up_to_60_by_counting_partitions_in_whole_numbers(tail: float) -> None:
    for num in range(1, 61):
        ways = [1]  # of making each sum; whole numbers, so nothing is rounded
        for rank in range(1, num + 1):
            ways = [(ways[s] if s < len(ways) else 0) + (ways[s - rank] if s >= rank else 0) for s in range(len(ways) + rank)]
        fitting = [k for k, below in enumerate(itertools.accumulate(ways)) if below <= tail * 2**num]
        assert tail_rank(tail, num) == (fitting[-1] if fitting else None), num


def test_tail_rank_as_printed_in_tables() -> None:
    """Critical values of the signed-rank test, two-sided 5 % and 1 %."""
    five = {6: 0, 7: 2, 8: 3, 9: 5, 10: 8, 11: 10, 12: 13, 15: 25, 20: 52, 25: 89, 30: 137}
    one = {8: 0, 9: 1, 10: 3, 11: 5, 12: 7, 15: 15, 20: 37, 25: 68, 30: 109}
    assert {num: tail_rank(0.025, num) for num in five} == five
    assert {num: tail_rank(0.005, num) for num in one} == one


def test_the_truth_is_inside_about_as_often_as_promised() -> None:
    noise = np.random.default_rng(1)
    for draw in (noise.normal, noise.laplace, lambda size: noise.uniform(-1, 1, size)):
        shifts = [hodges_lehmann(draw(size=10)) for _ in range(1000)]
        covered = np.mean([s.low <= 0 <= s.high for s in shifts if s.low is not None and s.high is not None])
        assert 0.935 <= covered <= 0.97, draw


@EXAMPLES
@given(FEW)
def test_a_mirror_flips_estimate_and_interval_exactly(values: list[float]) -> None:
    logs = [math.log1p(value / 100) for value in values]
    assert hodges_lehmann([-value for value in logs]) == -hodges_lehmann(logs)


@EXAMPLES
@given(FEW, st.integers(-1000, 1000), st.sampled_from([0.5, 2.0, 64.0]))
def test_shift_and_scale_go_straight_through(values: list[float], offset: int, factor: float) -> None:
    """Whole numbers and powers of two, so that not even the last bit differs."""
    plain, moved = hodges_lehmann(values), hodges_lehmann([value * factor + offset for value in values])
    expected = [None if bound is None else bound * factor + offset for bound in (plain.estimate, plain.low, plain.high)]
    assert [moved.estimate, moved.low, moved.high] == expected


@EXAMPLES
@given(FEW, st.randoms(use_true_random=False))
def test_the_order_of_rounds_does_not_matter_and_the_estimate_lies_inside(values: list[float], luck: random.Random) -> None:
    shuffled = luck.sample(values, len(values))
    shift = hodges_lehmann(values)
    assert hodges_lehmann(shuffled) == shift
    assert min(values) <= shift.estimate <= max(values)
    if shift.low is not None and shift.high is not None:
        assert min(values) <= shift.low <= shift.estimate <= shift.high <= max(values)


@pytest.mark.parametrize("num", range(6, 21))
def test_ranks_capped_at_the_reach_are_what_the_interval_inverts(num: int) -> None:
    """By trying every sign: of the capped ranks that are below a point, as many as the level allows."""
    values, reach = np.random.default_rng(num).normal(0.3, 1.0, num), num // 2
    scores = np.minimum(np.arange(1, num + 1), reach)
    ways = [1]
    for score in scores:
        ways = [(ways[s] if s < len(ways) else 0) + (ways[s - score] if s >= score else 0) for s in range(len(ways) + score)]
    below = list(itertools.accumulate(ways))

    def keeps(point: float) -> bool:
        order = np.argsort(np.abs(values - point))
        negative = int(scores[(values[order] < point)].sum())
        return min(below[negative], below[int(scores.sum()) - negative]) > 0.025 * 2**num

    shift = hodges_lehmann(values)
    assert shift.low is not None and shift.high is not None
    step = 1e-9
    assert [keeps(shift.low - step), keeps(shift.low + step), keeps(shift.high - step), keeps(shift.high + step)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("num", range(10, 31, 2))
def test_one_wild_value_of_ten_moves_the_interval_little(num: int) -> None:
    """The plain test at ten: its interval reaches half way to the wild value."""
    values = np.random.default_rng(num).normal(0, 0.01, num)
    values[: num // 10] = -5.0
    shift, plain = hodges_lehmann(values), hodges_lehmann(values, reach=num)
    assert shift.low is not None and shift.low > -0.05
    assert num != 10 or (plain.low is not None and plain.low < -2)


def half(width: float, num: int) -> Shift:
    return Shift(0.0, -width, width, num)


def test_rounds_needed_by_hand() -> None:
    """No difference seen: with w = 0.06 sqrt(10 / N) and s = 0.0306 sqrt(1 + 10 / N), N rounds tell with P(|z| < (0.05 - w) / s) and
    P(|z| > 0.05 / s) together. At 168: w 0.0146, s 0.0315: 74 % and 11 %."""
    assert rounds_needed(half(0.06, 10), 0.05) == 168
    assert rounds_needed(half(0.1, 10), 0.05) is None, "more than 200"
    assert rounds_needed(half(0.035, 10), 0.05) == 28
    assert rounds_needed(Shift(0.12, 0.12 - 0.06, 0.12 + 0.06, 10), 0.05) == 12, "more than there were"
    assert rounds_needed(Shift(0.05, -0.01, 0.11, 10), 0.05) is None, "as large as the margin: never"
    assert rounds_needed(Shift(0.0, None, None, 5), 0.05) is None
    assert rounds_needed(half(0.1, 10), 0.0) is None


@EXAMPLES
@given(st.integers(6, 60), st.floats(0, 2), st.floats(0, 0.3), st.floats(0.001, 0.5))
def test_rounds_needed_are_even_more_than_there_were_and_at_most_200(num: int, width: float, estimate: float, margin: float) -> None:
    """Even, so that mirrored orders cancel."""
    needed = rounds_needed(Shift(estimate, estimate - width, estimate + width, num), margin)
    assert needed is None or (needed % 2 == 0 and max(num, MIN_ROUNDS - 1) < needed <= 200)


@pytest.mark.parametrize("num", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_the_prediction_interval_is_students(num: int, level: float) -> None:
    values = np.random.default_rng(num).normal(3.0, 0.2, num)
    scale = values.std(ddof=1) * math.sqrt(1 + 1 / num)
    expected = scipy.stats.t.interval(level, num - 1, loc=values.mean(), scale=scale)
    assert prediction_interval(list(values), level) == pytest.approx(expected, rel=1e-9)


def test_a_prediction_interval_holds_one_more_value_as_often_as_promised() -> None:
    draws = np.random.default_rng(3).normal(size=(2000, 6))
    bounds = [prediction_interval(list(row[:5])) for row in draws]
    inside = np.mean([low <= row[5] <= high for (low, high), row in zip(bounds, draws, strict=True)])
    assert inside == pytest.approx(0.95, abs=0.015)
    assert prediction_interval([2.0] * 5) == (2.0, 2.0)


TTFT, PAIR = METRICS["ttft_s_p50"], Subject("w", "run", "new", "base", same_strategy=True)


def outcome(base: Values, new: Values) -> Outcome | None:
    verdict = judge_paired(PAIR, TTFT, base, new, 0.05)
    return verdict and verdict.outcome


def simulated(rng: np.random.Generator, ratio: float, num_rounds: int = 10) -> tuple[Values, Values]:
    """Rounds of two arms that each vary by 3 %, the second that many times as slow."""
    base, new = np.exp(rng.normal(0, 0.03, (2, num_rounds)))
    return dict(enumerate(base.tolist())), dict(enumerate((ratio * new).tolist()))


def test_tables_in_which_nothing_changed_raise_no_alarm() -> None:
    rng = np.random.default_rng(20)
    tables = [[outcome(*simulated(rng, 1.0)) for _ in range(54)] for _ in range(400)]
    assert np.mean([Outcome.regressed in table for table in tables]) < 0.02
    assert np.mean([Outcome.improved in table for table in tables]) < 0.02
    assert np.mean([row is Outcome.same for table in tables for row in table]) > 0.65, "and most say that nothing changed"


@pytest.mark.parametrize(("ratio", "expected"), [(1.1, Outcome.regressed), (1 / 1.1, Outcome.improved)])
def test_ten_percent_is_found_under_three_percent_of_noise(ratio: float, expected: Outcome) -> None:
    rng = np.random.default_rng(21)
    assert np.mean([outcome(*simulated(rng, ratio)) is expected for _ in range(1000)]) > 0.95


@pytest.mark.parametrize("num_arms", [2, 3, 6, 54])
def test_a_machine_that_slows_down_during_the_run_favours_no_arm(num_arms: int) -> None:
    """Over ten rounds everything becomes 5 % slower, evenly; mirrored orders cancel it, the plain order does not."""
    arms, num_rounds = [f"arm {i}" for i in range(num_arms)], 10

    def estimates(orders: list[list[str]]) -> list[float]:
        turns = [(arm, r) for r, names in enumerate(orders, 1) for arm in names]
        took = {turn: 1 + 0.05 * i / (len(turns) - 1) for i, turn in enumerate(turns)}
        logs = {arm: [math.log(took[arm, r] / took[arms[0], r]) for r in range(1, num_rounds + 1)] for arm in arms}
        return [abs(hodges_lehmann(found).estimate) for found in logs.values()]

    mirrored = [order(arms, number) for number in range(1, num_rounds + 1)]  # type: ignore[arg-type]
    assert all(sorted(names) == sorted(arms) for names in mirrored)
    assert all(after == before[::-1] for before, after in zip(mirrored[::2], mirrored[1::2], strict=True))
    assert max(estimates(mirrored)) < 0.001
    assert max(estimates([arms] * num_rounds)) > 0.0015, "this simulation can show a bias"
