"""Bars an arm, over all its rounds: throughput with the slowest and the fastest round, and what was wasted."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbbench.report.figure.memory import STYLES
from cbbench.report.figure.style import CYCLE, INK, PALE, WIDTH_INCHES, folded, legend, lighter, set_title, swatch
from cbbench.results.rounds import SavedRound
from cbbench.results.store import Cell
from cbbench.results.tables import medians, number, percent

PANELS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "slots idle": {
        "slot_idle_finished_frac": ("held (finished)", {"facecolor": "#cfcfcf", "hatch": "////"}),
        "slot_idle_starved_frac": ("starved (others wait)", {"facecolor": "#ffffff", "hatch": "\\\\\\\\"}),
        "slot_idle_drain_frac": ("drained (nobody waits)", {"facecolor": "#f4f4f4"}),
    },
    "prefill padding": {"prefill_padding_frac": ("padding", {"facecolor": CYCLE[0]})},
    "decode padding": {"decode_padding_frac": ("padding", {"facecolor": CYCLE[0]})},
    "KV memory": {
        "kv_internal_frac": ("internal (never written)", STYLES["internal"]),
        "kv_external_frac": ("external (fits nobody)", STYLES["external"]),
    },
}


def cells_of(recorded: SavedRound) -> list[Cell]:
    """All whole rounds of the arm."""
    return [c for c in recorded.run.cells if c.arm == recorded.arm and c.failed is None and not c.interrupted]


def draw_throughput(title: str, chosen: list[SavedRound]) -> Figure:
    figure = Figure(figsize=(WIDTH_INCHES, 0.9 + 0.27 * len(chosen)), layout="constrained")
    set_title(figure, title)
    axes = figure.add_subplot()
    _name_rows(axes, chosen)
    speeds = [[c.metrics["output_tok_per_s"] for c in cells_of(r) if c.metrics["output_tok_per_s"] is not None] for r in chosen]
    fastest = max((max(values) for values in speeds if values), default=1.0)
    for row, (recorded, values) in enumerate(zip(chosen, speeds, strict=True)):
        if not values:
            axes.text(0, row, " nothing completed", va="center", color=PALE)
            continue
        middle = medians(cells_of(recorded))["output_tok_per_s"]
        axes.barh(row, middle, height=0.62, color=lighter(CYCLE[0], 0.25), edgecolor=INK, linewidth=0.4)[0].set_gid(f"throughput-{row}")
        if len(values) > 1:
            (whisker,) = axes.plot([min(values), max(values)], [row, row], color=INK, linewidth=1.2, marker="|", markersize=7)
            whisker.set_gid(f"throughput-{row}-rounds")
        axes.text(max(values) + fastest * 0.012, row, number(middle), va="center")
    axes.set_xlim(0, fastest * 1.08)
    num_rounds = max(len(values) for values in speeds)
    axes.set_xlabel(
        "output tokens a second" + (f": median, slowest and fastest of {num_rounds} rounds" if num_rounds > 1 else ", one round")
    )
    return figure


def draw_waste(title: str, chosen: list[SavedRound]) -> Figure:
    figure = Figure(figsize=(WIDTH_INCHES, 1.45 + 0.29 * len(chosen)), layout="constrained")
    set_title(figure, title)
    rows = [medians(cells_of(recorded)) for recorded in chosen]
    handles: dict[str, dict[str, Any]] = {}
    for position, (panel, parts) in enumerate(PANELS.items()):
        axes = figure.add_subplot(1, len(PANELS), position + 1)
        _name_rows(axes, chosen, labelled=not position)
        axes.set_title(panel, loc="left", fontweight="bold")
        for index, row in enumerate(rows):
            _draw_bar(axes, index, row, parts)
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
        handles |= dict(parts.values())
    legend(figure, [swatch(said, **style) for said, style in handles.items()], columns=3)
    return figure


def _draw_bar(axes: Axes, index: int, row: dict[str, Any], parts: dict[str, tuple[str, dict[str, Any]]]) -> None:
    left = 0.0
    for key, (_, style) in parts.items():
        value = row[key]
        if value:
            (bar,) = axes.barh(index, value, left=left, height=0.62, edgecolor=INK, linewidth=0.4, **style)
            bar.set_gid(f"waste-{index}-{key}")
            left += value
    said = "-" if all(row[key] is None for key in parts) else percent(left)
    inside = left > 0.7
    box = {"facecolor": "#ffffff", "edgecolor": "none", "pad": 1.0} if inside else None
    axes.text(left - 0.04 if inside else left + 0.03, index, said, va="center", ha="right" if inside else "left", fontsize=8, bbox=box)


def _name_rows(axes: Axes, chosen: list[SavedRound], labelled: bool = True) -> None:
    names = [folded(recorded.arm) for recorded in chosen]
    axes.set_yticks(range(len(chosen)), names if labelled else [""] * len(chosen))
    axes.set_ylim(len(chosen) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
