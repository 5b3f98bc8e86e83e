"""An arm against itself: what this machine's noise is, and which margin a gate on it needs."""

from __future__ import annotations

import math

from cbbench.compare.verdict_report import change_text
from cbbench.compare.verdicts import Outcome, Verdict
from cbbench.results.compared_metrics import DEFAULT_MARGIN
from cbbench.results.tables import Grid


def noise_grid(found: list[Verdict]) -> Grid:
    """Half the width of each interval is what these rounds leave unknown; a margin of twice that is safe (at least 5 %)."""
    lines, note = [], "nothing was measured"
    for v in found:
        if v.shift is None or v.shift.half_width is None:
            continue
        noise = math.expm1(v.shift.half_width)
        margin = max(DEFAULT_MARGIN, 2 * noise)
        gated = "yes" if v.metric.gated else "no"
        lines.append([v.metric.title, gated, change_text(v.ratio()), f"{100 * noise:.1f} %", f"{100 * margin:.0f} %"])
        note = f"{v.shift.num} rounds of {v.subject.arm} against itself"
    return Grid("Noise", ["metric", "gated", "A against A", "noise floor", "suggested margin"], lines, note, 2, turns=False)


def false_alarms(found: list[Verdict]) -> list[Verdict]:
    """Differences between an arm and itself in metrics that a gate looks at."""
    return [v for v in found if v.metric.gated and v.outcome in (Outcome.regressed, Outcome.improved)]


def alarm_text(verdict: Verdict) -> str:
    said, metric = "a difference that is none", verdict.metric
    if metric.exact:
        return f"{said}: {metric.title} {verdict.why}: this count is not the same each time"
    return f"{said}: {metric.title} {change_text(verdict.ratio())}: this machine is not fit to gate it"
