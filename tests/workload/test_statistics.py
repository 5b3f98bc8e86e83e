"""What an import and `workload describe` say of requests, worked by hand; what does not exist is None, never a made-up number."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.workload.statistics import arrivals, lengths, profile

law = settings(max_examples=200, deadline=None, derandomize=True)
NOTHING = {"span_s": None, "rate_per_s": None, "gap_cv": None, "dispersion_1s": None, "max_in_1s": None}


def test_a_profile_by_hand() -> None:
    """Gaps 1, 1, 2: mean 4/3, population standard deviation sqrt(2)/3. Arrivals a second: 1, 1, 1, 0, 1."""
    made = profile([10, 20, 30, 40], [1, 1, 1, 5], [100.0, 101.0, 102.0, 104.0], 25)
    assert made == {
        "num_requests": 4,
        "prompt_tokens": {"mean": 25.0, "p50": 25.0, "p90": 37.0, "p99": 39.7, "max": 40},
        "output_tokens": {"mean": 2.0, "p50": 1.0, "p90": 3.8, "p99": 4.88, "max": 5},
        "span_s": 4.0, "rate_per_s": 1.0, "gap_cv": pytest.approx(2**0.5 / 4),
        "dispersion_1s": pytest.approx(0.2), "max_in_1s": 1, "prefix_hit_frac": 0.25,
    }  # fmt: skip


def test_bursts_have_a_large_cv_and_dispersion() -> None:
    """Two bursts of 3, 10 s apart: gaps 0 0 10 0 0 have mean 2 and deviation 4; 11 seconds with 3, 3 and nine times 0."""
    made = arrivals([0.0, 0.0, 0.0, 10.0, 10.0, 10.0])
    assert (made["span_s"], made["rate_per_s"], made["gap_cv"], made["max_in_1s"]) == (10.0, 0.6, 2.0, 3)
    assert made["dispersion_1s"] == pytest.approx((18 / 11 - (6 / 11) ** 2) / (6 / 11))


def test_the_rate_is_rows_over_the_span_and_a_constant_gap_has_no_variation() -> None:
    made = arrivals([0.25 * index for index in range(9)])
    assert (made["rate_per_s"], made["gap_cv"], made["max_in_1s"]) == (4.5, 0.0, 4)


@pytest.mark.parametrize("times", [None, [], [3.0], [3.0, 3.0, 3.0]])
def test_without_a_span_there_is_no_rate(times: list[float] | None) -> None:
    assert arrivals(times) == NOTHING


def test_a_span_below_a_second_has_no_counts_a_second() -> None:
    made = arrivals([0.0, 0.2, 0.4])
    assert made["rate_per_s"] == pytest.approx(7.5) and made["dispersion_1s"] is None and made["max_in_1s"] is None


def test_no_requests_have_no_lengths_and_no_hits() -> None:
    made = profile([], [], None, 0)
    nothing = dict.fromkeys(("mean", "p50", "p90", "p99", "max"))
    assert made == {"num_requests": 0, "prompt_tokens": nothing, "output_tokens": nothing, **NOTHING, "prefix_hit_frac": None}
    assert profile([4], [1], None, 0)["prefix_hit_frac"] == 0.0, "prompts of which nothing is shared"


def test_years_without_arrivals_are_counted_and_not_stored() -> None:
    made = arrivals([0.0, 3e9])
    assert made["dispersion_1s"] == pytest.approx(1.0) and made["max_in_1s"] == 1


def test_a_poisson_process_has_a_cv_and_a_dispersion_of_about_1() -> None:
    made = arrivals(np.cumsum(np.random.default_rng(1).exponential(0.2, 20_000)).tolist())
    assert made["gap_cv"] == pytest.approx(1, abs=0.03) and made["dispersion_1s"] == pytest.approx(1, abs=0.08)
    assert made["rate_per_s"] == pytest.approx(5, rel=0.03)


@law
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60))
def test_percentiles_are_numpys_linear_ones(values: list[int]) -> None:
    made = lengths(values)
    assert made["max"] == max(values) and type(made["max"]) is int
    assert [made["mean"], made["p50"], made["p90"], made["p99"]] == pytest.approx(
        [sum(values) / len(values), *(float(np.percentile(values, at, method="linear")) for at in (50, 90, 99))], abs=0.006
    )


@law
@given(st.lists(st.floats(0, 1e4), min_size=2, max_size=60), st.floats(-1e6, 1e6))
def test_arrivals_agree_with_counting_each_second_and_are_json(times: list[float], start: float) -> None:
    times = sorted(round(time, 3) for time in times)
    made = arrivals([start + time for time in times])
    json.dumps(made, allow_nan=False)
    if made["dispersion_1s"] is not None and start == 0 and times[0] == 0:
        counts = np.bincount(np.array(times).astype(int))
        assert made["dispersion_1s"] == pytest.approx(counts.var() / counts.mean()) and made["max_in_1s"] == counts.max()
    if made["gap_cv"] is not None:
        gaps = np.diff(times)
        assert made["gap_cv"] == pytest.approx(gaps.std() / gaps.mean(), rel=1e-3, abs=1e-3)
