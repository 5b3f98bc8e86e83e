"""What all pictures share: colours that differ for the colour-blind, hatches for print, sizes, titles.

A figure is 8 inches wide: 768 pixels as SVG, the width of a README. Every artist that carries a measured value has a
`gid`, which becomes its id in an SVG; tests read the drawn values back by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter

from cbbench.results.durations import LONGEST_IN_SECONDS_S, tick_text, ticks
from cbbench.results.rounds import SavedRound
from cbbench.results.tables import counts_steps

WIDTH_INCHES = 8.0
INK = "#222222"
PALE = "#8a8a8a"
# Okabe and Ito, Color Universal Design (2008), without black; in this order neighbours differ in lightness too.
CYCLE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
RC: dict[Any, Any] = {
    "font.size": 8.5, "axes.titlesize": 8.5, "axes.labelsize": 8.5, "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8,
    "axes.edgecolor": INK, "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "hatch.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "axes.axisbelow": True,
    "font.family": "DejaVu Sans", "svg.hashsalt": "cbbench", "svg.fonttype": "path", "pdf.fonttype": 42, "path.simplify": False,
    "text.parse_math": False,  # the id of a request may hold dollars
}  # fmt: skip


def lighter(colour: str, white_frac: float) -> tuple[float, float, float]:
    """The colour mixed with white."""
    red, green, blue = (part + (1 - part) * white_frac for part in to_rgb(colour))
    return red, green, blue


def darker(colour: str, black_frac: float) -> tuple[float, float, float]:
    """The colour mixed with black."""
    red, green, blue = (part * (1 - black_frac) for part in to_rgb(colour))
    return red, green, blue


def stacked(title: str, heights_inches: list[float]) -> tuple[Figure, list[Axes]]:
    """Axes one above another on a shared x axis, as high as asked, with room for a title, an x label and a legend."""
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights_inches) + 0.42 * len(heights_inches) + 0.85), layout="constrained")
    grid = figure.add_gridspec(len(heights_inches), 1, height_ratios=heights_inches)
    axes: list[Axes] = []
    for row in range(len(heights_inches)):
        axes.append(figure.add_subplot(grid[row, 0], sharex=axes[0] if axes else None))
        if row < len(heights_inches) - 1:
            axes[-1].tick_params(labelbottom=False)
    set_title(figure, title)
    return figure, axes


def set_title(figure: Figure, title: str) -> None:
    figure.suptitle(title, fontsize=10, fontweight="bold", x=0.01, ha="left", color=INK)


def subtitle(axes: Axes, left: str, right: str = "") -> None:
    """The arm on the left, what its numbers say on the right."""
    axes.set_title(left, loc="left", fontweight="bold", color=INK)
    axes.set_title(right, loc="right", color=INK)


def where(recorded: SavedRound) -> str:
    """The workload and the model, as the tables name them."""
    workload, model = recorded.run.info["workload"], recorded.run.info["model"]
    return f"{workload['name']} on {model['name']} in {model['dtype']}" if model["digest"] else f"{workload['name']} on a virtual clock"


def arm_title(recorded: SavedRound) -> str:
    rounds = {cell.round for cell in recorded.run.cells}
    return recorded.arm if len(rounds) < 2 else f"{recorded.arm}, round {recorded.round}"


def folded(arm: str, width: int = 34) -> str:
    """The name of an arm on two lines where it is long."""
    first, plus, rest = arm.partition("+")
    return f"{first}\n{plus}{rest}" if len(arm) > width and rest else arm


def legend(figure: Figure, handles: Iterable[Any], columns: int = 4) -> None:
    found = list(handles)
    figure.legend(handles=found, loc="outside lower left", ncols=min(columns, len(found)), handlelength=2.2, columnspacing=1.4)


def swatch(label: str, **style: Any) -> Patch:
    outline: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.4}
    return Patch(label=label, **(outline | style))


def rectangles(axes: Axes, gid: str, boxes: list[tuple[float, float, float, float]], colours: list[Any], **style: Any) -> None:
    """Boxes (x0, x1, y0, y1) in data coordinates as one artist."""
    if not boxes:
        return
    corners = [np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)]) for x0, x1, y0, y1 in boxes]
    drawn = PolyCollection(corners, facecolors=colours, edgecolors=INK, linewidths=0.4, **style)
    drawn.set_gid(gid)
    axes.add_collection(drawn)


def rows_downwards(axes: Axes, names: list[str], end_s: float, max_named: int) -> None:
    """Limits for rows of height 1, the first on top, and their names where there is room for them."""
    num_rows = len(names)
    axes.set_xlim(0, end_s)
    axes.set_ylim(num_rows, 0)
    shown = names if num_rows <= max_named else []
    axes.set_yticks([row + 0.5 for row in range(len(shown))], shown)
    axes.tick_params(axis="y", length=0)


def time_label(axes: Axes, chosen: list[SavedRound], end_s: float) -> str:
    """What the numbers on a time axis from 0 to `end_s` are; of a long run they are written with their units."""
    if all(counts_steps(recorded.run) for recorded in chosen):
        return "steps"
    if end_s <= LONGEST_IN_SECONDS_S:
        return "seconds"
    axes.xaxis.set_major_locator(FixedLocator(ticks(end_s, 8)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick_text(x)))
    return "time"
