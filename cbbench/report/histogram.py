"""Histograms in characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

EIGHTHS = " ▏▎▍▌▋▊▉█"


def histogram(values: Sequence[float], num_bins: int = 10, width: int = 40) -> list[str]:
    """A line a bin: its range, a bar, its count. Bins grow geometrically where the values span more than a decade."""
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return []
    low, high = float(array.min()), float(array.max())
    if low == high:
        edges = np.array([low, low])
        counts = np.array([len(array)])
    else:
        edges = np.geomspace(low, high, num_bins + 1) if low > 0 and high > 10 * low else np.linspace(low, high, num_bins + 1)
        if np.array_equal(array, np.rint(array)):
            edges = np.append(np.unique(np.ceil(edges[:-1])), high + 1)  # whole numbers: bins begin at whole numbers
        counts, edges = np.histogram(array, edges)
    names = next(n for d in range(8) if len(set(n := [f"{edge:,.{d}f}" for edge in edges[: len(counts)]])) == len(n) or d == 7)
    pad, digits, most = max(map(len, names)), len(f"{counts.max():,}"), max(counts.max(), 1)
    bars = [bar(count / most, width) for count in counts]
    return [f"{name:>{pad}} {drawn:<{width}} {count:>{digits},}" for name, drawn, count in zip(names, bars, counts, strict=True)]


def bar(share: float, width: int) -> str:
    """`share` of `width` cells, to an eighth; never nothing for something."""
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
