"""How latencies are spread: for each the share of requests (of gaps, for ITL) that took at most so long."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from cbbench.report.figure.style import CYCLE, PALE, WIDTH_INCHES, arm_title, legend, set_title
from cbbench.results.metrics import pooled_latencies
from cbbench.results.rounds import SavedRound

PANELS = {
    "ttft_s": "TTFT: arrival to first token", "tpot_s": "TPOT: mean gap of a request", "itl_s": "ITL: every gap",
    "e2e_s": "E2E: arrival to last token",
}  # fmt: skip
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
WIDE = 8.0  # longest over shortest: from here on the axis is logarithmic
MAX_POINTS = 500


def draw(title: str, chosen: list[SavedRound]) -> Figure:
    figure = Figure(figsize=(WIDTH_INCHES, 4.2 + 0.2 * len(chosen)), layout="constrained")
    set_title(figure, title)
    all_samples = [pooled_latencies(recorded.completed) for recorded in chosen]
    for position, (name, said) in enumerate(PANELS.items()):
        axes = figure.add_subplot(2, 2, position + 1)
        axes.set_title(said, loc="left", fontweight="bold")
        _draw_panel(axes, name, [found[name] for found in all_samples])
    handles = [Line2D([], [], label=arm_title(recorded), **_style(index)) for index, recorded in enumerate(chosen)]
    legend(figure, handles, columns=2)
    return figure


def _draw_panel(axes: Axes, name: str, values_by_arm: list[list[float]]) -> None:
    for index, values in enumerate(values_by_arm):
        if values:
            (line,) = axes.step(*staircase(values), where="post", **_style(index))
            line.set_gid(f"latency-{index}-{name}")
    known = [value for values in values_by_arm for value in values]
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.5, 0.9, 1]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
    axes.grid(color=PALE, alpha=0.35, linewidth=0.5)
    if not known:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", color=PALE)
        axes.set_xticks([])
        return
    if 0 < min(known) * WIDE < max(known):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if max(known) < 100 * min(known) else (1.0,), numticks=9))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, max(known) * 1.05 or 1.0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "0" if not x else f"{x:,g} s" if x >= 1 else f"{1000 * x:g} ms"))


def _style(index: int) -> dict[str, Any]:
    return {"color": CYCLE[index % len(CYCLE)], "linestyle": LINES[index % len(LINES)], "linewidth": 1.5}


def staircase(values: list[float]) -> tuple[Any, Any]:
    """The empirical distribution: it jumps at each value; of many values a fixed number of ranks, both ends among them."""
    ordered = np.sort(values)
    ranks = np.unique(np.linspace(1, len(ordered), min(len(ordered), MAX_POINTS)).round().astype(int))
    return np.concatenate([ordered[:1], ordered[ranks - 1]]), np.concatenate([[0.0], ranks / len(ordered)])
