"""Arrival times of a trace made into those of a replay: ties spread, gaps capped, faster or slower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Times = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Shape:
    """What to do with recorded times, in this order. `speedup` 2 is twice the rate; `rate_per_s` chooses the speedup."""

    spread_ticks: bool = False
    gap_cap_s: float | None = None
    speedup: float = 1.0
    rate_per_s: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Shaped:
    """Times from 0 on, ascending, and what was done to them."""

    times_s: Times
    speedup: float
    tick_s: float | None  # what ties were spread over


def shape(times_s: Times, wanted: Shape) -> Shaped:
    """`times_s` ascending. Their order never changes."""
    times_s = times_s - times_s[:1]
    tick_s = None
    if wanted.spread_ticks:
        tick_s = tick(times_s)
        if tick_s is not None:
            times_s = spread(times_s, tick_s, wanted.seed)
    if wanted.gap_cap_s is not None:
        times_s = np.concatenate([times_s[:1], times_s[:1] + np.cumsum(np.minimum(np.diff(times_s), wanted.gap_cap_s))])
    speedup = wanted.speedup
    if wanted.rate_per_s is not None and len(times_s) and times_s[-1] > 0:
        speedup = float(wanted.rate_per_s * times_s[-1] / len(times_s))
    return Shaped(times_s / speedup, speedup, tick_s)


def tick(times_s: Times) -> float | None:
    """The grid that a clock stamped on; None without ties. Where most steps are the smallest one, give or take 1 %, that
    is the grid (Mooncake's 3 s, jittered by a millisecond); else what all steps are multiples of (whole seconds)."""
    steps_us = np.rint(np.diff(np.unique(times_s)) * 1e6).astype(np.int64)
    if not len(steps_us) or len(steps_us) + 1 == len(times_s):
        return None
    smallest = int(steps_us.min())
    regular = float((steps_us <= 1.01 * smallest).mean()) >= 0.5
    return (smallest if regular else int(np.gcd.reduce(steps_us))) / 1e6


def spread(times_s: Times, tick_s: float, seed: int) -> Times:
    """Each time moved to a uniformly drawn place within its tick: Mooncake's 3 s grid has a gap CV of 3.03, spread 1.01."""
    moved = times_s + np.random.default_rng(seed).uniform(0, tick_s, len(times_s))
    moved.sort()
    return moved - moved[:1]
