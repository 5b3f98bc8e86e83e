"""How latencies are spread: for each the share of requests (of gaps, for ITL) that took at most so long."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from cbbench.report.figure.style import CYCLE, PALE, WIDTH_INCHES, arm_title, legend, set_title
from cbbench.results.durations import log_ticks, tick_text, ticks
from cbbench.results.metrics import pooled_latencies
from cbbench.results.rounds import SavedRound
from cbbench.results.tables import counts_steps

PANELS = {
    "ttft_s": "TTFT: arrival to first token", "tpot_s": "TPOT: mean gap of a request", "itl_s": "ITL: every gap",
    "e2e_s": "E2E: arrival to last token",
}  # fmt: skip
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
WIDE = 8.0  # longest over shortest: from here on the axis is logarithmic
MAX_POINTS = 500
MANY = 6  # arms; lines of more have their number on them
LONG_S = 60.0  # ticks are round times from here on, not round numbers


def draw(title: str, chosen: list[SavedRound]) -> Figure:
    figure = Figure(figsize=(WIDTH_INCHES, 4.2 + 0.2 * len(chosen)), layout="constrained")
    set_title(figure, title)
    all_samples = [pooled_latencies(recorded.completed) for recorded in chosen]
    for position, (name, said) in enumerate(PANELS.items()):
        axes = figure.add_subplot(2, 2, position + 1)
        axes.set_title(said, loc="left", fontweight="bold")
        _draw_panel(axes, name, [found[name] for found in all_samples], all(counts_steps(recorded.run) for recorded in chosen))
    numbers = [f"{index}  " if len(chosen) > MANY else "" for index in range(1, len(chosen) + 1)]
    handles = [Line2D([], [], label=numbers[i] + arm_title(recorded), **_style(i)) for i, recorded in enumerate(chosen)]
    legend(figure, handles, columns=2)
    return figure


def _draw_panel(axes: Axes, name: str, values_by_arm: list[list[float]], is_virtual: bool) -> None:
    for index, values in enumerate(values_by_arm):
        if values:
            (line,) = axes.step(*staircase(values), where="post", **_style(index))
            line.set_gid(f"latency-{index}-{name}")
    if len(values_by_arm) > MANY:
        _number_lines(axes, values_by_arm)
    known = [value for values in values_by_arm for value in values]
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.5, 0.9, 1]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
    axes.grid(color=PALE, alpha=0.35, linewidth=0.5)
    if not known:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", color=PALE)
        axes.set_xticks([])
        return
    _set_times(axes, min(known), max(known), is_virtual)


def _set_times(axes: Axes, low_s: float, high_s: float, is_virtual: bool) -> None:
    is_long = high_s > LONG_S and not is_virtual
    if 0 < low_s * WIDE < high_s:
        axes.set_xscale("log")
        subs = (1.0, 2.0, 5.0) if high_s < 100 * low_s else (1.0,)
        axes.xaxis.set_major_locator(FixedLocator(log_ticks(low_s, high_s)) if is_long else LogLocator(subs=subs, numticks=9))
        axes.xaxis.set_minor_formatter(NullFormatter())
        if is_long:
            axes.set_xlim(low_s * 0.9, high_s * 1.1)
    else:
        axes.set_xlim(0, high_s * 1.05 or 1.0)
        if is_long:
            axes.xaxis.set_major_locator(FixedLocator(ticks(high_s, 4)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g} steps" if is_virtual else tick_text(x)))


def _number_lines(axes: Axes, values_by_arm: list[list[float]]) -> None:
    """The number of the legend on each line, each at another height, so that none lies over another."""
    in_order = sorted((i for i, values in enumerate(values_by_arm) if values), key=lambda i: -float(np.median(values_by_arm[i])))
    for place, index in enumerate(in_order):
        height = (place + 0.7) / (len(in_order) + 0.4)
        at = float(np.quantile(values_by_arm[index], height, method="inverted_cdf"))
        box = {"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.6}
        axes.text(at, height, str(index + 1), ha="center", va="center", fontsize=7, fontweight="bold", bbox=box)


def _style(index: int) -> dict[str, Any]:
    return {"color": CYCLE[index % len(CYCLE)], "linestyle": LINES[index % len(LINES)], "linewidth": 1.5}


def staircase(values: list[float]) -> tuple[Any, Any]:
    """The empirical distribution: it jumps at each value; of many values a fixed number of ranks, both ends among them."""
    ordered = np.sort(values)
    ranks = np.unique(np.linspace(1, len(ordered), min(len(ordered), MAX_POINTS)).round().astype(int))
    return np.concatenate([ordered[:1], ordered[ranks - 1]]), np.concatenate([[0.0], ranks / len(ordered)])
