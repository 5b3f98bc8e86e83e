"""The arms of runs that computed the same thing, and how many times one's value is another's."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from cbbench.compare.stats import hodges_lehmann
from cbbench.results import tables
from cbbench.results.compared_metrics import BUSY_FRAC, DEFAULT_MARGIN
from cbbench.results.store import Cell, Run
from cbbench.results.units import number

MAX_NAMED = 3


@dataclass(frozen=True)
class Contender:
    """One arm of one run, with its whole rounds."""

    name: str  # the arm's label, and the run where another run has it too
    run: Run
    arm: dict[str, Any]
    cells: list[Cell]

    @property
    def is_peer(self) -> bool:
        return bool(self.arm.get("peer"))

    @property
    def twin_of(self) -> str | None:
        """The arm of which it is another revision, or a copy."""
        found: str | None = self.arm.get("base_of")
        return found

    @property
    def quiet(self) -> list[Cell]:
        """The rounds in which other processes left the machine alone: only those say something about time."""
        return [cell for cell in self.cells if (cell.metrics.get("others_cpu_frac") or 0.0) <= BUSY_FRAC]

    def middle(self, key: str, quiet_only: bool = False) -> float | None:
        """The median over rounds; None where it has none."""
        found: float | None = tables.medians(self.quiet if quiet_only else self.cells).get(key)
        return found

    def spread(self, key: str) -> str:
        """From the lowest to the highest quiet round."""
        found = [value for cell in self.quiet if (value := cell.metrics.get(key)) is not None]
        return f"{number(min(found))} to {number(max(found))} in {len(found)} rounds" if len(found) > 1 else "one round: no spread"

    @property
    def has_times(self) -> bool:
        """Whether a model ran: a virtual clock counts steps."""
        return bool(self.run.info["model"]["digest"])

    @property
    def is_right(self) -> bool:
        """No wrong token; in half precision tokens depend on the batch, and none is held against it."""
        return not self.most("exact_wrong") or self.run.info["model"]["dtype"] != "float32"

    def least(self, key: str) -> int:
        return min((cell.metrics.get(key) or 0 for cell in self.cells), default=0)

    def most(self, key: str) -> int:
        return max((cell.metrics.get(key) or 0 for cell in self.cells), default=0)


@dataclass(frozen=True)
class Ratio:
    """One's value / another's: the middle, and where it lies from round to round."""

    value: float
    low: float | None
    high: float | None
    num_rounds: int  # that both have; 0 between different runs
    is_interval: bool = False  # low to high is a 95 % range, else all that was seen
    is_exact: bool = False  # a count: it has no spread

    @property
    def is_clear(self) -> bool:
        """Whether they differ; one round shows no difference below the usual margin."""
        if self.is_exact:
            return self.value != 1
        if self.low is None or self.high is None:
            return abs(math.log(self.value)) > math.log1p(DEFAULT_MARGIN)
        return not self.low <= 1 <= self.high

    @property
    def spread(self) -> str:
        if self.num_rounds == 0:
            return "different runs: no spread"
        if self.low is None or self.high is None:
            return "one round: no spread"
        reach = f"{self.low:.2f} to {self.high:.2f}"
        return f"95 % range {reach}, {self.num_rounds} rounds" if self.is_interval else f"{reach} in {self.num_rounds} rounds"

    def __str__(self) -> str:
        return f"{self.value:.2f} x ({self.spread})"


def contenders(runs: list[Run]) -> list[Contender]:
    """Every arm of every run, those without a whole round too."""
    labels = Counter(arm["label"] for run in runs for arm in run.info["arms"])
    found = []
    for run in runs:
        for arm in run.info["arms"]:
            label = arm["label"]
            cells = [cell for cell in run.cells if cell.arm == label and cell.metrics and not cell.failed and not cell.interrupted]
            found.append(Contender(label if labels[label] == 1 else f"{label} of {run.name}", run, arm, cells))
    return found


def named(names: list[str]) -> str:
    """`A`, `A and B`, `A, B and 3 others`."""
    if len(names) > MAX_NAMED:
        return f"{', '.join(names[: MAX_NAMED - 1])} and {len(names) - MAX_NAMED + 1} others"
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part) if names else "none"


def ratio(one: Contender, other: Contender, key: str, is_time: bool = True) -> Ratio | None:
    """Round by round within a run, between medians of different runs. None where a side has no value, for times no quiet round,
    or another machine."""
    if not is_time or one.run is not other.run:
        own, against = one.middle(key, is_time), other.middle(key, is_time)
        if not own or not against or (is_time and one.run.info.get("machine") != other.run.info.get("machine")):
            return None
        return Ratio(own / against, None, None, 0, is_exact=not is_time)
    sides = [{cell.round: cell.metrics.get(key) for cell in side.quiet} for side in (one, other)]
    pairs = [(sides[0][r], sides[1][r]) for r in sorted(sides[0].keys() & sides[1].keys())]
    logs = [math.log(mine / its) for mine, its in pairs if mine and its]
    if not logs:
        return None
    shift = hodges_lehmann(logs)
    value = math.exp(shift.estimate)
    if shift.low is not None and shift.high is not None:
        return Ratio(value, math.exp(shift.low), math.exp(shift.high), len(logs), is_interval=True)
    return Ratio(value, math.exp(min(logs)), math.exp(max(logs)), len(logs)) if len(logs) > 1 else Ratio(value, None, None, 1)
