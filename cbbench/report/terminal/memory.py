"""KV memory over time in characters: what the reserved tokens of the cache are for, stacked."""

from __future__ import annotations

import numpy as np
from rich.text import Text

from cbbench.report.terminal.columns import Columns, filled
from cbbench.report.terminal.slots import MARGIN, axis_lines
from cbbench.results.rounds import SavedRound
from cbbench.results.tables import percent, size
from cbbench.results.timeline import SHARES

HEIGHT = 8
SHADES = {"token states": "█", "future": "▓", "internal": "▒", "external": "░", "cached": "·"}
ASCII = {"token states": "#", "future": "+", "internal": "-", "external": "!", "cached": "."}
STYLES = {"token states": "green", "future": "yellow", "internal": "bright_red", "external": "magenta", "cached": "blue"}


def memory_lines(recorded: SavedRound, columns: Columns, encoding: str) -> list[Text]:
    """A cell shows what its middle holds, averaged over the slice. A cache far larger than what is used is cut off above."""
    found = recorded.memory
    signs = SHADES if encoding.lower().startswith("utf") else ASCII
    capacity = float(sum(values[0] for values in found.parts.values()))
    in_use = capacity - found.parts["free"]  # what is cached is drawn too
    top = capacity if in_use.max() > capacity / 2 else float(in_use.max())
    if not top:
        return []
    bounds = np.cumsum([columns.means(found.start_s, found.end_s, found.parts[name]) for name in signs], axis=0)
    lines = [Text(_title(recorded, capacity, top), style="bold")]
    for row in reversed(range(HEIGHT)):
        label = f"{top * (row + 1) / HEIGHT:,.0f}" if row in (HEIGHT - 1, HEIGHT // 2 - 1) else ""
        line = Text(f"{label:>{MARGIN - 1}} ")
        middle = top * (row + 0.5) / HEIGHT
        for column in range(columns.num):
            name = next((name for name, bound in zip(signs, bounds[:, column], strict=True) if middle < bound), None)
            line.append(*((signs[name], STYLES[name]) if name else (" ", "")))
        lines.append(line)
    shares = [f"{signs[name]} {name} {percent(recorded.metrics[key] or 0)}" for name, key in SHARES.items()]
    lasting_s = found.end_s - found.start_s
    cached, free = (percent(float(found.parts[part] @ lasting_s / (capacity * lasting_s.sum()))) for part in ("cached", "free"))
    if found.parts["cached"].any():
        free = f"{free}, {signs['cached']} cached and free: {cached}"
    said = [*shares, f"(of all that is reserved or lost; free: {free} of the cache)"]
    return [*lines, *axis_lines(columns), *map(Text, filled(said, MARGIN + columns.num))]


def _title(recorded: SavedRound, capacity: float, top: float) -> str:
    per_token, peak = recorded.said.get("bytes_per_token"), recorded.metrics["kv_reserved_tokens_peak"]
    in_bytes = f" ({size(capacity * per_token)})" if per_token else ""
    cut = "" if top == capacity else " (the axis ends there)"
    return f"KV memory over time: {capacity:,.0f} tokens{in_bytes}, peak {peak:,}{cut}"
