"""Every rendering of a comparison says the same, loses nothing, and can be read by what reads it."""

from __future__ import annotations

import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from cbbench.compare import gate
from cbbench.compare.arms import Rules, compare_within
from cbbench.compare.publish import MAX_ANNOTATIONS, cut, escaped, to_github
from cbbench.compare.verdict_report import Comparison, as_frame, as_grid, as_json, as_junit, as_markdown, footer, worst_first
from cbbench.compare.verdicts import Outcome, Subject, Verdict
from cbbench.results.compared_metrics import METRICS
from cbbench.results.store import Cell, Run
from tests.compare.test_arms import EXACT_KEYS, TWIN, A, B, C, arm, cells, saved

ODD = {"markup": "<b a='1'>&amp; \"q\" ]]>", "emoji": "\N{PARTY POPPER} é 漢字", "two lines": "one\ntwo\ttab", "percent": "5 % of x: y, z"}
CONTROL = {"colour": "\x1b[31mred", "nothing": "a\x00b", "half a character": "a\udcffb"}


def comparison(verdicts: list[Verdict], runs: list[Run] | None = None, fail_on: tuple[str, ...] = ()) -> Comparison:
    listed = worst_first(verdicts)
    return Comparison(runs or [], listed, gate.judge(listed, [gate.parse_rule(text) for text in fail_on]))


def a_run() -> Run:
    """An arm with its twin, one that is slower, one that failed, one that was never run."""
    arms = [arm(A), arm(TWIN, base_of=A), arm(B), arm(C), arm("x+y+z")]
    slower = cells(B, ttft_s_p50=2.5, output_tok_per_s=1234.5, tpot_s_p50=None)
    return saved(arms, cells(A, steps=101, padded_positions=90), cells(TWIN), slower, [*cells(C, 2), Cell(C, 3, failed=ODD["markup"])])


def whole(*fail_on: str) -> Comparison:
    run = a_run()
    return comparison(compare_within(run, None, Rules()), [run], fail_on)


def said(why: str, outcome: str = "failed", arm: str = "a", metric: str = "ttft_s_p50", run: str = "r") -> Verdict:
    return Verdict(Subject("w", run, arm, "base", False), METRICS[metric], Outcome(outcome), why)


def test_the_worst_stands_first_and_what_is_gated_before_what_is_shown() -> None:
    found = whole().verdicts
    order = [list(Outcome).index(v.outcome) for v in found]
    assert order == sorted(order) and {v.outcome for v in found} >= {"regressed", "failed", "missing", "improved", "same"}
    for outcome in Outcome:
        group = [v for v in found if v.outcome is outcome]
        assert [v.metric.gated for v in group] == sorted((v.metric.gated for v in group), reverse=True)
    runs = [saved([arm(A), arm(B)], cells(A), cells(B, ttft_s_p50=value)) for value in (2, 3)]
    small, large = (comparison(compare_within(run, None, Rules())).verdicts[0] for run in runs)
    assert worst_first([small, large]) == [large, small]


KNOWN = {
    "testsuites": set(), "testsuite": {"name", "tests", "failures", "errors", "skipped"}, "testcase": {"classname", "name", "time"},
    "failure": {"message", "type"}, "error": {"message", "type"}, "skipped": {"message"},
}  # fmt: skip


def assert_junit(found: Comparison) -> dict[tuple[str, str], str]:
    """Reads it as Jenkins and GitLab do; (class, name) -> failure, error, skipped or nothing."""
    root = ElementTree.fromstring(as_junit(found).encode())
    assert all(set(element.attrib) <= KNOWN[element.tag] for element in root.iter())
    (suite,) = root
    children = Counter(child.tag for case in suite for child in case)
    told = [int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")]
    assert told == [len(suite), children["failure"], children["error"], children["skipped"]]
    assert all(case.attrib["name"] and case.attrib["classname"] and len(case) <= 1 for case in suite)
    assert all(child.attrib["message"] == child.text for case in suite for child in case)
    return {(case.attrib["classname"], case.attrib["name"]): case[0].tag if len(case) else "" for case in suite}


KINDS = {"regressed": "failure", "failed": "error", "missing": "error", "not comparable": "error", "unresolved": "error"}


def test_junit_has_a_case_a_verdict_and_counts_what_it_has() -> None:
    found = whole("regressed")
    expected = {(f"w.{v.subject.arm}", v.metric.key): KINDS.get(v.outcome, "") for v in found.verdicts}
    assert assert_junit(found) == expected and {"failure", "error", ""} <= set(expected.values())
    everything = comparison([said("why", outcome, outcome) for outcome in Outcome], fail_on=("regressed", "unresolved"))
    assert assert_junit(everything) == {(f"w.{o}", "ttft_s_p50"): KINDS.get(o, "") for o in Outcome} | {
        ("w.unresolved", "ttft_s_p50"): "failure"
    }


def test_junit_says_nothing_bad_of_what_no_rule_looks_at() -> None:
    """I12: p99 was a failure although nothing gated it."""
    shown_only = [said("why", outcome, outcome, "itl_s_p99") for outcome in Outcome]
    quiet = {(f"w.{o}", "itl_s_p99"): "" if o in ("same", "improved") else "skipped" for o in Outcome}
    assert assert_junit(comparison(shown_only, fail_on=("regressed",))) == quiet
    assert assert_junit(comparison(shown_only)) == quiet, "nor where nothing is gated"
    assert assert_junit(comparison([])) == {}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_junit_keeps_what_is_no_plain_text(odd: str) -> None:
    found = comparison([said(odd, arm=odd)], fail_on=("missing",))
    assert assert_junit(found) == {(f"w.{odd}", "ttft_s_p50"): "failure"}
    assert ElementTree.fromstring(as_junit(found))[0][0][0].text == f"failed: - -> -: {odd}"


@pytest.mark.parametrize("odd", CONTROL.values(), ids=CONTROL)
def test_junit_can_be_read_whatever_a_reason_holds(odd: str) -> None:
    assert list(assert_junit(comparison([said(odd, arm=odd)], fail_on=("regressed",))).values()) == ["error"]


def test_junit_tells_runs_apart() -> None:
    assert len(assert_junit(comparison([said("x", "regressed", run="one"), said("x", "regressed", run="two")]))) == 2


@pytest.mark.parametrize("found", [whole("regressed"), comparison([said(odd, arm=odd) for odd in ODD.values()]), comparison([])])
def test_junit_follows_the_schema(found: Comparison) -> None:
    xmlschema = pytest.importorskip("xmlschema")
    schema = xmlschema.XMLSchema(Path(__file__).with_name("junit.xsd"))
    schema.validate(as_junit(found))
    assert not schema.is_valid(as_junit(found).replace("tests=", "number="))


def cells_of(markdown: str) -> list[list[str]]:
    """Header and rows of the one table, as GitHub splits them."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    rows = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [rows[0], *rows[2:]] if rows else []


def test_markdown_holds_the_cells_of_the_table() -> None:
    for found in (whole(), whole("regressed"), comparison([said(ODD["percent"]), said(ODD["emoji"], "missing")])):
        grid = as_grid(found.verdicts, found.judgement)
        text = as_markdown(found)
        assert cells_of(text) == [grid.headers, *grid.lines] and text.endswith(f"{grid.note}\n")
    assert "nothing to compare" in as_markdown(comparison([]))


def test_markdown_keeps_a_bar_inside_its_cell() -> None:
    found = comparison([said("TypeError: unsupported operand type(s) for |: 'int' and 'str'"), said("plain")])
    assert len({len(row) for row in cells_of(as_markdown(found))}) == 1


def test_counts_that_did_not_change_share_a_row_and_what_is_the_same_everywhere_stands_below() -> None:
    found = whole()
    grid = as_grid(found.verdicts, found.judgement)
    assert next(line for line in grid.lines if f"{len(EXACT_KEYS) - 2} exact counts" in line)[-2:] == ["same", ""]
    assert grid.note.splitlines()[:2] == ["workload w", "run now"] and "base" in grid.headers, "there are two bases"
    assert len(grid.lines) == 1 + sum(not (v.metric.exact and v.outcome is Outcome.same) for v in found.verdicts)
    assert not {"workload", "run"} & set(grid.headers) and all(len(line) == len(grid.headers) for line in grid.lines)


def test_the_footer_by_hand() -> None:
    run = saved([arm(A), arm(B), arm(C)], cells(A), cells(B, ttft_s_p50=2.0), cells(C, ttft_s_p50=0.5))
    found = comparison(compare_within(run, None, Rules()), [run], ("regressed",))
    assert footer(found.verdicts, found.judgement) == [
        "1 regressed, 1 improved, 18 same",
        "geometric mean: TTFT p50 +0.0 %, output tok/s +0.0 %, TPOT p50 +0.0 %",
        "smallest change that these rounds can show: TTFT p50 0.0 %, output tok/s 0.0 %, TPOT p50 0.0 %",
        "gate: FAILED: 1 hit",
    ]
    wide = [1.1, 1.0, 1.21, 1.0, 1.1, 1.0]
    noisy = [Cell(B, r, {**cells(B)[0].metrics, "ttft_s_p50": x}) for r, x in enumerate(wide, 1)]
    run = saved([arm(A), arm(B), arm(C)], cells(A), noisy, cells(C))
    verdicts = [v for v in compare_within(run, None, Rules()) if v.metric.key == "ttft_s_p50"]
    shown = "smallest change that these rounds can show: TTFT p50 10.0 %"
    assert footer(verdicts, gate.judge(verdicts, []))[::2] == ["1 unresolved, 1 same", shown], "of the noisiest"
    assert footer(verdicts[:1], gate.judge([], [])) == ["1 unresolved", shown, "gate: not gated (--fail-on)"]
    assert "+0.0 % .. +21.0 %" in as_grid(verdicts, gate.judge([], [])).lines[0], "the 95 % range"
    assert footer([], gate.judge([], [])) == ["nothing to compare", "gate: not gated (--fail-on)"]


def test_csv_has_every_metric_of_every_round_and_its_verdict() -> None:
    found = whole()
    frame = pd.read_csv(io.StringIO(as_frame(found).to_csv(index=False)))
    assert not frame.duplicated(["run", "arm", "round", "metric"]).any()
    for cell in found.runs[0].cells:
        mine = frame[(frame["arm"] == cell.arm) & (frame["round"] == cell.round)].set_index("metric")
        for key, value in cell.metrics.items():
            if value is not None:
                read = mine.loc[key, "value"]
                assert read == value if isinstance(value, str) else math.isclose(float(read), value), (cell, key)
        assert set(mine["failed"].dropna()) == ({cell.failed} if cell.failed else set())
    for v in found.verdicts:
        rows = frame[(frame["arm"] == v.subject.arm) & (frame["metric"] == v.metric.key)]
        assert len(rows) and set(rows["outcome"]) == {str(v.outcome)} and set(rows["base"]) == {v.subject.base}
        ratio = v.ratio()
        assert rows["ratio"].isna().all() if ratio is None else rows["ratio"].tolist() == pytest.approx([ratio] * len(rows))
    assert frame[frame["arm"] == TWIN]["outcome"].isna().all(), "a base has no verdict"


def test_csv_of_a_run_without_a_round_says_what_is_missing() -> None:
    run = saved([arm(A), arm(B)])
    frame = as_frame(comparison(compare_within(run, None, Rules()), [run]))
    assert frame["outcome"].tolist() == ["missing"]


def test_json_is_strict_and_complete() -> None:
    found = whole("regressed", "missing")
    data = json.loads(as_json(found), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert data["schema_version"] == 1
    assert data["gate"]["exit_code"] == 1 and len(data["gate"]["hits"]) == len(found.judgement.hits)
    assert [run["cells"] for run in data["runs"]] == [[json.loads(json.dumps(vars(cell))) for cell in found.runs[0].cells]]
    for row, v in zip(data["verdicts"], found.verdicts, strict=True):
        assert (row["arm"], row["base"], row["metric"], row["outcome"], row["why"]) == (
            v.subject.arm, v.subject.base, v.metric.key, v.outcome, v.why,
        )  # fmt: skip
        for key, values in (("values", v.values), ("base_values", v.base_values)):
            assert row[key] == {str(number): value for number, value in values.items()}
        assert [row["ratio"], row["ratio_low"], row["ratio_high"]] == [v.ratio(), v.ratio("low"), v.ratio("high")]
        assert (row["margin"], row["gated"], row["exact"]) == (v.margin, v.metric.gated, v.metric.exact)


def to_step(found: Comparison, folder: Path, before: str = "", **environment: str) -> str:
    """What GitHub's summary of a step then holds."""
    path = folder / "summary.md"
    path.write_text(before)
    to_github(found, {"GITHUB_STEP_SUMMARY": str(path), **environment})
    return path.read_text()


def many(outcome: str, num: int, why: str = "x") -> list[Verdict]:
    return [said(why, outcome, f"{outcome}{i}") for i in range(num)]


def test_the_summary_of_a_step_is_appended_whole(tmp_path: Path) -> None:
    found = whole("regressed")
    assert to_step(found, tmp_path, "before\n") == "before\n" + as_markdown(found)


LONG = comparison([*many("regressed", 20, "x" * 400), *many("not comparable", 4000, "y" * 400)])


def test_a_summary_that_is_too_long_keeps_the_worst_rows_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    text = to_step(LONG, tmp_path)
    rows = cells_of(text)[1:]
    assert 900_000 < len(text.encode()) < 1 << 20
    assert [row[0] for row in rows] == [v.subject.arm for v in LONG.verdicts[: len(rows)]]
    assert "left out" not in cut(whole())
    assert text.endswith(f"\n{4020 - len(rows)} of 4020 rows are left out here, the worst are shown.\n")


def test_the_counts_below_a_cut_summary_are_of_all_rows(tmp_path: Path) -> None:
    assert "20 regressed, 4000 not comparable" in to_step(LONG, tmp_path)


def test_what_the_step_has_written_before_counts(tmp_path: Path) -> None:
    assert len(to_step(LONG, tmp_path, "z" * 500_000 + "\n").encode()) < 1 << 20


def test_annotations_are_for_github_only_and_on_stderr(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for environment in ({}, {"GITHUB_ACTIONS": "false"}, {"CI": "true"}):
        to_step(whole("regressed"), tmp_path, **environment)
    assert capsys.readouterr() == ("", "")
    to_github(whole("regressed"), {"GITHUB_ACTIONS": "true"})
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and all(re.fullmatch(r"::(error|warning) title=[^:,]+::[^\r\n]+", line) for line in lines)
    assert f"::error title=w {B} TTFT p50::regressed +150.0 %25 against {A}" in lines
    assert f"::error title=w {A} steps::regressed against {TWIN}: +1" in lines
    assert f"::warning title=w {C} output tok/s::failed against {A}: {C}: {ODD['markup']}" in lines


def test_annotations_name_what_the_gate_named_and_at_most_ten_of_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = many("regressed", 30) + many("missing", 30) + many("not comparable", 5) + many("same", 5)
    gates = {(): {"warning": 10}, ("regressed",): {"error": 10, "warning": 10}, ("regressed", "missing"): {"error": 10}}
    for fail_on, kinds in gates.items():
        to_github(comparison(verdicts, fail_on=fail_on), {"GITHUB_ACTIONS": "true"})
        lines = capsys.readouterr().err.splitlines()
        assert Counter(line.split()[0].strip(":") for line in lines) == kinds, fail_on
    to_github(comparison(many("not comparable", 2), fail_on=("regressed",)), {"GITHUB_ACTIONS": "true"})
    assert capsys.readouterr().err.count("::error") == 2, "what the gate could not vouch for"
    assert MAX_ANNOTATIONS == 10


def test_annotations_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    to_github(comparison([said("1 %\r\n::x, y", arm="a:b,c%\nd")]), {"GITHUB_ACTIONS": "true"})
    title, text = "title=w a%3Ab%2Cc%25%0Ad TTFT p50", "failed against base: 1 %25%0D%0A::x, y"
    assert capsys.readouterr().err == f"::warning {title}::{text}\n"
    assert escaped("%0A") == "%250A"
