"""Is the new one slower, and by how much? Paired log ratios, one a round.

Hodges-Lehmann estimate with the exact signed-rank interval (Hollander & Wolfe, Nonparametric Statistical Methods, 3.2):
against bootstraps and Student's t it keeps its level at few rounds and stays narrow when a round is slow for reasons of
its own. Requests and tokens are never the sample: within a round they all share its fate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
MIN_ROUNDS = 6  # fewer cannot exclude anything at 95 %


@dataclass(frozen=True)
class Shift:
    """An estimate with its interval; the interval is None where there are too few values for one."""

    estimate: float
    low: float | None
    high: float | None
    num: int

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def __neg__(self) -> Shift:
        return Shift(-self.estimate, None if self.high is None else -self.high, None if self.low is None else -self.low, self.num)


def hodges_lehmann(differences: Sequence[float], level: float = LEVEL) -> Shift:
    """Median of all Walsh averages (d_i + d_j) / 2, i <= j, and the interval that inverts the exact signed-rank test."""
    values = np.asarray(differences, dtype=np.float64)
    first, second = np.triu_indices(len(values))
    walsh = np.sort((values[first] + values[second]) / 2)
    low = high = None
    if (cut := tail_rank((1 - level) / 2, len(values))) is not None:
        low, high = float(walsh[cut]), float(walsh[len(walsh) - 1 - cut])
    return Shift(float(np.median(walsh)), low, high, len(values))


def tail_rank(tail: float, num: int) -> int | None:
    """The largest k with P(W <= k) <= tail, for the signed-rank sum W of `num` values; None where even P(W = 0) is more."""
    if num == 0 or 0.5**num > tail:
        return None
    ways = np.ones(1)
    for rank in range(1, num + 1):  # each rank counts or does not
        longer = np.zeros(len(ways) + rank)
        longer[: len(ways)] += ways / 2
        longer[rank:] += ways / 2
        ways = longer
    return int(np.searchsorted(np.cumsum(ways), tail, side="right")) - 1


def rounds_needed(shift: Shift, margin: float) -> int | None:
    """Rounds after which the interval should be no wider than the margin, even ones so that mirrored orders cancel."""
    if shift.half_width is None or margin <= 0:
        return None
    needed = max(MIN_ROUNDS, shift.num + 1, math.ceil(shift.num * (shift.half_width / margin) ** 2))
    return needed + needed % 2


def prediction_interval(history: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Where one more value of the same kind falls: mean +- t s sqrt(1 + 1/n). At least two values."""
    from scipy.special import stdtrit  # type: ignore[import-untyped,unused-ignore]

    values = np.asarray(history, dtype=np.float64)
    num = len(values)
    reach = float(stdtrit(num - 1, (1 + level) / 2)) * float(values.std(ddof=1)) * math.sqrt(1 + 1 / num)
    return float(values.mean()) - reach, float(values.mean()) + reach
