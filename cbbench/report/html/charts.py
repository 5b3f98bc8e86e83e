"""All arms of a group beside each other: throughput, latencies, waste, host and model time."""

from __future__ import annotations

from typing import Any

import numpy as np

from cbbench.compare.stats import hodges_lehmann
from cbbench.report.html.over_time import STILL, Figure, Json, escaped
from cbbench.results.durations import seconds, tick_text, ticks
from cbbench.results.store import Cell, Run
from cbbench.results.tables import TableRow
from cbbench.results.timeline import SHARES
from cbbench.results.units import number, percent

ROW_PX = 34
SLOTS = {"finished, held": "slot_idle_finished_frac", "starved": "slot_idle_starved_frac", "drained": "slot_idle_drain_frac"}
MEMORY = {part: key for part, key in SHARES.items() if part != "token states"}
PADDING = {"prefill padding": "prefill_padding_frac", "decode padding": "decode_padding_frac"}
TIME = {"model": "model_s", "host": "host_s"}


def labels(rows: list[TableRow]) -> list[str]:
    """The arm, and its run where there are several."""
    several = len({row.run for row in rows}) > 1
    return [f"{row.arm} ({row.run})" if several else row.arm for row in rows]


def interval(run: Run, arm: str, key: str) -> tuple[float, float, float, str] | None:
    """Centre, low and high of a metric over whole rounds, and what that is; None for fewer than two rounds."""
    values = [cell.metrics[key] for cell in run.cells if _is_whole(cell, arm) and cell.metrics[key] is not None]
    if len(values) < 2:
        return None
    shift = hodges_lehmann(values)
    if shift.low is None or shift.high is None:
        return float(np.median(values)), min(values), max(values), f"lowest to highest of {len(values)} rounds"
    return shift.estimate, shift.low, shift.high, f"95 % interval of {len(values)} rounds"


def _is_whole(cell: Cell, arm: str) -> bool:
    return cell.arm == arm and cell.failed is None and not cell.interrupted


def throughput(rows: list[TableRow], runs: list[Run]) -> Figure:
    """Output tokens a second: the median over rounds as in the table, and the interval."""
    values = [row.values.get("output_tok_per_s") for row in rows]
    unit = "tok/step" if all(row.counts_steps for row in rows) else "tok/s"
    bar = _bars(rows, "output tok/s", "throughput", values, f"%{{x:,.4~g}} output {unit}")
    by_name = {run.name: run for run in runs}
    found = [(i, interval(by_name[row.run], row.arm, "output_tok_per_s")) for i, row in enumerate(rows)]
    known = [(i, said) for i, said in found if said]
    whiskers = {
        "type": "scatter", "mode": "markers", "name": "interval", "meta": {"paint": "interval", "kind": "interval"},
        "x": [said[0] for _, said in known], "y": [i for i, _ in known],
        "error_x": {"type": "data", "symmetric": False, "array": [high - mid for _, (mid, _, high, _) in known],
                    "arrayminus": [mid - low for _, (mid, low, _, _) in known], "thickness": 1.5, "width": 4},
        "customdata": [[number(low), number(high), what] for _, (_, low, high, what) in known],
        "hovertemplate": f"%{{customdata[0]}} to %{{customdata[1]}} {unit}<br>%{{customdata[2]}}<extra></extra>",
    }  # fmt: skip
    texts = [row.status if value is None else f"{number(value)} {unit}" for value, row in zip(values, rows, strict=True)]
    return _chart("throughput", [bar, *([whiskers] if known else [])], rows, texts, f"output {unit}", None)


def waste(rows: list[TableRow]) -> list[Figure]:
    """Three pictures: idle slots, reserved memory without token states, padding."""
    found = []
    for kind, title, parts, mode in (
        ("idle", "of all slots in all steps", SLOTS, "stack"), ("unused", "of reserved memory, over time", MEMORY, "stack"),
        ("padding", "of positions, of attended keys", PADDING, "group"),
    ):  # fmt: skip
        texts, traces = [], []
        for row in rows:
            values = [row.values.get(key) for key in parts.values()]
            known = [value for value in values if value is not None]
            separate = " / ".join("-" if value is None else percent(value) for value in values)
            texts.append("-" if not known else percent(sum(known)) if mode == "stack" else separate)
        for part, key in parts.items():
            traces.append(_bars(rows, part, "waste", [row.values.get(key) for row in rows], f"{part} %{{x:.1%}}"))
        figure = _chart(kind, traces, rows, texts, title, ".0%")
        figure.layout["barmode"] = mode
        if mode == "group":
            for trace, offset in zip(traces, (-0.2, 0.01), strict=True):
                trace |= {"width": 0.19, "offset": offset}
        figure.layout["xaxis"] |= {"range": [0, 1]}
        found.append(figure)
    return found


def host_time(rows: list[TableRow]) -> Figure:
    """Seconds inside forward passes and around them."""
    traces = [_bars(rows, part, "steps", [row.values.get(key) for row in rows], f"{part} %{{text}}") for part, key in TIME.items()]
    for trace in traces:
        trace["text"] = [None if value is None else seconds(value) for value in trace["x"]]
    texts = []
    for row in rows:
        model_s, host_s = (row.values.get(key) for key in TIME.values())
        texts.append("-" if model_s is None or host_s is None else f"host {seconds(host_s)} of {seconds(model_s + host_s)}")
    figure = _chart("time", traces, rows, texts, "time in steps", None)
    figure.layout["barmode"] = "stack"
    places = ticks(max((sum(row.values.get(key) or 0.0 for key in TIME.values()) for row in rows), default=0.0), 4)
    figure.layout["xaxis"] |= {"tickvals": places, "ticktext": [tick_text(place) for place in places]}
    return figure


def _bars(rows: list[TableRow], title: str, paint: str, values: list[Any], template: str) -> Json:
    return {
        "type": "bar", "orientation": "h", "name": title, "meta": {"paint": paint, "kind": title}, "x": values, "y": list(range(len(rows))),
        "customdata": [escaped(label) for label in labels(rows)], "hovertemplate": f"<b>%{{customdata}}</b><br>{template}<extra></extra>",
        "textposition": "none",
    }  # fmt: skip


def _chart(kind: str, traces: list[Json], rows: list[TableRow], texts: list[str], title: str, tickformat: str | None) -> Figure:
    """A row an arm, its name and number above its bar: that fits a telephone too."""
    for trace in traces:
        trace |= {"width": 0.4} if trace["type"] == "bar" else {}
    notes = [note for i, (label, text) in enumerate(zip(labels(rows), texts, strict=True)) for note in _captions(i, label, text)]
    layout = {
        "height": 46 + ROW_PX * len(rows), "margin": {"l": 4, "r": 12, "t": 12, "b": 40}, "annotations": notes, "barmode": "overlay",
        "xaxis": {**STILL, "title": {"text": title, "standoff": 4}, "rangemode": "tozero", "tickformat": tickformat},
        "yaxis": {**STILL, "range": [len(rows) - 0.65, -0.72], "showticklabels": False, "showgrid": False},
    }  # fmt: skip
    said = "; ".join(f"{label}: {text}" for label, text in zip(labels(rows), texts, strict=True))
    return Figure(kind, traces, layout, f"{title}. {said}")


def _captions(row: int, label: str, text: str) -> list[Json]:
    common = {"y": row - 0.24, "yref": "y", "xref": "paper", "yanchor": "bottom", "showarrow": False, "borderpad": 0}
    left, right = ({"x": x, "xanchor": anchor, "align": anchor} for x, anchor in ((0, "left"), (1, "right")))
    short = text if len(text) <= 40 else text[:39] + "…"
    return [{**common, **left, "text": escaped(label), "name": "arm"}, {**common, **right, "text": escaped(short), "name": "value"}]
