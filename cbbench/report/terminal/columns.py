"""Time as the columns of a terminal: what fills each slice, averages over slices, and the axis below."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cbbench.results.timeline import Floats

Thing = TypeVar("Thing", bound=Hashable)
TICK_COLUMNS = 10  # between two marks of the axis, at least


@dataclass(frozen=True)
class Columns:
    """Equal slices of the time from 0 to `end_s`."""

    num: int
    end_s: float

    @property
    def slice_s(self) -> float:
        return self.end_s / self.num

    def at(self, time_s: float) -> int:
        return min(max(int(time_s / self.slice_s + 1e-9), 0), self.num - 1)

    def longest(self, spans: Iterable[tuple[float, float, Thing]]) -> list[Thing | None]:
        """Per slice what lasts longest in it; None where nothing is for most of it."""
        shares: list[dict[Thing, float]] = [{} for _ in range(self.num)]
        for start_s, end_s, thing in spans:
            for column in range(self.at(start_s), self.at(end_s) + 1):
                inside_s = min(end_s, (column + 1) * self.slice_s) - max(start_s, column * self.slice_s)
                if inside_s > 0:
                    shares[column][thing] = shares[column].get(thing, 0.0) + inside_s
        return [max(share, key=lambda thing: share[thing]) if sum(share.values()) > self.slice_s / 2 else None for share in shares]

    def means(self, start_s: Floats, end_s: Floats, values: Floats) -> Floats:
        """Averages over time of what holds from start to end, [num]; NaN where nothing is known."""
        knots = np.column_stack([start_s, end_s]).ravel()
        edges = np.linspace(0, self.end_s, self.num + 1)
        area, known = (np.diff(np.interp(edges, knots, _integral(start_s, end_s, height))) for height in (values, np.ones_like(values)))
        means: Floats = np.full(self.num, np.nan)
        return np.divide(area, known, out=means, where=known > 1e-9 * self.slice_s)

    def axis(self) -> tuple[str, str]:
        """Marks, and what they say."""
        marks, said = ["-"] * self.num, ""
        step_s = self.tick_s()
        for tick in range(int(self.end_s / step_s * (1 + 1e-9)) + 1):
            column, text = self.at(tick * step_s), f"{tick * step_s:g} s" if tick else "0"
            if column + len(text) <= self.num:
                marks[column] = "+"
                said = said.ljust(column) + text
        return "".join(marks), said

    def tick_s(self) -> float:
        """1, 2 or 5 times a power of ten."""
        least_s = TICK_COLUMNS * self.slice_s
        power = 10.0 ** np.floor(np.log10(least_s))
        return float(next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least_s * (1 - 1e-9)))


def _integral(start_s: Floats, end_s: Floats, height: Floats) -> Floats:
    """At every start and end: the area before it."""
    ends = np.cumsum((end_s - start_s) * height)
    return np.column_stack([np.concatenate([[0.0], ends[:-1]]), ends]).ravel()


def filled(items: Iterable[str], width: int) -> list[str]:
    """Items in lines, three spaces between; none is broken over two lines that fits into one."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 3 + len(item) <= width:
            lines[-1] += f"   {item}"
        else:
            lines.append(item)
    return lines
