"""A waterfall: a row a request, from its arrival to its last token."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbbench.report.figure.style import (
    CYCLE,
    INK,
    PALE,
    arm_title,
    legend,
    lighter,
    rectangles,
    rows_downwards,
    stacked,
    subtitle,
    swatch,
    time_label,
)
from cbbench.results.durations import seconds
from cbbench.results.metrics import ended_s
from cbbench.results.rounds import SavedRound
from cbbench.results.timeline import Phase

STYLES: dict[Phase, dict[str, Any]] = {
    Phase.QUEUED: {"facecolor": "#ffffff", "hatch": "\\\\\\\\"},
    Phase.PREFILL: {"facecolor": CYCLE[0]},
    Phase.DECODE: {"facecolor": lighter(CYCLE[4], 0.45)},
    Phase.PREEMPTED: {"facecolor": CYCLE[5], "hatch": "xxxx"},
}
THICK = {Phase.PREEMPTED: 0.26}  # lies over the others, which stay visible above and below it
MAX_ROWS_INCHES = 6.0


def draw(title: str, chosen: list[SavedRound]) -> Figure:
    end_s = max((_last_s(r) for recorded in chosen for r in recorded.requests), default=1.0) or 1.0
    figure, axes = stacked(title, [min(max(0.19 * len(recorded.requests), 0.6), MAX_ROWS_INCHES) for recorded in chosen])
    for index, (recorded, place) in enumerate(zip(chosen, axes, strict=True)):
        ttft_s, e2e_s = recorded.metrics["ttft_s_p50"], recorded.metrics["e2e_s_p50"]
        said = [f"{name} p50 {seconds(value)}" for name, value in (("TTFT", ttft_s), ("E2E", e2e_s)) if value is not None]
        subtitle(place, arm_title(recorded), ", ".join(said))
        _draw_arm(place, index, recorded)
        names = [f"{_short(r['id'])}  {r['index']}" for r in recorded.requests]
        rows_downwards(place, names, end_s * 1.01, max_named=40)
    axes[-1].set_xlabel(time_label(axes[-1], chosen, end_s))
    phases = [phase for phase in Phase if any(stay.phase is phase for recorded in chosen for stay in recorded.stays)]
    legend(figure, [swatch(str(phase), **STYLES[phase]) for phase in phases])
    return figure


def _draw_arm(axes: Axes, index: int, recorded: SavedRound) -> None:
    row_of = {r["index"]: row for row, r in enumerate(recorded.requests)}
    for phase in Phase:
        half = THICK.get(phase, 0.4)
        boxes = [(stay.start_s, stay.end_s, row_of[stay.sequence] + 0.5 - half, row_of[stay.sequence] + 0.5 + half)
                 for stay in recorded.stays if stay.phase is phase]  # fmt: skip
        style = STYLES[phase]
        rectangles(axes, f"requests-{index}-{phase}", boxes, [style["facecolor"]] * len(boxes), hatch=style.get("hatch"))
    for row, r in enumerate(recorded.requests):
        axes.plot([r["arrival_s"], _last_s(r)], [row + 0.5] * 2, color=PALE, linewidth=0.8, zorder=0.5)
        axes.plot(r["arrival_s"], row + 0.5, marker="|", markersize=6, color=INK, clip_on=False)
        if r["state"] != "finished":
            axes.text(_last_s(r), row + 0.55, f" {r['state']}", va="center", fontsize=7.5, color=INK)


def _last_s(r: dict[str, Any]) -> float:
    """When the last was heard of a request."""
    last: float = ended_s(r) or r["first_scheduled_s"] or r["arrival_s"]
    return last


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}\u2026"
