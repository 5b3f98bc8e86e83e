"""An arm over time: its slots, its requests, its memory, its steps. All panels of a group share one time axis.

Figures are plotly's JSON. Colours are not in them: `meta` says what a trace means and page/draw.js paints it, so that one
palette serves light, dark and the keys beside the pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cbbench.report.html.bars import Bar, bars
from cbbench.report.html.requests import name
from cbbench.results.durations import seconds, tick_text, ticks
from cbbench.results.metrics import ended_s, ratio
from cbbench.results.rounds import SavedRound
from cbbench.results.timeline import IDLE, PARTS, SHARES, Floats, Kind, Phase, thinned
from cbbench.results.units import number, percent
from cbbench.results.units import steps as steps_text

Json = dict[str, Any]
MARGIN = {"l": 58, "r": 10, "t": 6, "b": 24}
STILL = {"fixedrange": True, "zeroline": False}
UNTOLD = "not told"  # by a peer: when it began


@dataclass
class Figure:
    """`label` says in words what the picture shows. `panel` is the arm it belongs to, in a picture of one arm."""

    kind: str
    data: list[Json]
    layout: Json
    label: str
    panel: int | None = None
    note: str = ""
    id: str = field(default="", init=False)


@dataclass(frozen=True)
class Drawing:
    """What all panels of a group have in common. `reach_s`: where the time axis ends."""

    reach_s: float
    followed: list[int]
    max_bars: int
    max_points: int
    counts_steps: bool = False  # a time is a number of steps

    def time(self, value: float) -> str:
        return steps_text(value) if self.counts_steps else seconds(value)

    def tick(self, value: float) -> str:
        return steps_text(value) if self.counts_steps else tick_text(value)


def escaped(text: str) -> str:
    """For plotly, which reads some tags in its texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def time_axis(end: float, drawing: Drawing, most: int = 6) -> Json:
    """An axis of times from 0 on, which cannot be zoomed."""
    places = ticks(end, most, decimal=drawing.counts_steps)
    return {"range": [0, end or 1.0], "tickvals": places, "ticktext": [drawing.tick(place) for place in places]}


def over_time(drawing: Drawing, height: int, **yaxis: Any) -> Json:
    """The layout of everything on the shared time axis: only time can be zoomed, and page/draw.js places its ticks."""
    xaxis = {"range": [0, drawing.reach_s], "zeroline": False}
    return {"height": height, "margin": MARGIN, "xaxis": xaxis, "yaxis": {**STILL, **yaxis}, "barmode": "overlay"}


def slots(recorded: SavedRound, panel: int, drawing: Drawing) -> Figure:
    """One row a slot, one trace a kind. Customdata: sequence, name, steps, first and last step, tokens, when, spans."""
    names = {r["index"]: escaped(name(r)) for r in recorded.requests}
    drawn = bars(recorded.spans, drawing.max_bars, set(drawing.followed))
    num_slots = 1 + max(span.slot for span in recorded.spans)
    traces = []
    for kind in Kind:
        if chosen := [bar for bar in drawn if bar.kind is kind]:
            template = (
                f"<b>%{{customdata[1]}}</b><br>{kind} in slot %{{y}}<br>%{{customdata[2]}} steps, %{{customdata[3]}} to %{{customdata[4]}}"
                "<br>%{customdata[5]} tokens computed<br>%{customdata[6]}<extra></extra>"
            )
            rows = [_row(bar, names, drawing) for bar in chosen]
            traces.append(_spread(str(kind), "slots", [(b.slot, b.start_s, b.end_s) for b in chosen], rows, template, 0.86))
    total = sum(span.num_steps for span in recorded.spans)
    idle = {kind: ratio(sum(span.num_steps for span in recorded.spans if span.kind is kind), total) or 0.0 for kind in IDLE}
    label = f"{recorded.arm}: {num_slots} slots over {number(len(recorded.steps))} steps, {percent(sum(idle.values()))} of them idle ("
    label += ", ".join(f"{kind} {percent(share)}" for kind, share in idle.items()) + ")"
    merged = sum(bar.num_spans for bar in drawn if bar.num_spans > 1)
    note = f"{number(merged)} of {number(len(recorded.spans))} short spans stand together, their sums kept." if merged else ""
    row_px = min(max(420 / num_slots, 4), 18)
    ticks = _ticks(list(range(num_slots)), row_px) | {"title": {"text": "slot"}}
    return Figure("slots", traces, over_time(drawing, round(30 + num_slots * row_px), **ticks), label, panel, note)


def _row(bar: Bar, names: dict[int, str], drawing: Drawing) -> list[Any]:
    title = f"{bar.num_spans} short spans together" if bar.num_spans > 1 else "empty" if bar.sequence is None else names[bar.sequence]
    when = f"{drawing.time(bar.start_s)} to {drawing.time(bar.end_s)}, {drawing.time(bar.end_s - bar.start_s)}"
    return [bar.sequence, title, bar.num_steps, bar.first_step, bar.last_step, bar.num_tokens, when, bar.num_spans]


def _ticks(rows: list[int], row_px: float, before: str = "") -> Json:
    """Numbered rows from the top, not every number where they would overlap."""
    shown = list(range(0, len(rows), max(round(18 / row_px), 1)))
    texts = [f"{before}{rows[place]}" for place in shown]
    return {"range": [len(rows) - 0.5, -0.5], "showgrid": False, "tickmode": "array", "tickvals": shown, "ticktext": texts}


def _spread(title: str, paint: str, places: list[tuple[int, float, float]], rows: list[list[Any]], template: str, width: float) -> Json:
    """Bars from a start to an end (s) on numbered rows."""
    starts = [round(start, 6) for _, start, _ in places]
    ends = [round(end, 6) for _, _, end in places]
    return {
        "type": "bar", "orientation": "h", "name": title, "meta": {"paint": paint, "kind": title}, "y": [row for row, _, _ in places],
        "base": starts, "x": [round(end - start, 6) for start, end in zip(starts, ends, strict=True)], "width": width,
        "customdata": rows, "hovertemplate": template, "textposition": "none",
    }  # fmt: skip


def requests(recorded: SavedRound, panel: int, drawing: Drawing) -> Figure:
    """One row a request in order of arrival. Customdata: sequence, name, seconds in the phase, when."""
    row_of = {index: row for row, index in enumerate(drawing.followed)}
    known = {r["index"]: r for r in recorded.requests if r["index"] in row_of}
    found: dict[str, list[tuple[int, float, float]]] = {phase: [] for phase in (*map(str, Phase), UNTOLD)}
    for stay in recorded.stays:
        if stay.sequence in row_of:
            found[str(stay.phase)].append((stay.sequence, stay.start_s, stay.end_s))
    for index, r in known.items():  # a peer that does not say when it began
        until = r["token_times_s"][0] if r["token_times_s"] else ended_s(r)
        if r["first_scheduled_s"] is None and until is not None:
            found[UNTOLD].append((index, r["arrival_s"], until))
    traces = []
    for phase, places in found.items():
        if places:
            said = drawing.time
            rows = [[i, escaped(name(known[i])), said(end - start), f"{said(start)} to {said(end)}"] for i, start, end in places]
            template = f"<b>%{{customdata[1]}}</b><br>{phase} %{{customdata[2]}}<br>%{{customdata[3]}}<extra></extra>"
            width = 0.4 if phase in (Phase.QUEUED, UNTOLD) else 0.86
            traces.append(_spread(phase, "requests", [(row_of[i], start, end) for i, start, end in places], rows, template, width))
    num = len(drawing.followed)
    row_px = 16 if num <= 24 else 9 if num <= 60 else 6
    label = f"{recorded.arm}: {num} requests from arrival to last token, the last after {drawing.time(_end_s(recorded))}"
    left = len(recorded.requests) - len(known)
    note = f"{len(known)} of {number(len(recorded.requests))} requests: of each run of neighbours the slowest." if left else ""
    layout = over_time(drawing, 30 + num * row_px, **_ticks(drawing.followed, row_px, "#"))
    return Figure("requests", traces, layout, label, panel, note)


def _end_s(recorded: SavedRound) -> float:
    return max((ended_s(r) or 0.0 for r in recorded.requests), default=0.0)


def reach_s(panels: list[SavedRound]) -> float:
    """Where the shared time axis ends: the last step or token of any arm."""
    return max((recorded.end_s for recorded in panels), default=0.0) or 1.0


def memory(recorded: SavedRound, panel: int, drawing: Drawing, highest: float) -> Figure:
    """Stacked tokens of the cache. A wait between steps is a gap."""
    found = recorded.memory
    times, columns = held(found.start_s, found.end_s, [found.parts[part] for part in PARTS], drawing.max_points)
    token_bytes = recorded.said.get("bytes_per_token")
    traces = [_area(part, "memory", times, column, "%{y:,.0f} tokens") for part, column in zip(PARTS, columns, strict=True) if any(column)]
    metrics = recorded.metrics
    shares = [(title, metrics[key]) for title, key in SHARES.items() if metrics[key] is not None]
    label = f"{recorded.arm}: reserved memory, on average {', '.join(f'{title} {percent(value)}' for title, value in shares)}"
    layout = over_time(drawing, 190, range=[0, highest * 1.04], title={"text": "tokens"}, tickformat="~s")
    note = f"A token takes {number(token_bytes)} bytes." if token_bytes else ""
    note = " ".join(part for part in (note, _thinned(len(times), found.start_s, found.end_s)) if part)
    return Figure("memory", traces, layout | {"hovermode": "x unified"}, label, panel, note)


def steps(recorded: SavedRound, panel: int, drawing: Drawing, longest_s: float) -> Figure:
    """How long each step took, in the model and around it."""
    starts, ends, model_s = (np.array([step[key] for step in recorded.steps]) for key in ("start_s", "end_s", "model_s"))
    columns = [model_s, np.maximum(ends - starts - model_s, 0)]
    times, thin = held(starts, ends, columns, drawing.max_points)
    traces = [_area(part, "steps", times, column, "%{text}") for part, column in zip(("model", "host"), thin, strict=True)]
    for trace in traces:
        trace["text"] = [seconds(value) for value in trace["y"]]
    totals = (seconds(recorded.metrics[key]) for key in ("model_s", "host_s"))
    label = f"{recorded.arm}: {len(model_s)} steps, model {next(totals)}, host {next(totals)}"
    layout = over_time(drawing, 170, title={"text": "a step"}, **time_axis(longest_s * 1.04, drawing, most=4))
    return Figure("steps", traces, layout | {"hovermode": "x unified"}, label, panel, _thinned(len(times), starts, ends))


def _thinned(num_drawn: int, start_s: Floats, end_s: Floats) -> str:
    waits = int((start_s[1:] > end_s[:-1]).sum())
    num = len(start_s)
    return f"{number(num_drawn)} points stand for {number(num)} steps; every peak is kept." if num_drawn < num + waits else ""


def held(start_s: Floats, end_s: Floats, columns: list[Floats], num: int) -> tuple[list[float], list[list[float]]]:
    """Values that hold from each start on, zero where a wait follows, and at the end; thinned with every column's peaks kept."""
    after = np.append(start_s[1:] > end_s[:-1], True).nonzero()[0] + 1
    times = np.insert(start_s, after, end_s[after - 1])
    whole = [np.insert(column.astype(float), after, 0.0) for column in columns]
    kept = np.unique(np.concatenate([thinned(column, num) for column in whole]))
    return np.round(times[kept], 6).tolist(), [np.round(column[kept], 6).tolist() for column in whole]


def _area(part: str, paint: str, times: list[float], values: list[float], template: str) -> Json:
    return {
        "type": "scatter", "mode": "lines", "name": part, "meta": {"paint": paint, "kind": part}, "x": times, "y": values,
        "stackgroup": "all", "line": {"shape": "hv", "width": 0.8}, "hovertemplate": f"{part} {template}<extra></extra>",
    }  # fmt: skip
