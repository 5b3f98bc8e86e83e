"""Numbers as a person reads them: three significant digits, and their unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cbbench.results.durations import seconds as seconds

Format = Callable[[Any], str]


def number(value: float) -> str:
    """Three significant digits, thousands with commas."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def size(value: float) -> str:
    return f"{value / 2**20:,.1f} MiB" if value < 2**34 else f"{value / 2**30:,.1f} GiB"


def times(value: float) -> str:
    return f"{value:.2f} x"


def steps(value: float) -> str:
    """Time on a clock on which every step takes 1."""
    return f"{number(value)} step{'s' * (value != 1)}"
