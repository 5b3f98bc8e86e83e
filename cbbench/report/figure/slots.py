"""The slot timeline: a row a slot, a colour a request, a shade and a hatch for what the slot does."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbbench.report.figure.style import (
    CYCLE,
    INK,
    arm_title,
    darker,
    legend,
    lighter,
    rectangles,
    rows_downwards,
    stacked,
    subtitle,
    swatch,
    time_label,
)
from cbbench.results.rounds import SavedRound
from cbbench.results.tables import percent
from cbbench.results.timeline import Kind, Span

# Dots would be prettier: as SVG they take a quarter of a megabyte.
HATCH = {Kind.RECOMPUTE: "xxxx", Kind.STALLED: "||||", Kind.HELD: "////", Kind.STARVED: "\\\\\\\\"}
SAID = {
    Kind.PREFILL: "prefill", Kind.DECODE: "decode", Kind.RECOMPUTE: "recomputed", Kind.STALLED: "stalled",
    Kind.HELD: "held (finished)", Kind.STARVED: "starved (others wait)", Kind.DRAINED: "drained (nobody waits)",
}  # fmt: skip
MAX_ROWS_INCHES = 3.2
MAX_LINES = 250  # steps whose borders are drawn; with more the lines would hide the colours


def draw(title: str, chosen: list[SavedRound]) -> Figure:
    end_s = max(recorded.steps[-1]["end_s"] for recorded in chosen)
    slots = [1 + max(span.slot for span in recorded.spans) for recorded in chosen]
    lines = max(len(recorded.steps) for recorded in chosen) <= MAX_LINES
    figure, axes = stacked(title, [min(max(0.21 * num, 0.5), MAX_ROWS_INCHES) for num in slots])
    for index, (recorded, num_slots, place) in enumerate(zip(chosen, slots, axes, strict=True)):
        idle = recorded.metrics["slot_idle_frac"]
        subtitle(place, arm_title(recorded), f"{len(recorded.steps):,} steps, slots idle {percent(idle)}")
        _draw_arm(place, index, recorded.spans, end_s)
        if lines:
            _draw_steps(place, recorded, num_slots)
        rows_downwards(place, [f"slot {slot}" for slot in range(num_slots)], end_s, max_named=16)
    axes[-1].set_xlabel(
        f"{time_label(axes[-1], chosen, end_s)}; number and colour: the request" + ("; a white line: a step ends" if lines else "")
    )
    present = {span.kind for recorded in chosen for span in recorded.spans}
    legend(figure, [swatch(SAID[kind], facecolor=colour(kind, "#777777"), hatch=HATCH.get(kind)) for kind in Kind if kind in present], 5)
    return figure


def _draw_arm(axes: Axes, index: int, spans: list[Span], end_s: float) -> None:
    for kind in Kind:
        here = [span for span in spans if span.kind is kind]
        boxes = [(span.start_s, span.end_s, float(span.slot), span.slot + 1.0) for span in here]
        colours = [colour(kind, "#ffffff" if span.sequence is None else CYCLE[span.sequence % len(CYCLE)]) for span in here]
        rectangles(axes, f"slots-{index}-{kind}", boxes, colours, hatch=HATCH.get(kind))
    for span in spans:
        number = str(span.sequence)
        if span.kind is Kind.DECODE and span.end_s - span.start_s > end_s * 0.011 * (1 + len(number)):
            middle = (span.start_s + span.end_s) / 2
            axes.text(middle, span.slot + 0.53, number, ha="center", va="center", fontsize=8, color=INK)


def _draw_steps(axes: Axes, recorded: SavedRound, num_slots: int) -> None:
    """White lines where one step ends and the next begins, below the black outlines of the spans."""
    axes.vlines([step["start_s"] for step in recorded.steps[1:]], 0, num_slots, color="#ffffff", linewidth=0.35, alpha=0.8)
    axes.hlines(range(num_slots + 1), 0, recorded.steps[-1]["end_s"], color=INK, linewidth=0.4)
    slots = [span.slot for span in recorded.spans]
    axes.vlines([span.start_s for span in recorded.spans], slots, [slot + 1 for slot in slots], color=INK, linewidth=0.4)


def colour(kind: Kind, of_request: str) -> Any:
    """Computing is dark or plain, waiting is pale, an empty slot is white."""
    shades = {Kind.PREFILL: darker(of_request, 0.45), Kind.RECOMPUTE: lighter(of_request, 0.1), Kind.DECODE: lighter(of_request, 0.4)}
    shades |= {Kind.STALLED: lighter(of_request, 0.75), Kind.HELD: lighter(of_request, 0.85)}
    return shades.get(kind, "#ffffff" if kind is Kind.STARVED else "#f4f4f4")
