"""How the latencies of all arms are spread: the share of requests (of gaps for ITL) that took no longer."""

from __future__ import annotations

import numpy as np

from cbbench.report.html.over_time import STILL, Drawing, Figure, Json, escaped
from cbbench.report.html.requests import name
from cbbench.results.durations import log_ticks
from cbbench.results.metrics import request_latencies
from cbbench.results.rounds import SavedRound
from cbbench.results.timeline import thinned
from cbbench.results.units import number

WIDE = 30  # longest over shortest: from here on the axis is logarithmic


def latencies(panels: list[SavedRound], drawing: Drawing) -> list[Figure]:
    """Customdata: sequence, name, time."""
    return [_latency(title, panels, drawing) for title in ("TTFT", "TPOT", "ITL", "E2E")]


def _latency(title: str, panels: list[SavedRound], drawing: Drawing) -> Figure:
    per_arm = [(panel, recorded, samples(recorded, title)) for panel, recorded in enumerate(panels)]
    known = [found for found in per_arm if found[2]]
    pooled = [value for _, _, values in known for value, _ in values]
    yaxis = {**STILL, "range": [0, 1.03], "tickformat": ".0%"}
    layout = {"height": 250, "margin": {"l": 46, "r": 14, "t": 8, "b": 40}, "xaxis": _xaxis(title, pooled, drawing), "yaxis": yaxis}
    said = "; ".join(f"{recorded.arm} median {drawing.time(float(np.median([v for v, _ in values])))}" for _, recorded, values in known)
    traces = [_curve(title, panel, recorded, values, drawing) for panel, recorded, values in known]
    num_drawn = sum(len(trace["x"]) for trace in traces)
    note = f"{number(num_drawn)} of {number(len(pooled))} values are drawn, both ends among them" if num_drawn < len(pooled) else ""
    return Figure(title.lower(), traces, layout, f"{title} by arm. {said or 'Nothing to show.'}", note=note)


def _xaxis(title: str, pooled: list[float], drawing: Drawing) -> Json:
    low, high = min(pooled, default=0.0), max(pooled, default=0.0)
    titled = {**STILL, "title": {"text": title, "standoff": 4}}
    if not 0 < WIDE * low < high:
        return titled  # page/draw.js reaches as far as the arms shown
    places = log_ticks(low, high)
    exponents = [float(np.log10(place)) for place in (low * 0.9, high * 1.1)]
    return titled | {"type": "log", "range": exponents, "tickvals": places, "ticktext": [drawing.tick(place) for place in places]}


def samples(recorded: SavedRound, title: str) -> list[tuple[float, int]]:
    """Values (s) of the completed requests with their sequences, ascending."""
    return sorted((value, r["index"]) for r in recorded.completed for value in request_latencies(r)[f"{title.lower()}_s"])


def _curve(title: str, panel: int, recorded: SavedRound, values: list[tuple[float, int]], drawing: Drawing) -> Json:
    """Thinned, and each followed request's largest value kept."""
    largest = {index: i for i, (_, index) in enumerate(values)}
    drawn = thinned(np.array([value for value, _ in values]), drawing.max_points // 3).tolist()
    kept = sorted({*drawn, *(largest[i] for i in drawing.followed if i in largest)})
    names = {r["index"]: escaped(name(r)) for r in recorded.requests}
    took = f"%{{y:.0%}} of {'gaps' if title == 'ITL' else 'requests'} took no longer"
    template = f"<b>%{{customdata[1]}}</b><br>{escaped(recorded.arm)}<br>{title} %{{customdata[2]}}<br>{took}<extra></extra>"
    return {
        "type": "scatter", "mode": "lines+markers", "name": escaped(recorded.arm), "meta": {"paint": "arm", "kind": title, "panel": panel},
        "x": [float(f"{values[i][0]:.6g}") for i in kept], "y": [round((i + 1) / len(values), 5) for i in kept], "line": {"shape": "hv"},
        "customdata": [[values[i][1], names[values[i][1]], drawing.time(values[i][0])] for i in kept], "hovertemplate": template,
    }  # fmt: skip
