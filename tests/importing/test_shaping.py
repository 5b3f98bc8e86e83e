"""Recorded times made into those of a replay: faster, slower, without pauses, off the clock's grid; never out of order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.importing.shaping import Shape, shape, tick
from cbbench.workload.statistics import arrivals

law = settings(max_examples=200, deadline=None, derandomize=True)


def shaped(times: list[float], **wanted: Any) -> list[float]:
    result: list[float] = shape(np.array(times, dtype=np.float64), Shape(**wanted)).times_s.tolist()
    return result


def on_a_grid(seed: int = 0, ticks: int = 400, tick_s: float = 3.0, mean: float = 10.2) -> np.ndarray[Any, np.dtype[np.float64]]:
    """As Mooncake stamps `conversation`: Poisson arrivals, each written at its tick."""
    counts = np.random.default_rng(seed).poisson(mean, ticks)
    return np.repeat(np.arange(ticks) * tick_s, counts)


def test_times_start_at_0_and_keep_their_distances() -> None:
    assert shaped([5.0, 6.5, 6.5, 9.0]) == [0.0, 1.5, 1.5, 4.0]
    assert shaped([-3.0, 1.0]) == [0.0, 4.0]


@pytest.mark.parametrize("wanted", [{}, {"spread_ticks": True}, {"gap_cap_s": 1.0}, {"speedup": 2.0}, {"rate_per_s": 3.0}])
def test_nothing_one_row_and_all_at_once_are_times_too(wanted: dict[str, Any]) -> None:
    assert shaped([], **wanted) == []
    assert shaped([7.0], **wanted) == [0.0]
    assert shaped([7.0] * 4, **wanted) == [0.0] * 4, "a clock that stamped one time has no tick, and no rate to change"


def test_a_speedup_divides_times() -> None:
    made = shape(np.array([0.0, 1.0, 4.0]), Shape(speedup=2.0))
    assert made.times_s.tolist() == [0.0, 0.5, 2.0] and made.speedup == 2.0 and made.tick_s is None
    assert shaped([0.0, 1.0, 4.0], speedup=0.5) == [0.0, 2.0, 8.0]


def test_a_rate_chooses_the_speedup_by_rows_over_the_span() -> None:
    made = shape(np.array([10.0, 11.0, 13.0, 14.0]), Shape(rate_per_s=2.0))
    assert made.speedup == 2.0 and made.times_s.tolist() == [0.0, 0.5, 1.5, 2.0]
    assert arrivals(made.times_s)["rate_per_s"] == 2.0


def test_pauses_are_capped_before_the_speedup_and_the_rate() -> None:
    assert shaped([0.0, 1.0, 301.0, 302.0, 402.0], gap_cap_s=10.0) == [0.0, 1.0, 11.0, 12.0, 22.0]
    assert shaped([0.0, 300.0, 301.0], gap_cap_s=10.0, speedup=2.0) == [0.0, 5.0, 5.5]
    assert shaped([0.0, 300.0, 301.0], gap_cap_s=9.0, rate_per_s=3.0) == [0.0, 0.9, 1.0]
    assert shaped([0.0, 1.0], gap_cap_s=10.0) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("times", "found"),
    [([], None), ([1.0], None), ([1.0, 1.0], None), ([0.0, 1.0, 2.5], None), ([0.0, 0.0, 3.0], 3.0), ([0.0, 3.0, 3.0, 9.0, 10.0], 1.0)],
)
def test_the_tick_is_the_smallest_step_where_there_are_ties(times: list[float], found: float | None) -> None:
    assert tick(np.array(times)) == found


def test_ties_spread_over_their_tick_are_a_poisson_process_again() -> None:
    for seed in range(3):
        times = on_a_grid(seed)
        assert arrivals(times)["gap_cv"] == pytest.approx(3.0, abs=0.15)
        made = shape(times, Shape(spread_ticks=True, seed=seed))
        after = arrivals(made.times_s)
        assert (
            made.tick_s == 3.0 and after["gap_cv"] == pytest.approx(1.0, abs=0.05) and after["dispersion_1s"] == pytest.approx(1, abs=0.25)
        )
        assert after["rate_per_s"] == pytest.approx(arrivals(times)["rate_per_s"], rel=0.01)


def test_spreading_leaves_each_row_in_its_tick_and_is_decided_by_the_seed() -> None:
    times = on_a_grid()
    one, two, other = (shape(times, Shape(spread_ticks=True, seed=seed)).times_s for seed in (4, 4, 5))
    assert one.tolist() == two.tolist() != other.tolist()
    moved = one - times  # by the place within the tick, less that of the first row, which starts at 0
    assert one[0] == 0 and np.all(np.diff(one) >= 0) and moved.max() - moved.min() < 3.0
    assert np.all(moved < 3.0) and np.all(moved > -3.0)


def test_times_without_ties_are_not_spread() -> None:
    made = shape(np.array([0.0, 1.0, 5.0]), Shape(spread_ticks=True))
    assert made.times_s.tolist() == [0.0, 1.0, 5.0] and made.tick_s is None


def test_the_order_is_spread_then_capped_then_sped_up() -> None:
    times = on_a_grid(ticks=50)
    spread = shape(times, Shape(spread_ticks=True, seed=1)).times_s
    capped = np.concatenate([[0.0], np.cumsum(np.minimum(np.diff(spread), 0.2))])
    made = shape(times, Shape(spread_ticks=True, gap_cap_s=0.2, speedup=4.0, seed=1))
    assert made.times_s.tolist() == pytest.approx((capped / 4).tolist()) and np.diff(made.times_s).max() <= 0.05 + 1e-9


@law
@given(
    st.lists(st.one_of(st.integers(0, 20), st.integers(0, 10**7)), max_size=30), st.booleans(),
    st.sampled_from([None, 0.5, 100.0]), st.sampled_from([{}, {"speedup": 0.1}, {"speedup": 7.0}, {"rate_per_s": 2.5}]),
)  # fmt: skip
def test_any_times_stay_in_order_start_at_0_and_come_at_the_rate_asked_for(
    ticks: list[int], spread_ticks: bool, gap_cap_s: float | None, speed: dict[str, float]
) -> None:
    times = np.sort(np.array(ticks, dtype=np.float64)) / 10 + 1e6
    kept = times.copy()
    made = shape(times, Shape(spread_ticks=spread_ticks, gap_cap_s=gap_cap_s, seed=3, **speed))
    assert len(made.times_s) == len(times) and np.all(made.times_s[:1] == 0) and np.all(np.diff(made.times_s) >= 0)
    assert np.isfinite(made.times_s).all() and times.tolist() == kept.tolist(), "what was recorded is not touched"
    if "rate_per_s" in speed and len(times) and made.times_s[-1] > 0:
        assert len(times) / made.times_s[-1] == pytest.approx(2.5)
    if gap_cap_s is not None and len(times) > 1:
        assert np.diff(made.times_s).max() <= gap_cap_s / made.speedup * (1 + 1e-9) + 1e-9
