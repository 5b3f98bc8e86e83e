"""When a comparison makes the exit code say so.

0 judged and clean, 1 a `--fail-on` rule fired, 3 cannot vouch: a row that must be there is missing, failed or not comparable, a
time cannot be judged, or there is nothing to judge. 1 wins over 3. Without --fail-on nothing is gated.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatch

from cbbench.compare.verdicts import Outcome, Verdict
from cbbench.errors import UserError
from cbbench.results.compared_metrics import ALIASES, METRICS
from cbbench.results.metric_names import find_metric

KINDS = ("regressed", "unresolved", "missing")
TOLD = (Outcome.same, Outcome.improved, Outcome.regressed)
HOLES = (Outcome.missing, Outcome.failed, Outcome.not_comparable)


class Answer(Enum):
    """What a rule finds in a verdict."""

    hit = "hit"
    clear = "clear"
    open = "open"  # it asks for something that this evidence cannot tell


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

    def answer(self, verdict: Verdict) -> Answer:
        """To a verdict that it looks at."""
        if self.kind in ("missing", "unresolved"):
            outcomes = (Outcome.missing, Outcome.failed) if self.kind == "missing" else (Outcome.unresolved,)
            return Answer.hit if verdict.outcome in outcomes else Answer.clear
        judged = verdict if self.metric is None else verdict.at(self.margin)
        if judged.outcome in HOLES:
            return Answer.clear  # the gate itself cannot vouch for it
        if judged.doubt or judged.is_open:
            return Answer.open
        return Answer.hit if judged.outcome is Outcome.regressed else Answer.clear


@dataclass(frozen=True)
class Judgement:
    """What the gate says. `hits` worst first."""

    exit_code: int
    hits: list[tuple[str, Verdict]]
    holes: list[Verdict]
    gated: bool
    blind: tuple[str, ...] = ()  # rules that look at no row
    damaged: bool = False
    undecided: tuple[Verdict, ...] = ()  # times that a rule asks about and that cannot be judged
    passed: tuple[Verdict, ...] = ()  # looked at and clear

    @property
    def says(self) -> str:
        if not self.gated:
            return "not gated (--fail-on)"
        if self.hits:
            return f"FAILED: {len(self.hits)} hit{'s' * (len(self.hits) != 1)}"
        if self.exit_code:
            return f"CANNOT VOUCH: {self._hindrance()}"
        counts = sum(v.metric.exact for v in self.passed)
        kinds = [f"{num} {word}{'s' * (num != 1)}" for num, word in ((counts, "count"), (len(self.passed) - counts, "time")) if num]
        return f"passed ({' and '.join(kinds)} judged)" if kinds else "passed"

    def _hindrance(self) -> str:
        if self.holes:
            said = f"{len(self.holes)} needed row{'s are' if len(self.holes) != 1 else ' is'} missing or not comparable"
            return f"{said}: {_sentence(self.holes[0])}"
        if self.undecided:
            return f"{len(self.undecided)} time{'s' * (len(self.undecided) != 1)} cannot be judged: {_sentence(self.undecided[0])}"
        if self.blind:
            return f"no row for {', '.join(self.blind)}"
        return "a run or a round could not be read" if self.damaged else "no verdict was reached"


def _sentence(v: Verdict) -> str:
    return f"{v.subject.arm}, {v.metric.title}: {v.doubt or v.why or v.outcome}"


def judge(verdicts: list[Verdict], rules: list[Rule], damaged: bool = False) -> Judgement:
    """`damaged`: a run that was named could not be read."""
    answers = [(rule, v, rule.answer(v)) for v in verdicts for rule in rules if _looks_at(rule, v, rules)]
    hits = [(rule.text, v) for rule, v, answer in answers if answer is Answer.hit]
    undecided = tuple({id(v): v for _, v, answer in answers if answer is Answer.open}.values())
    passed = tuple({id(v): v for _, v, answer in answers if answer is Answer.clear and v.outcome not in HOLES}.values())
    holes = [v for v in verdicts if v.outcome in HOLES and (v.metric.gated or any(rule.names(v) for rule in rules))]
    blind = tuple(rule.text for rule in rules if rule.metric and not any(rule.names(v) for v in verdicts))
    told = bool(passed) or any(v.outcome in TOLD for v in verdicts)
    code = 1 if hits else 3 if rules and (holes or blind or damaged or undecided or not told) else 0
    return Judgement(code, hits, holes, bool(rules), blind, damaged, undecided, passed)


def _looks_at(rule: Rule, verdict: Verdict, rules: list[Rule]) -> bool:
    """METRIC:5% is the margin of its metric: `regressed` leaves that metric of these arms to it."""
    if rule.metric is not None:
        return rule.names(verdict)
    if rule.kind == "regressed":
        return verdict.metric.gated and not any(other.names(verdict) for other in rules)
    return rule.kind == "missing" or verdict.metric.gated


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
