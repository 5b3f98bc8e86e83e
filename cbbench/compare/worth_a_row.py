"""Which verdicts are worth a row in a terminal. What cannot be told is one line, not a hundred; JSON and Markdown have all."""

from __future__ import annotations

from collections import Counter

from cbbench.compare.verdicts import Outcome, Verdict

MAX_REASONS = 3


def worth_a_row(verdicts: list[Verdict]) -> tuple[list[Verdict], list[str]]:
    """The verdicts that say something, of the metrics that a gate looks at; and a line for each kind of the others."""
    open_, told = ([v for v in verdicts if (v.outcome is Outcome.unresolved) is is_open] for is_open in (True, False))
    rows = [v for v in told if v.metric.gated or v.metric.exact or v.outcome in (Outcome.failed, Outcome.missing)]
    said = []
    if open_:
        said.append(f"{len(open_)} of {len(verdicts)} comparisons are unresolved: {_reasons(open_)}")
    if others := len(told) - len(rows):
        said.append(f"{others} verdicts on metrics that no gate looks at: --columns all")
    return rows, said


def _reasons(verdicts: list[Verdict]) -> str:
    """Rounds that are missing, in a range; other reasons, the most frequent first."""
    needed = [v.rounds_needed for v in verdicts if v.rounds_needed]
    rounds = sorted({v.shift.num for v in verdicts if v.shift and v.rounds_needed})
    said = []
    if needed and rounds:
        would = f"{min(needed)}" if min(needed) == max(needed) else f"{min(needed)} to {max(needed)}"
        said.append(f"{rounds[0]} round{'s' * (rounds[0] != 1)} cannot tell, {would} would (cbbench run --rounds {min(needed)})")
    others = Counter(v.why or "no reason" for v in verdicts if not v.rounds_needed)
    said += [f"{num} x {why}" if len(others) > 1 else why for why, num in others.most_common(MAX_REASONS)]
    return "; ".join(said)
