"""Each verdict by hand: what a pair of rounds, a count or a history of runs says, and what it leaves open."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.compare.stats import Shift
from cbbench.compare.verdicts import Outcome, Subject, Values, Verdict, judge_exact, judge_history, judge_paired, middle
from cbbench.results.compared_metrics import METRICS, Metric

SLOWER_IS_WORSE, FASTER_IS_BETTER = METRICS["ttft_s_p50"], METRICS["output_tok_per_s"]
BOTH = pytest.mark.parametrize("metric", [SLOWER_IS_WORSE, FASTER_IS_BETTER], ids=lambda m: m.key)
OTHER = Subject("w", "run", "continuous", "static", same_strategy=False)
SAME = Subject("w", "run", "static", "static@1a2b3c4", same_strategy=True)
WIGGLE = (1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.01, 0.99, 1.005, 0.995)


def rounds(*values: Any) -> Values:
    return dict(enumerate(values, 1))


def worse_by(ratio: float, metric: Metric, num: int = 10, wiggle: tuple[float, ...] = WIGGLE) -> Values:
    """Values that many times as bad as 1."""
    return rounds(*((1 / ratio if metric.higher_is_better else ratio) * w for w in wiggle[:num]))


def paired(metric: Metric, base: Values, new: Values, margin: float = 0.05, subject: Subject = OTHER) -> Verdict:
    verdict = judge_paired(subject, metric, base, new, margin)
    assert verdict is not None
    return verdict


FLAT = rounds(*[1.0] * 10)


@BOTH
@pytest.mark.parametrize(
    ("times_as_bad", "outcome"),
    [(1.5, "regressed"), (1.08, "regressed"), (1.0, "same"), (1.03, "same"), (1 / 1.03, "same"), (1 / 1.08, "improved"), (0.5, "improved")],
)
def test_outcomes_of_a_timed_metric(metric: Metric, times_as_bad: float, outcome: str) -> None:
    verdict = paired(metric, FLAT, worse_by(times_as_bad, metric))
    assert (verdict.outcome, verdict.why) == (outcome, None)
    assert verdict.shift is not None and math.exp(verdict.shift.estimate) == pytest.approx(times_as_bad, rel=0.003)
    assert verdict.ratio() == pytest.approx(1 / times_as_bad if metric.higher_is_better else times_as_bad, rel=0.003)
    low, high = verdict.ratio("low"), verdict.ratio("high")
    assert low is not None and high is not None and low <= verdict.ratio() <= high


@BOTH
def test_the_margin_is_a_ratio_the_same_both_ways(metric: Metric) -> None:
    steady = (1.0,) * 10
    for ratio, outcome in ((1.0501, "regressed"), (1.0499, "same"), (1 / 1.0499, "same"), (1 / 1.0501, "improved")):
        assert paired(metric, FLAT, worse_by(ratio, metric, wiggle=steady)).outcome == outcome, ratio


EDGE = math.log1p(0.05)


@pytest.mark.parametrize(
    ("estimate", "low", "high", "outcome"),
    [
        (EDGE, 0.01, 0.2, "regressed"),  # as much as the margin is beyond it
        (-EDGE, -0.2, -0.01, "improved"),
        (0.1, 0.0, 0.2, "unresolved"),  # an interval that touches no change
        (-0.1, -0.2, 0.0, "unresolved"),
        (0.02, 0.0, EDGE, "unresolved"),  # or the margin
        (-0.02, -EDGE, 0.0, "unresolved"),
        (0.02, -0.04, 0.04, "same"),
    ],
)
def test_the_very_edges(estimate: float, low: float, high: float, outcome: str) -> None:
    verdict = replace(paired(SLOWER_IS_WORSE, FLAT, FLAT), shift=Shift(estimate, low, high, 10))
    assert verdict.at(0.05).outcome == outcome


@BOTH
def test_sure_of_a_change_but_not_that_it_is_beyond_the_margin_is_unresolved(metric: Metric) -> None:
    verdict = paired(metric, FLAT, worse_by(1.045, metric))
    assert verdict.outcome is Outcome.unresolved
    assert (verdict.rounds_needed or 0) > 100 and verdict.why == f"about {verdict.rounds_needed} rounds would tell"
    closer = paired(metric, FLAT, worse_by(1.049, metric))
    assert closer.rounds_needed is None and closer.why == "too close to the margin to tell: at least 200 rounds"


def test_noise_that_hides_everything_is_unresolved_with_the_rounds_that_would_tell() -> None:
    noisy = rounds(0.7, 1.4, 0.8, 1.3, 0.9, 1.5, 0.75, 1.2, 1.1, 1.0)
    verdict = paired(SLOWER_IS_WORSE, FLAT, noisy)
    assert (
        verdict.outcome is Outcome.unresolved
        and verdict.rounds_needed is None
        and verdict.why == "too close to the margin to tell: at least 200 rounds"
    )


@pytest.mark.parametrize("num", [1, 2, 5])
def test_fewer_than_six_rounds_say_nothing_however_large_the_change(num: int) -> None:
    verdict = paired(SLOWER_IS_WORSE, rounds(*[1.0] * num), rounds(*[2.0] * num))
    assert (verdict.outcome, verdict.rounds_needed, verdict.why) == ("unresolved", 18, f"{num} of the 6 rounds needed, 18 are recommended")
    assert verdict.ratio() == 2.0 and verdict.ratio("low") is None
    assert paired(SLOWER_IS_WORSE, rounds(*[1.0] * 6), rounds(*[2.0] * 6)).outcome is Outcome.regressed


def test_only_rounds_that_both_sides_have_are_paired() -> None:
    base, new = {r: float(r) for r in range(1, 9)}, {r: r * 1.2 for r in range(3, 14)}
    verdict = paired(SLOWER_IS_WORSE, base, new)
    assert (verdict.outcome, verdict.shift.num if verdict.shift else 0) == ("regressed", 6)
    assert verdict.ratio() == pytest.approx(1.2)
    apart = paired(SLOWER_IS_WORSE, {1: 1.0}, {2: 1.0})
    assert (apart.outcome, apart.why) == ("not comparable", "no round has a positive value on both sides")


@BOTH
def test_ties_and_no_variance_are_the_same(metric: Metric) -> None:
    verdict = paired(metric, rounds(*[3.0] * 10), rounds(*[3.0] * 10))
    assert verdict.outcome is Outcome.same and (verdict.ratio("low"), verdict.ratio("high")) == (1.0, 1.0)
    assert paired(metric, rounds(*[3.0] * 10), rounds(*[3.0] * 8, 3.1, 2.9)).outcome is Outcome.same


@pytest.mark.parametrize("odd", [None, 0, 0.0, -1.0, math.nan, math.inf, -math.inf], ids=str)
def test_a_round_without_a_positive_number_is_no_round(odd: Any) -> None:
    enough = paired(SLOWER_IS_WORSE, FLAT, rounds(*[1.2] * 9, odd))
    assert (enough.outcome, enough.shift.num if enough.shift else 0) == ("regressed", 9)
    few = paired(SLOWER_IS_WORSE, rounds(*[odd] * 5, *[1.0] * 5), FLAT)
    assert (few.outcome, few.why) == ("unresolved", "5 of the 6 rounds needed, 18 are recommended")
    if odd is not None:
        none = paired(SLOWER_IS_WORSE, FLAT, rounds(*[odd] * 10))
        assert (none.outcome, none.shift) == ("not comparable", None)


def test_a_side_without_a_value_is_missing_and_neither_side_is_no_verdict() -> None:
    for judge in (lambda b, n: judge_paired(OTHER, SLOWER_IS_WORSE, b, n, 0.05), lambda b, n: judge_exact(SAME, METRICS["steps"], b, n)):
        for base, new, said in ((rounds(1), {}, "new"), (rounds(1), rounds(None), "new"), ({}, rounds(1), "base")):
            verdict = judge(base, new)
            assert verdict is not None and (verdict.outcome, verdict.why) == ("missing", f"the {said} one has no value")
            assert (verdict.base_values, verdict.values) == (base, new)
        assert judge({}, {}) is None and judge(rounds(None, None), {}) is None


@BOTH
def test_97_percent_less_is_something_else_within_one_strategy_and_a_finding_between_two(metric: Metric) -> None:
    for factor in (0.03, 1 / 0.03):
        new = rounds(*[factor] * 10)
        verdict = paired(metric, FLAT, new, subject=SAME)
        assert (verdict.outcome, verdict.why) == ("not comparable", "33.3 x apart: something else was measured")
        assert verdict.ratio() == pytest.approx(factor)
        assert paired(metric, FLAT, new).outcome == ("improved" if (factor > 1) == metric.higher_is_better else "regressed")
    for factor, is_wild in ((2.99, False), (1 / 2.99, False), (3.01, True), (1 / 3.01, True)):
        outcome = paired(metric, FLAT, rounds(*[factor] * 10), subject=SAME).outcome
        assert (outcome is Outcome.not_comparable) == is_wild, factor


MIRROR = {Outcome.regressed: Outcome.improved, Outcome.improved: Outcome.regressed}
PAIRS = st.lists(st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)), min_size=1, max_size=14)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(PAIRS, st.floats(0.3, 3), st.sampled_from([0.0, 0.01, 0.05, 0.25]), st.sampled_from([SLOWER_IS_WORSE, FASTER_IS_BETTER]))
def test_swapping_the_arms_mirrors_the_verdict(pairs: list[tuple[float, float]], factor: float, margin: float, metric: Metric) -> None:
    one, other = rounds(*(a for a, _ in pairs)), rounds(*(b * factor for _, b in pairs))
    verdict, swapped = paired(metric, one, other, margin), paired(metric, other, one, margin)
    assert swapped.outcome is MIRROR.get(verdict.outcome, verdict.outcome)
    assert swapped.rounds_needed == verdict.rounds_needed
    assert swapped.ratio() == pytest.approx(1 / (verdict.ratio() or 0), rel=1e-12)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(PAIRS, st.sampled_from([SLOWER_IS_WORSE, FASTER_IS_BETTER]))
def test_swapping_the_arms_flips_shift_and_interval_to_the_last_bit(pairs: list[tuple[float, float]], metric: Metric) -> None:
    one, other = rounds(*(a for a, _ in pairs)), rounds(*(b for _, b in pairs))
    verdict, swapped = paired(metric, one, other), paired(metric, other, one)
    assert verdict.shift is not None and swapped.shift == -verdict.shift


def test_the_same_evidence_at_another_margin() -> None:
    verdict = paired(SLOWER_IS_WORSE, FLAT, worse_by(1.08, SLOWER_IS_WORSE))
    assert [verdict.at(m).outcome for m in (0.01, 0.05, 0.08, 0.2)] == ["regressed", "regressed", "unresolved", "same"]
    assert all(verdict.at(m).margin == m and verdict.at(m).at(0.05) == verdict for m in (0.0, 0.08, 0.2))
    exact = judge_exact(SAME, METRICS["steps"], rounds(10), rounds(11))
    lacking = judge_paired(OTHER, SLOWER_IS_WORSE, FLAT, {}, 0.05)
    assert exact is not None and exact.at(9.0) is exact and lacking is not None and lacking.at(9.0) is lacking


def test_a_margin_of_nothing_leaves_no_none_in_the_words() -> None:
    for verdict in (
        paired(SLOWER_IS_WORSE, FLAT, worse_by(1.0, SLOWER_IS_WORSE), margin=0.0),
        judge_history(SAME, SLOWER_IS_WORSE, [1.0, 1.02, 0.98, 1.01, 0.99], rounds(1.0), rounds(1.0), 0.0),
    ):
        assert verdict is not None and verdict.outcome is Outcome.unresolved
        assert "None" not in (verdict.why or "")


STEPS, TOKENS, DIGEST = METRICS["steps"], METRICS["output_tokens"], METRICS["output_digest"]


@pytest.mark.parametrize(
    ("metric", "base", "new", "outcome", "why"),
    [
        (STEPS, (100, 100), (100,), "same", None),
        (STEPS, (100, None), (None, 100), "same", None),
        (STEPS, (100,), (101, 101), "regressed", "+1"),
        (STEPS, (100,), (99,), "improved", "-1"),
        (TOKENS, (100,), (99,), "regressed", "-1"),
        (TOKENS, (100,), (110,), "improved", "+10"),
        (METRICS["preemptions"], (0, 0), (3, 3), "regressed", "+3"),
        (METRICS["preemptions"], (0,), (0,), "same", None),
        (DIGEST, ("ab", "ab"), ("ab",), "same", None),
        (DIGEST, ("ab",), ("cd",), "regressed", "other tokens"),
        (STEPS, (100, 101), (100,), "not comparable", "differs between rounds of the base one: it is not exact here"),
        (STEPS, (100, 100), (100, 99), "not comparable", "differs between rounds of the new one: it is not exact here"),
        (DIGEST, ("ab",), ("ab", "cd"), "not comparable", "differs between rounds of the new one: it is not exact here"),
    ],
)
def test_exact_metrics_by_hand(metric: Metric, base: tuple[Any, ...], new: tuple[Any, ...], outcome: str, why: str | None) -> None:
    verdict = judge_exact(SAME, metric, rounds(*base), rounds(*new))
    assert verdict is not None and (verdict.outcome, verdict.why, verdict.shift) == (outcome, why, None)


def test_the_difference_of_a_large_count_is_exact_too() -> None:
    verdict = judge_exact(SAME, METRICS["kv_copy_bytes"], rounds(10_000_000), rounds(11_234_567))
    assert verdict is not None and (verdict.why or "").replace(",", "") == "+1234567"


def test_the_middle_is_the_median_of_what_is_there() -> None:
    assert middle(rounds(3.0, None, 1.0, 2.0)) == 2.0 and middle(rounds(1, 2)) == 1.5
    assert middle(rounds(None, "ab")) == "ab" and middle({}) is None and middle(rounds(None)) is None


STEADY = [1.0, 1.02, 0.98, 1.01, 0.99]


def against(history: list[float], new: float, metric: Metric = SLOWER_IS_WORSE, margin: float = 0.05) -> tuple[str, str | None]:
    verdict = judge_history(SAME, metric, history, rounds(1.0), rounds(new, new), margin)
    assert verdict is not None
    return verdict.outcome, verdict.why


@BOTH
def test_a_run_is_judged_by_how_much_earlier_runs_differed(metric: Metric) -> None:
    """Five runs that spread by 1.6 %: t(0.975, 4) = 2.776, so one more falls within 4.8 % of their mean."""

    def outcome(worse: float) -> str:
        return against(STEADY, 1 / worse if metric.higher_is_better else worse, metric)[0]

    assert [outcome(worse) for worse in (1.2, 1.06, 0.94, 0.8)] == ["regressed", "regressed", "improved", "improved"]
    assert outcome(1.0) == "same" and outcome(1.03) == "unresolved"
    assert against(STEADY, 1.2, margin=0.3) == ("same", None), "a change, but a small one"
    assert against([1.0] * 5, 1.04) == against([1.0] * 5, 1.0) == ("same", None)


def test_runs_that_differ_too_much_or_are_too_few_say_nothing() -> None:
    assert against([1.0, 1.3, 0.8, 1.2, 0.7], 1.3) == ("unresolved", "runs differ too much")
    for num in range(5):
        outcome, why = against(STEADY[:num], 9.0)
        said = f"{num} comparable run{'s' * (num != 1)} kept, 5 are needed to judge time; --against judges within one run"
        assert (outcome, why) == ("unresolved", said)


def test_a_run_unlike_all_before_is_not_comparable() -> None:
    assert against(STEADY, 33.0) == ("not comparable", "33 x apart: something else was measured")
    for history, new in ((STEADY, 0.0), ([*STEADY, 0.0], 1.0), ([*STEADY, math.nan], 1.0)):
        assert against(history, new) == ("not comparable", "not a positive value")
    missing = judge_history(SAME, SLOWER_IS_WORSE, STEADY, rounds(1.0), {}, 0.05)
    assert missing is not None and missing.outcome is Outcome.missing
    assert judge_history(SAME, SLOWER_IS_WORSE, [], {}, {}, 0.05) is None
