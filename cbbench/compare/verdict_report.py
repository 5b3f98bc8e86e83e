"""Verdicts for people and machines: one table of text, many renderers."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cbbench.compare.gate import Judgement
from cbbench.compare.verdicts import Outcome, Subject, Verdict, middle
from cbbench.results import tables
from cbbench.results.store import Run
from cbbench.results.tables import Grid, number, seconds, size

SCHEMA_VERSION = 1
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Comparison:
    """Runs, what is said of them, and what the gate makes of it. `verdicts` worst first."""

    runs: list[Run]
    verdicts: list[Verdict]
    judgement: Judgement


HEADERS = ["workload", "run", "arm", "base", "metric", "base value", "value", "change", "95 % range", "rounds", "verdict", "why"]
ORDER = list(Outcome)


def worst_first(verdicts: list[Verdict]) -> list[Verdict]:
    """By outcome, gated metrics before others, the largest change first."""
    return sorted(verdicts, key=lambda v: (ORDER.index(v.outcome), not v.metric.gated, -abs(v.shift.estimate) if v.shift else 0.0))


def value_text(verdict: Verdict, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    key = verdict.metric.key
    show = size if key.endswith("_bytes") else seconds if "_s_" in key or key.endswith("host_s") else number
    return show(value)


def change_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def as_grid(verdicts: list[Verdict], judgement: Judgement, counted: list[Verdict] | None = None) -> Grid:
    """A row a verdict; the counts of an arm that did not change share one. What is the same in every row stands below."""
    lines = [_line(v) for v in verdicts if not _is_quiet(v)]
    quiet = Counter(v.subject for v in verdicts if _is_quiet(v))
    for subject, num in quiet.items():
        what = [subject.workload, subject.run, subject.arm, _base(subject), f"{num} exact counts"]
        lines.append([*what, *["-"] * 5, str(Outcome.same), ""])
    constant = [i for i, header in enumerate(HEADERS) if header in ("workload", "run", "base") and len({line[i] for line in lines}) == 1]
    kept = [i for i in range(len(HEADERS)) if i not in constant and any(line[i] not in ("", "-") for line in lines)]
    said = [f"{HEADERS[i]} {lines[0][i]}" for i in constant] + footer(counted or verdicts, judgement)
    num_text = sum(i < HEADERS.index("base value") for i in kept)
    return Grid("Verdicts", [HEADERS[i] for i in kept], [[line[i] for i in kept] for line in lines], "\n".join(said), num_text, turns=False)


def _is_quiet(v: Verdict) -> bool:
    return v.metric.exact and v.outcome is Outcome.same


def _base(subject: Subject) -> str:
    """The same arm elsewhere is told by where alone."""
    return subject.base.removeprefix(subject.arm)


def _line(v: Verdict) -> list[str]:
    low, high = v.ratio("low"), v.ratio("high")
    reach = "-" if low is None or high is None else f"{change_text(low)} .. {change_text(high)}"
    return [
        v.subject.workload, v.subject.run, v.subject.arm, _base(v.subject), v.metric.title,
        value_text(v, middle(v.base_values)), value_text(v, middle(v.values)), change_text(v.ratio()), reach,
        str(v.shift.num) if v.shift else "-", str(v.outcome), v.why or "",
    ]  # fmt: skip


def footer(verdicts: list[Verdict], judgement: Judgement) -> list[str]:
    """Counts, the geometric mean of each gated metric's change, the change that could have been seen, the gate."""
    counts = Counter(v.outcome for v in verdicts)
    said = [", ".join(f"{counts[outcome]} {outcome}" for outcome in ORDER if counts[outcome])] if verdicts else ["nothing to compare"]
    logs: dict[str, list[float]] = {}
    widths: dict[str, list[float]] = {}
    for v in verdicts:
        if (ratio := v.ratio()) is not None and v.shift is not None and v.metric.gated:
            logs.setdefault(v.metric.title, []).append(math.log(ratio))
            if v.shift.half_width is not None:
                widths.setdefault(v.metric.title, []).append(v.shift.half_width)
    if any(len(found) > 1 for found in logs.values()):
        means = [f"{title} {change_text(math.exp(sum(found) / len(found)))}" for title, found in logs.items()]
        said.append(f"geometric mean: {', '.join(means)}")
    if widths:
        seen = [f"{title} {100 * math.expm1(max(found)):.1f} %" for title, found in widths.items()]
        said.append(f"smallest change that these rounds can show: {', '.join(seen)}")
    if doubts := list(dict.fromkeys(v.doubt for v in verdicts if v.doubt)):
        said.append(f"no gate relies on these times: {'; '.join(doubts)}")
    return [*said, f"gate: {judgement.says}"]


def as_json(found: Comparison) -> str:
    """Complete: the gate, raw values of every round, estimates, intervals, and the runs themselves."""
    hits = [
        {"rule": rule, "workload": v.subject.workload, "arm": v.subject.arm, "metric": v.metric.key} for rule, v in found.judgement.hits
    ]
    undecided = [{"workload": v.subject.workload, "arm": v.subject.arm, "metric": v.metric.key} for v in found.judgement.undecided]
    gate = {"exit_code": found.judgement.exit_code, "says": found.judgement.says, "hits": hits, "undecided": undecided}
    rows = [_row(v) for v in found.verdicts]
    whole = {"schema_version": SCHEMA_VERSION, "gate": gate, "verdicts": rows, "runs": tables.as_data(found.runs)}
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def _row(v: Verdict) -> dict[str, Any]:
    subject = {"workload": v.subject.workload, "run": v.subject.run, "arm": v.subject.arm, "base": v.subject.base}
    return {
        **subject, "metric": v.metric.key, "outcome": str(v.outcome), "why": v.why, "base_value": middle(v.base_values),
        "value": middle(v.values), "ratio": v.ratio(), "ratio_low": v.ratio("low"), "ratio_high": v.ratio("high"),
        "rounds": v.shift.num if v.shift else None, "rounds_needed": v.rounds_needed, "doubt": v.doubt, "margin": v.margin,
        "exact": v.metric.exact, "gated": v.metric.gated, "base_values": {str(r): value for r, value in v.base_values.items()},
        "values": {str(r): value for r, value in v.values.items()},
    }  # fmt: skip


def as_frame(found: Comparison) -> pd.DataFrame:
    """Tidy: a row a run, arm, round and metric, with the verdict on that arm and metric where there is one."""
    names = ["run", "workload", "workload_digest", "arm", "round", "failed", "interrupted"]
    measured = tables.as_frame(found.runs)
    measured = measured.reindex(columns=[*names, *(key for key in measured.columns if key not in names)])
    tidy = measured.melt(id_vars=names, var_name="metric", value_name="value")
    tidy = tidy[tidy["value"].notna() | tidy["failed"].notna()]
    kept = ("run", "workload", "arm", "metric", "base", "base_value", "outcome", "why", "ratio", "ratio_low", "ratio_high", "margin")
    said = pd.DataFrame([{key: value for key, value in _row(v).items() if key in kept} for v in found.verdicts], columns=list(kept))
    return tidy.merge(said, how="outer", on=["run", "workload", "arm", "metric"])


def as_junit(found: Comparison) -> str:
    """A test case an arm and metric: failure is a hit, error what the gate cannot vouch for, skipped what has no answer."""
    verdicts = found.verdicts
    several = len({v.subject.run for v in verdicts}) > 1
    suite = ElementTree.Element("testsuite", name="cbbench compare")
    kinds = _junit_kinds(found)
    counts = Counter(kinds)
    for name, kind in (("tests", None), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(verdicts) if kind is None else counts[kind]))
    for v, kind in zip(verdicts, kinds, strict=True):
        where = f"{v.subject.run}." if several else ""
        names = {"classname": f"{where}{v.subject.workload}.{v.subject.arm}", "name": v.metric.key, "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", names)
        said = f"{v.outcome}: {value_text(v, middle(v.base_values))} -> {value_text(v, middle(v.values))}"
        said += f" ({change_text(v.ratio())})" if v.shift else ""
        said += f": {v.doubt or v.why}" if v.doubt or v.why else ""
        if kind:
            element = ElementTree.SubElement(
                case, kind, {"message": said} if kind == "skipped" else {"message": said, "type": str(v.outcome)}
            )
            element.text = said
    for element in suite.iter():
        element.attrib = {key: NO_XML.sub("\ufffd", value) for key, value in element.attrib.items()}
        element.text = NO_XML.sub("\ufffd", element.text) if element.text else element.text
    whole = ElementTree.Element("testsuites")
    whole.append(suite)
    ElementTree.indent(whole)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(whole, encoding="unicode")}\n'


def _junit_kinds(found: Comparison) -> list[str]:
    """What no rule looks at is neither failure nor error, whatever its verdict."""
    judgement = found.judgement
    hits = {id(v) for _, v in judgement.hits}
    errors = {id(v) for v in (*judgement.holes, *judgement.undecided)} if judgement.gated else set()
    clear = {id(v) for v in judgement.passed}
    answered = (Outcome.same, Outcome.improved)
    return [
        "failure" if id(v) in hits else "error" if id(v) in errors else "" if id(v) in clear or v.outcome in answered else "skipped"
        for v in found.verdicts
    ]


def as_markdown(found: Comparison, counted: list[Verdict] | None = None) -> str:
    return tables.as_markdown("Comparison", [as_grid(found.verdicts, found.judgement, counted)])
