"""Times as a person says them: one formatter for tables, pages and pictures, and round places on an axis of time.

page/time.js says the same in the browser; a test holds them together.
"""

from __future__ import annotations

import math

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
LONGEST_IN_SECONDS_S = 120
SHORTEST_MS = 0.001
# Distances between ticks; below a second and beyond ten days 1, 2 and 5 times a power of ten (of days).
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000)
LOG_PLACES_S = (1, 10, 60, 600, 3600, 36_000, 86_400, 864_000)  # below a second every power of ten


def seconds(value_s: float) -> str:
    """`0.42 ms`, `340 ms`, `12.34 s`, `7 min 12 s`, `7 h 12 min`, `3 d 4 h`: two units at most, and none above 120 of it."""
    if value_s < 0:
        return f"-{seconds(-value_s)}"
    if value_s < 0.9995:
        return _milliseconds(1000 * value_s)
    if value_s < LONGEST_IN_SECONDS_S:
        return f"{value_s:.2f} s"
    if round(value_s) < HOUR_S:
        return _two(round(value_s), MINUTE_S, "min", "s")
    if round(value_s / MINUTE_S) < DAY_S / MINUTE_S:
        return _two(round(value_s / MINUTE_S), 60, "h", "min")
    return _two(round(value_s / HOUR_S), 24, "d", "h")


def _milliseconds(value_ms: float) -> str:
    if 0 < value_ms < SHORTEST_MS:
        return f"< {SHORTEST_MS} ms"
    return f"{value_ms:.2g} ms" if value_ms < 9.95 else f"{value_ms:.0f} ms"


def _two(value: int, size: int, large: str, small: str) -> str:
    whole, rest = divmod(value, size)
    return f"{whole:,} {large}" + (f" {rest} {small}" if rest else "")


def tick_text(value_s: float) -> str:
    """A round place on an axis: `0`, `500 ms`, `1.5 s`, `2 h 30 min`."""
    if not value_s:
        return "0"
    number, _, unit = seconds(value_s).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def ticks(end_s: float, most: int = 6, decimal: bool = False) -> list[float]:
    """Round places from 0 to `end_s`, at most `most` distances; `decimal` for what counts no seconds."""
    wanted = end_s / most
    if wanted <= 0:
        return [0.0]
    step_s = next((step for step in STEPS_S if step >= wanted), None) if wanted > 0.5 and not decimal else None
    if step_s is None:
        unit = 1 if wanted < 1 or decimal else DAY_S
        power = 10 ** math.floor(math.log10(wanted / unit))
        step_s = next(factor * power * unit for factor in (1, 2, 5, 10) if factor * power * unit >= wanted * (1 - 1e-9))
    return [round(number * step_s, 12) for number in range(math.floor(end_s / step_s * (1 + 1e-9)) + 1)]


def log_ticks(low_s: float, high_s: float) -> list[float]:
    """Round places on a logarithmic axis, 10 or 6 times from one to the next, those around both ends included."""
    below = [10.0**power for power in range(min(math.floor(math.log10(low_s)), 0), 0)]
    places = [*below, *map(float, LOG_PLACES_S)]
    while places[-1] < high_s:
        places.append(10 * places[-1])
    first = max((i for i, place in enumerate(places) if place <= low_s), default=0)
    last = min(i for i, place in enumerate(places) if place >= high_s)
    return places[first : last + 1]
