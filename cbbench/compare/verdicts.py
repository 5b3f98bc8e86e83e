"""A verdict on one metric of one arm against its base: regressed, improved, same, unresolved, or why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from cbbench.compare.stats import MIN_ROUNDS, MOST_ROUNDS, RECOMMENDED_ROUNDS, Shift, hodges_lehmann, prediction_interval, rounds_needed
from cbbench.results.compared_metrics import Metric

MIN_HISTORY = 5  # runs, before a stored baseline says anything about time
TOO_FEW = f"{{}} of the {MIN_ROUNDS} rounds needed, {RECOMMENDED_ROUNDS} are recommended"
WILD = 3.0  # before and after of the same arm do not differ by more; something else was measured

Values = dict[int, Any]  # round -> value


class Outcome(StrEnum):
    """Worst first."""

    regressed = "regressed"
    failed = "failed"
    missing = "missing"
    not_comparable = "not comparable"
    unresolved = "unresolved"
    improved = "improved"
    same = "same"


@dataclass(frozen=True)
class Subject:
    """What is compared with what."""

    workload: str
    run: str
    arm: str
    base: str
    same_strategy: bool  # before and after of one thing, or one thing against another


@dataclass(frozen=True)
class Verdict:
    """`shift` is of ln(new / base), its sign such that more than 0 is worse."""

    subject: Subject
    metric: Metric
    outcome: Outcome
    why: str | None = None
    base_values: Values = field(default_factory=dict)
    values: Values = field(default_factory=dict)
    shift: Shift | None = None
    margin: float = 0.0
    rounds_needed: int | None = None
    doubt: str | None = None  # why no gate may rely on it, whatever it says

    @property
    def is_open(self) -> bool:
        """Whether it could still be a regression: unresolved, and the worse end of the interval beyond the margin, or unknown."""
        high = self.shift.high if self.shift else None
        return self.outcome is Outcome.unresolved and (high is None or high >= math.log1p(self.margin))

    def ratio(self, bound: str = "estimate") -> float | None:
        """new / base: the estimate, or the `low` or `high` end of its interval."""
        if self.shift is None:
            return None
        shift = -self.shift if self.metric.higher_is_better else self.shift
        value = getattr(shift, bound)
        return None if value is None else math.exp(value)

    def at(self, margin: float) -> Verdict:
        """The same evidence under another margin."""
        return self if self.shift is None or self.metric.exact else by_margin(replace(self, margin=margin))


def middle(values: Values) -> Any:
    """The median over rounds; of texts the first."""
    found = [value for value in values.values() if value is not None]
    if not found:
        return None
    return found[0] if isinstance(found[0], str) else float(np.median(found))


def judge_paired(subject: Subject, metric: Metric, base: Values, new: Values, margin: float) -> Verdict | None:
    """Round against round of the same run. None where the metric exists on neither side."""
    verdict = Verdict(subject, metric, Outcome.unresolved, None, base, new, margin=margin)
    if (lacking := _lacking(verdict)) is not None:
        return lacking if middle(base) is not None or middle(new) is not None else None
    pairs = [(base[r], new[r]) for r in sorted(base.keys() & new.keys()) if _positive(base[r]) and _positive(new[r])]
    if not pairs and not any([*base.values(), *new.values()]):
        return None  # zero on both sides: nothing was measured
    if not pairs:
        return replace(verdict, outcome=Outcome.not_comparable, why="no round has a positive value on both sides")
    sign = -1.0 if metric.higher_is_better else 1.0
    verdict = replace(verdict, shift=hodges_lehmann([sign * (math.log(b) - math.log(a)) for a, b in pairs]))
    return by_margin(verdict)


def by_margin(verdict: Verdict) -> Verdict:
    """An interval on one side of 0 and an estimate beyond the margin, or an interval within the margin."""
    shift, margin = verdict.shift, verdict.margin
    assert shift is not None
    if verdict.subject.same_strategy and abs(shift.estimate) > math.log(WILD):
        times = math.exp(abs(shift.estimate))
        return replace(verdict, outcome=Outcome.not_comparable, why=f"{times:.3g} x apart: something else was measured")
    if shift.low is None or shift.high is None:
        return replace(verdict, outcome=Outcome.unresolved, why=TOO_FEW.format(shift.num), rounds_needed=RECOMMENDED_ROUNDS)
    worse, better = math.log1p(margin), -math.log1p(margin)
    if shift.low > 0 and shift.estimate >= worse:
        return replace(verdict, outcome=Outcome.regressed, why=None, rounds_needed=None)
    if shift.high < 0 and shift.estimate <= better:
        return replace(verdict, outcome=Outcome.improved, why=None, rounds_needed=None)
    if better < shift.low and shift.high < worse:
        return replace(verdict, outcome=Outcome.same, why=None, rounds_needed=None)
    needed = rounds_needed(shift, worse)
    why = f"about {needed} rounds would tell" if needed else f"too close to the margin to tell: at least {MOST_ROUNDS} rounds"
    why = why if margin > 0 else "no number of rounds shows no change at all"
    return replace(verdict, outcome=Outcome.unresolved, why=why, rounds_needed=needed)


def judge_exact(subject: Subject, metric: Metric, base: Values, new: Values) -> Verdict | None:
    """A count or a digest: any difference is one, in any round."""
    verdict = Verdict(subject, metric, Outcome.same, None, base, new)
    if (lacking := _lacking(verdict)) is not None:
        return lacking if middle(base) is not None or middle(new) is not None else None
    before, after = {value for value in base.values() if value is not None}, {value for value in new.values() if value is not None}
    if len(before) > 1 or len(after) > 1:
        side = "base" if len(before) > 1 else "new"
        return replace(verdict, outcome=Outcome.not_comparable, why=f"differs between rounds of the {side} one: it is not exact here")
    (a,), (b,) = before, after
    if a == b:
        return verdict
    if isinstance(a, str) or isinstance(b, str):
        return replace(verdict, outcome=Outcome.regressed, why="other tokens")
    worse = (b < a) == metric.higher_is_better
    return replace(verdict, outcome=Outcome.regressed if worse else Outcome.improved, why=f"{b - a:+,}")


def judge_history(
    subject: Subject, metric: Metric, history: list[float], base: Values, new: Values, margin: float, num_longer: int = 0
) -> Verdict | None:  # fmt: skip
    """A run against the medians of earlier runs on the same machine: outside where one more of them would fall, and
    beyond the margin. How much runs differ is the error; rounds of one run say nothing about that. `num_longer`: runs that are no
    part of `history` because they had more rounds, whose medians vary less."""
    verdict = Verdict(subject, metric, Outcome.unresolved, None, base, new, margin=margin)
    if (lacking := _lacking(verdict)) is not None:
        return lacking if middle(base) is not None or middle(new) is not None else None
    if len(history) < MIN_HISTORY:
        kept = f"{len(history)} comparable run{'s' * (len(history) != 1)} kept, {MIN_HISTORY} are needed to judge time"
        longer = f" ({num_longer} more had more rounds than the {len(new)} of this run)" if num_longer else ""
        return replace(verdict, why=f"{kept}{longer}; --against judges within one run")
    if not _positive(middle(new)) or not all(map(_positive, history)):
        return replace(verdict, outcome=Outcome.not_comparable, why="not a positive value")
    sign = -1.0 if metric.higher_is_better else 1.0
    logs = [sign * math.log(value) for value in history]
    low, high = prediction_interval(logs)
    now, center = sign * math.log(middle(new)), float(np.mean(logs))
    shift = Shift(now - center, now - high, now - low, len(history))
    judged = by_margin(replace(verdict, shift=shift))
    return replace(judged, why="runs differ too much" if judged.outcome is Outcome.unresolved else judged.why, rounds_needed=None)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _lacking(verdict: Verdict) -> Verdict | None:
    """The verdict on a metric that one side does not have."""
    for side, values in (("base", verdict.base_values), ("new", verdict.values)):
        if middle(values) is None:
            return replace(verdict, outcome=Outcome.missing, why=f"the {side} one has no value")
    return None
