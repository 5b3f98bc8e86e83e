"""A gate says 0, 1 or 3, and 0 only for what was looked at; what is asked of it wrongly is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cbbench.compare.gate import Rule, judge, metric_key, parse_margins, parse_rule, percent
from cbbench.compare.stats import Shift
from cbbench.compare.verdicts import Outcome, Subject, Verdict, judge_paired
from cbbench.results.compared_metrics import METRICS
from tests.support.commands import refusal

TIMED = ", ".join(key for key, metric in METRICS.items() if not metric.exact)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("regressed", Rule("regressed", kind="regressed")),
        ("unresolved", Rule("unresolved", kind="unresolved")),
        ("missing", Rule("missing", kind="missing")),
        ("ttft:10%", Rule("ttft:10%", metric="ttft_s_p50", margin=0.1)),
        ("throughput:2.5%", Rule("throughput:2.5%", metric="output_tok_per_s", margin=0.025)),
        ("itl_s_p99:5 %", Rule("itl_s_p99:5 %", metric="itl_s_p99", margin=0.05)),
        ("memory:0%@*paged*", Rule("memory:0%@*paged*", metric="peak_memory_bytes", margin=0.0, arms="*paged*")),
        ("tpot:5%@a+b+c@1a2b", Rule("tpot:5%@a+b+c@1a2b", metric="tpot_s_p50", margin=0.05, arms="a+b+c@1a2b")),
        ("tpot:5%@", Rule("tpot:5%@", metric="tpot_s_p50", margin=0.05)),
    ],
)
def test_a_rule_as_it_is_written(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule


FORMS = "should be regressed, unresolved, missing, or METRIC:5%[@ARM]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("regresed", f"--fail-on regresed: {FORMS}; did you mean regressed?"),
        ("Missing", f"--fail-on Missing: {FORMS}; did you mean missing?"),
        ("throughput", f"--fail-on throughput: {FORMS}"),
        ("", f"--fail-on : {FORMS}"),
        ("ttfd:5%", "--fail-on ttfd: no metric with a margin; did you mean ttft?"),
        ("tpot_s_p5:5%", "--fail-on tpot_s_p5: no metric with a margin; did you mean tpot_s_p50?"),
        ("steps:5%", f"--fail-on steps: no metric with a margin; there are {TIMED}"),
        (":5%", f"--fail-on : no metric with a margin; there are {TIMED}"),
        ("ttft:5", "--fail-on ttft:5: the margin should be a percentage like 5%"),
        ("ttft:%", "--fail-on ttft:%: the margin should be a percentage like 5%"),
        ("ttft:-5%", "--fail-on ttft:-5%: the margin should be a percentage like 5%"),
        ("ttft:5%%", "--fail-on ttft:5%%: the margin should be a percentage like 5%"),
        ("ttft:0.05@a", "--fail-on ttft:0.05@a: the margin should be a percentage like 5%"),
        ("ttft:@a:5%", "--fail-on ttft:@a:5%: the margin should be a percentage like 5%"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    assert refusal(lambda: parse_rule(text)) == said


def test_margins_as_they_are_written() -> None:
    assert parse_margins([]) == {}
    assert parse_margins(["5%", "ttft=10%", "host_s=1.5%"]) == {"": 0.05, "ttft_s_p50": 0.1, "host_s": 0.015}
    assert parse_margins(["5%", "7%"]) == {"": 0.07}, "the last one holds"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft", "--margin ttft: the margin should be a percentage like 5%"),
        ("ttft=5", "--margin ttft=5: the margin should be a percentage like 5%"),
        ("=5%", f"--margin : no metric with a margin; there are {TIMED}"),
        ("ttft:5%", "--margin ttft:5%: the margin should be a percentage like 5%"),
        ("trougput=5%", "--margin trougput: no metric with a margin; did you mean throughput?"),
        ("output_digest=5%", f"--margin output_digest: no metric with a margin; there are {TIMED}"),
    ],
)
def test_a_margin_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    assert refusal(lambda: parse_margins([text])) == said


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), (" 5 % ", 0.05), ("0%", 0.0), ("12.5%", 0.125), ("999%", 9.99)])
def test_percentages(text: str, value: float) -> None:
    assert percent("here", text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "%", "5", "five%", "nan%", "inf%", "-1%", "1000%", "5%5%"])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    assert refusal(lambda: percent("here", text)) == "here: the margin should be a percentage like 5%"


def test_short_names_are_the_gated_times() -> None:
    assert metric_key("x", "memory") == "peak_memory_bytes"
    short = [metric_key("x", name) for name in ("throughput", "ttft", "tpot")]
    assert short == [key for key, metric in METRICS.items() if metric.gated and not metric.exact]


def verdict(outcome: str, metric: str = "ttft_s_p50", arm: str = "static+padded+cat") -> Verdict:
    return Verdict(Subject("w", "run", arm, "base", False), METRICS[metric], Outcome(outcome))


def measured(times_as_bad: float, metric: str = "ttft_s_p50", arm: str = "static+padded+cat") -> Verdict:
    """Ten rounds without noise at the default margin."""
    sides = [dict.fromkeys(range(10), value) for value in (1.0, times_as_bad)]
    found = judge_paired(Subject("w", "run", arm, "base", False), METRICS[metric], *sides, 0.05)
    assert found is not None
    return found


EVERY = [str(outcome) for outcome in Outcome]


@pytest.mark.parametrize(
    ("rules", "codes"),
    [
        ([], {}),
        (["regressed"], {"regressed": 1, "unresolved": 3, "failed": 3, "missing": 3, "not comparable": 3}),
        (["unresolved"], {"unresolved": 1, "failed": 3, "missing": 3, "not comparable": 3}),
        (["missing"], {"failed": 1, "missing": 1, "not comparable": 3}),
        (["regressed", "missing", "unresolved"], {"regressed": 1, "unresolved": 1, "failed": 1, "missing": 1, "not comparable": 3}),
    ],
)
def test_the_exit_code_of_each_outcome(rules: list[str], codes: dict[str, int]) -> None:
    gates = [parse_rule(text) for text in rules]
    for outcome in EVERY:
        judgement = judge([verdict(outcome), verdict("same"), verdict("improved", "steps")], gates)
        assert judgement.exit_code == codes.get(outcome, 0), outcome
        assert bool(judgement.hits) == (judgement.exit_code == 1)


def test_a_hit_wins_over_what_cannot_be_vouched_for() -> None:
    found = judge([verdict("missing"), verdict("regressed")], [parse_rule("regressed")])
    assert (found.exit_code, [v.outcome for _, v in found.hits], [v.outcome for v in found.holes]) == (1, ["regressed"], ["missing"])
    assert judge([verdict("regressed")], [parse_rule("regressed")], damaged=True).exit_code == 1


def test_nothing_judged_and_nothing_read_cannot_be_vouched_for() -> None:
    rules = [parse_rule("regressed")]
    assert [judge([], rules).exit_code, judge([verdict("same")], rules, damaged=True).exit_code] == [3, 3]
    assert [judge([], []).exit_code, judge([], [], damaged=True).exit_code] == [0, 0]


def test_metrics_that_are_only_shown_do_not_hit() -> None:
    for outcome in EVERY:
        only_shown = judge([verdict(outcome, "itl_s_p99"), verdict("same")], [parse_rule("regressed"), parse_rule("unresolved")])
        assert only_shown.exit_code == 0, outcome
    assert judge([verdict("missing", "itl_s_p99")], [parse_rule("missing")]).exit_code == 1, "unless asked for what is missing"
    assert judge([verdict("missing", "itl_s_p99")], [parse_rule("itl_s_p99:5%")]).exit_code == 3, "or for that metric by name"


def test_a_rule_of_one_metric_has_its_own_margin_and_hits_only_its_arms() -> None:
    slow, paged = measured(1.08), measured(1.08, arm="static+padded+paged")
    assert judge([slow], [parse_rule("ttft:5%")]).exit_code == 1
    assert judge([slow], [parse_rule("ttft:10%")]).exit_code == 0, "a regression by the table's margin, not by the rule's"
    assert judge([measured(1.03)], [parse_rule("ttft:2%")]).exit_code == 1, "and the other way round"
    only = judge([slow, paged, measured(1.08, "tpot_s_p50", "static+padded+paged")], [parse_rule("ttft:5%@*paged")])
    assert only.hits == [("ttft:5%@*paged", paged)]
    assert judge([measured(1.5, "itl_s_p99")], [parse_rule("itl_s_p99:5%")]).exit_code == 1, "one that is only shown else"
    assert judge([measured(0.5)], [parse_rule("ttft:5%")]).exit_code == 0, "better is no hit"


def test_every_rule_that_hits_is_named() -> None:
    found = judge([measured(1.5), measured(1.5, arm="b")], [parse_rule("regressed"), parse_rule("ttft:5%@b")])
    assert [(rule, v.subject.arm) for rule, v in found.hits] == [("regressed", "static+padded+cat"), ("ttft:5%@b", "b")]


@pytest.mark.parametrize(
    ("verdicts", "rules", "said"),
    [
        ([], [], "not gated (--fail-on)"),
        (["regressed"], [], "not gated (--fail-on)"),
        (["same"], ["regressed"], "passed (1 time judged)"),
        (["same", "improved", "same"], ["regressed"], "passed (3 times judged)"),
        (["unresolved"], ["missing"], "passed (1 time judged)"),
        (["regressed"], ["regressed"], "FAILED: 1 hit"),
        (["regressed", "regressed"], ["regressed"], "FAILED: 2 hits"),
        (
            ["missing", "not comparable"],
            ["regressed"],
            "CANNOT VOUCH: 2 needed rows are missing or not comparable: static+padded+cat, TTFT p50: missing",
        ),
        (["unresolved"], ["regressed"], "CANNOT VOUCH: 1 time cannot be judged: static+padded+cat, TTFT p50: unresolved"),
        ([], ["regressed"], "CANNOT VOUCH: no verdict was reached"),
    ],
)
def test_what_the_gate_says(verdicts: list[str], rules: list[str], said: str) -> None:
    assert judge([verdict(name) for name in verdicts], [parse_rule(text) for text in rules]).says == said


@pytest.mark.parametrize("text", ["ttft:5%@pagde", "tpot:5%"])
def test_a_rule_that_looks_at_nothing_cannot_vouch(text: str) -> None:
    assert judge([measured(1.0)], [parse_rule(text)]).exit_code == 3


def test_what_a_rule_leaves_out_is_no_hole_of_it() -> None:
    verdicts = [measured(1.0, "itl_s_p99", "b"), verdict("missing", "itl_s_p99", "a")]
    assert judge(verdicts, [parse_rule("itl_s_p99:5%@b")]).exit_code == 0


def test_a_damaged_run_is_what_the_gate_names() -> None:
    found: Any = judge([verdict("same")], [parse_rule("regressed")], damaged=True)
    assert found.says.startswith("CANNOT VOUCH") and "nothing was judged" not in found.says


def unsure(margin: float, low: float, high: float, **more: Any) -> Verdict:
    """Unresolved at that margin: the interval, of the logarithm."""
    shift = Shift((low + high) / 2, low, high, 10)
    return Verdict(
        Subject("w", "run", "a", "base", False), METRICS["ttft_s_p50"], Outcome.unresolved, "w", shift=shift, margin=margin, **more
    )


def test_a_time_that_could_still_be_a_regression_cannot_be_vouched_for() -> None:
    """I1: runs of few rounds passed, 1.5 or 2.9 times slower, because counts or other rows were the same."""
    rules = [parse_rule(text) for text in ("regressed", "ttft:10%", "missing")]
    for num in (1, 3, 5):
        sides = [dict.fromkeys(range(num), value) for value in (1.0, 2.9)]
        slow = judge_paired(Subject("w", "run", "a", "base", True), METRICS["ttft_s_p50"], *sides, 0.05)
        assert slow is not None
        for some in (rules, rules[:1], rules[1:2]):
            found = judge([slow, verdict("same", "steps")], some)
            assert found.exit_code == 3 and f"{num} of the 6 rounds needed, 18 are recommended" in found.says
    assert judge([slow, verdict("same", "steps")], rules[2:]).exit_code == 0, "nothing is missing"


def test_what_can_only_be_the_same_or_better_is_no_open_question() -> None:
    """Whether it is the same or improved is unresolved; that it has not regressed is not."""
    rules = [parse_rule("regressed")]
    assert judge([unsure(0.05, -0.09, 0.01)], rules).exit_code == 0
    assert judge([unsure(0.05, -0.01, 0.06)], rules).exit_code == 3
    assert judge([unsure(0.05, -0.09, 0.01)], [parse_rule("unresolved")]).exit_code == 1


def test_no_gate_relies_on_a_time_in_doubt() -> None:
    slow, doubt = measured(1.5), "rounds of one process"
    for rule in ("regressed", "ttft:5%"):
        found = judge([replace(slow, doubt=doubt)], [parse_rule(rule)])
        assert (found.exit_code, found.undecided) == (3, (replace(slow, doubt=doubt),)) and found.says.endswith(doubt)
    assert judge([replace(slow, doubt=doubt), verdict("regressed", "steps")], [parse_rule("regressed")]).exit_code == 1


def test_a_metric_s_own_rule_is_its_margin() -> None:
    """I6: a looser `ttft:10%` beside `regressed` said nothing."""
    rules = [parse_rule("regressed"), parse_rule("ttft:10%")]
    assert judge([measured(1.08)], rules).exit_code == 0 and judge([measured(1.12)], rules).exit_code == 1
    assert judge([measured(1.08, "tpot_s_p50"), measured(1.08)], rules).exit_code == 1, "other metrics keep the common one"
    assert judge([measured(1.08, arm="b")], [parse_rule("regressed"), parse_rule("ttft:10%@a*")]).exit_code == 1, "as do other arms"
