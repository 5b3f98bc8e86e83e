"""When a comparison makes the exit code say so.

0 judged and clean, 1 a `--fail-on` hit, 3 cannot vouch: a row that must be there is missing, failed or not comparable, or
there is nothing to judge. 1 wins over 3. Without --fail-on nothing is gated.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fnmatch import fnmatch

from cbbench.compare.verdicts import Outcome, Verdict
from cbbench.errors import UserError
from cbbench.results.compared_metrics import ALIASES, METRICS
from cbbench.results.metric_names import find_metric

KINDS = ("regressed", "unresolved", "missing")
TOLD = (Outcome.same, Outcome.improved, Outcome.regressed)
HOLES = (Outcome.missing, Outcome.failed, Outcome.not_comparable)


@dataclass(frozen=True)
class Rule:
    """One --fail-on: an outcome of every gated metric, or one metric with a margin of its own, perhaps of some arms."""

    text: str
    kind: str | None = None
    metric: str | None = None
    margin: float = 0.0
    arms: str = "*"

    def names(self, verdict: Verdict) -> bool:
        """Whether it is one of this metric and these arms."""
        return verdict.metric.key == self.metric and fnmatch(verdict.subject.arm, self.arms)

    def hits(self, verdict: Verdict) -> bool:
        if self.metric is not None:
            return self.names(verdict) and verdict.at(self.margin).outcome is Outcome.regressed
        if self.kind == "missing":
            return verdict.outcome in (Outcome.missing, Outcome.failed)
        return verdict.metric.gated and verdict.outcome == self.kind


@dataclass(frozen=True)
class Judgement:
    """What the gate says. `hits` worst first."""

    exit_code: int
    hits: list[tuple[str, Verdict]]
    holes: list[Verdict]
    gated: bool
    blind: tuple[str, ...] = ()  # rules that look at no row
    damaged: bool = False

    @property
    def says(self) -> str:
        if not self.gated:
            return "not gated (--fail-on)"
        if self.hits:
            return f"FAILED: {len(self.hits)} hit{'s' * (len(self.hits) != 1)}"
        if self.exit_code:
            if self.holes:
                return f"CANNOT VOUCH: {len(self.holes)} needed rows are missing or not comparable"
            if self.blind:
                return f"CANNOT VOUCH: no row for {', '.join(self.blind)}"
            return "CANNOT VOUCH: " + ("a run or a round could not be read" if self.damaged else "no verdict was reached")
        return "passed"


def judge(verdicts: list[Verdict], rules: list[Rule], damaged: bool = False) -> Judgement:
    """`damaged`: a run that was named could not be read."""
    hits = [(rule.text, verdict) for verdict in verdicts for rule in rules if rule.hits(verdict)]
    needed = [v for v in verdicts if v.outcome in HOLES and (v.metric.gated or any(rule.names(v) for rule in rules))]
    blind = tuple(rule.text for rule in rules if rule.metric and not any(rule.names(v) for v in verdicts))
    told = any(v.outcome in TOLD for v in verdicts)
    code = 1 if hits else 3 if rules and (needed or blind or damaged or not told) else 0
    return Judgement(code, hits, needed, bool(rules), blind, damaged)


def parse_rule(text: str) -> Rule:
    """`regressed`, `unresolved`, `missing`, or METRIC:5%[@ARM-GLOB]. Raises UserError."""
    if text in KINDS:
        return Rule(text, kind=text)
    name, colon, rest = text.partition(":")
    share, _, arms = rest.partition("@")
    if not colon:
        near = difflib.get_close_matches(text, KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"--fail-on {text}: should be {', '.join(KINDS)}, or METRIC:5%[@ARM]{hint}")
    return Rule(text, metric=metric_key("--fail-on", name), margin=percent(f"--fail-on {text}", share), arms=arms or "*")


def parse_margins(texts: list[str]) -> dict[str, float]:
    """`METRIC=5%`, or `5%` for all (under the key "")."""
    margins = {}
    for text in texts:
        name, equals, share = text.rpartition("=")
        margins[metric_key("--margin", name) if equals else ""] = percent(f"--margin {text}", share)
    return margins


def metric_key(flag: str, name: str) -> str:
    key = find_metric(name) or name
    if key not in METRICS or METRICS[key].exact:
        timed = [known for known, metric in METRICS.items() if not metric.exact]
        near = difflib.get_close_matches(name, [*timed, *ALIASES], n=1)
        raise UserError(
            f"{flag} {name}: no metric with a margin; {f'did you mean {near[0]}?' if near else 'there are ' + ', '.join(timed)}"
        )
    return key


def percent(where: str, text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not text.strip().endswith("%") or not 0 <= value < 10:
        raise UserError(f"{where}: the margin should be a percentage like 5%")
    return value
