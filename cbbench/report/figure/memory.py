"""Memory over time: the tokens of the cache, stacked by what they are for."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cbbench.report.figure.style import CYCLE, arm_title, legend, lighter, stacked, subtitle, swatch, time_label
from cbbench.results.rounds import SavedRound
from cbbench.results.tables import percent
from cbbench.results.timeline import Floats, Memory, thinned

BLUE, ORANGE, GREEN, _, SKY, RED, _ = CYCLE
STYLES: dict[str, dict[str, Any]] = {
    "token states": {"facecolor": BLUE}, "future": {"facecolor": lighter(SKY, 0.3), "hatch": "----"},
    "internal": {"facecolor": ORANGE, "hatch": "////"}, "external": {"facecolor": lighter(RED, 0.2), "hatch": "xxxx"},
    "cached": {"facecolor": lighter(GREEN, 0.6)}, "free": {"facecolor": "#f4f4f4"},
}  # fmt: skip
SAID = {
    "token states": "token states", "future": "future: reserved, to be written", "internal": "internal: reserved, never written",
    "external": "external: free, fits nobody", "cached": "cached: free, can be found again", "free": "free",
}  # fmt: skip
MAX_STEPS = 2000  # more are thinned; no peak is lost


def draw(title: str, chosen: list[SavedRound]) -> Figure:
    figure, axes = stacked(title, [1.25] * len(chosen))
    size = max(float(np.sum([*recorded.memory.parts.values()], axis=0).max()) for recorded in chosen)
    for index, (recorded, place) in enumerate(zip(chosen, axes, strict=True)):
        row = recorded.metrics
        used, internal = percent(row["kv_utilization"] or 0.0), percent(row["kv_internal_frac"] or 0.0)
        subtitle(place, arm_title(recorded), f"of what is reserved: token states {used}, internal {internal}")
        _draw_arm(place, index, recorded.memory)
        place.set_ylim(0, size)
        place.set_ylabel("tokens")
        per_token = recorded.said.get("bytes_per_token")
        if per_token:
            _in_mib(place, per_token / 2**20)
    end_s = float(max(recorded.memory.end_s[-1] for recorded in chosen))
    axes[0].set_xlim(0, end_s)
    axes[-1].set_xlabel(time_label(axes[-1], chosen, end_s))
    present = [name for name in STYLES if any(recorded.memory.parts[name].any() for recorded in chosen)]
    legend(figure, [swatch(SAID[name], **STYLES[name]) for name in present], columns=3)
    return figure


def _in_mib(axes: Axes, mib_per_token: float) -> None:
    def to_mib(tokens: Any) -> Any:
        return tokens * mib_per_token

    def to_tokens(mib: Any) -> Any:
        return mib / mib_per_token

    axes.secondary_yaxis("right", functions=(to_mib, to_tokens)).set_ylabel("MiB")


def _draw_arm(axes: Axes, index: int, memory: Memory) -> None:
    time_s, parts = outline(memory)
    parts = {name: values for name, values in parts.items() if values.any()}
    for name, area in zip(parts, axes.stackplot(time_s, *parts.values()), strict=True):
        area.set(**STYLES[name], edgecolor="#222222", linewidth=0.3)
        area.set_gid(f"memory-{index}-{name.replace(' ', '-')}")


def outline(memory: Memory) -> tuple[Floats, dict[str, Floats]]:
    """The corners of a staircase: each step at its height from its start to its end, nothing during waits for arrivals."""
    reserved = memory.parts["token states"] + memory.parts["future"] + memory.parts["internal"]
    kept = thinned(reserved, MAX_STEPS)
    start_s = memory.start_s[kept]
    end_s = memory.end_s[[*(kept[1:] - 1), len(reserved) - 1]]  # a thinned step lasts until the next one kept
    waits = np.append(start_s[1:] > end_s[:-1], False)
    time_s: list[float] = []
    heights: dict[str, list[float]] = {name: [] for name in memory.parts}
    for position, step in enumerate(kept.tolist()):
        time_s += [start_s[position], end_s[position]]
        for name, values in memory.parts.items():
            heights[name] += [values[step]] * 2
        if waits[position]:
            time_s += [end_s[position], start_s[position + 1]]
            for corners in heights.values():
                corners += [0.0, 0.0]
    return np.array(time_s), {name: np.array(corners) for name, corners in heights.items()}
