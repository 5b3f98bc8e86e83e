"""What did each axis buy? One axis changed at a time, everything else the same, averaged over all that is the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cbbench.compare.stats import Shift, hodges_lehmann
from cbbench.compare.verdict_report import change_text
from cbbench.plugins import AXES
from cbbench.results.store import Run
from cbbench.results.tables import Grid

METRICS = {"output_tok_per_s": "output tok/s", "ttft_s_p50": "TTFT p50", "kv_utilization": "KV used"}


@dataclass(frozen=True)
class Effect:
    """ln(to / from) of a metric when one axis goes from one value to another; one value a round, the mean over contexts."""

    run: str
    axis: str
    start: str
    to: str
    metric: str
    num_contexts: int
    shift: Shift


def effects(run: Run) -> list[Effect]:
    """Every step away from the first value of each axis that the run has arms for."""
    own = [arm for arm in run.info["arms"] if not arm.get("base_of") and not arm.get("peer")]
    arms = {arm["label"]: {**{axis: _spelled(arm[axis]) for axis in AXES}, "limits": _limits(arm)} for arm in own}
    found = []
    for axis in AXES:
        names = list(dict.fromkeys(named[axis] for named in arms.values()))
        for name in names[1:]:
            pairs = list(_pairs(arms, axis, names[0], name))
            for metric in METRICS:
                if (effect := _effect(run, axis, names[0], name, metric, pairs)) is not None:
                    found.append(effect)
    return found


def _limits(arm: dict[str, Any]) -> str:
    return f"{arm.get('max_num_seqs')} at once in {arm.get('memory_budget')}"


def _spelled(chosen: dict[str, Any]) -> str:
    return str(chosen["name"]) + "".join(f" {key}={value}" for key, value in chosen.items() if key != "name")


def _pairs(arms: dict[str, dict[str, str]], axis: str, start: str, to: str) -> Iterator[tuple[str, str]]:
    """Arms that differ in that axis alone."""
    for label, named in arms.items():
        if named[axis] == start:
            yield from ((label, other) for other, others in arms.items() if others == {**named, axis: to})


def _effect(run: Run, axis: str, start: str, to: str, metric: str, pairs: list[tuple[str, str]]) -> Effect | None:
    values = {(cell.arm, cell.round): cell.metrics.get(metric) for cell in run.cells if cell.metrics and not cell.interrupted}
    rounds = sorted({number for _, number in values})
    there = {label for (label, _), value in values.items() if value}
    pairs = [pair for pair in pairs if there.issuperset(pair)]
    means = []
    for number in rounds:
        both = [(values.get((a, number)), values.get((b, number))) for a, b in pairs]
        logs = [math.log(new / old) for old, new in both if old and new and old > 0 and new > 0]
        if len(logs) == len(pairs) and logs:
            means.append(float(np.mean(logs)))
    return Effect(run.name, axis, start, to, metric, len(pairs), hodges_lehmann(means)) if means else None


def as_grid(found: list[Effect]) -> Grid:
    headers = ["axis", "from", "to", "metric", "arms", "rounds", "ratio", "95 % range"]
    lines = []
    for effect in found:
        low, high = effect.shift.low, effect.shift.high
        reach = "-" if low is None or high is None else f"{math.exp(low):.2f} .. {math.exp(high):.2f}"
        ratio = math.exp(effect.shift.estimate)
        lines.append([
            effect.axis, effect.start, effect.to, METRICS[effect.metric], str(effect.num_contexts), str(effect.shift.num),
            f"{ratio:.2f} x ({change_text(ratio)})", reach,
        ])  # fmt: skip
    note = "" if lines else "no two arms differ in one axis alone"
    return Grid("What each axis buys", headers, lines, note, 4, turns=False)
