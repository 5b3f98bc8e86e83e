"""Is the new one slower, and by how much? Paired log ratios, one a round.

The estimate is a median of Walsh averages (d_i + d_j) / 2 with the interval of an exact signed-rank test (Hodges & Lehmann 1963;
Hollander & Wolfe, Nonparametric Statistical Methods, 3.2). Ranks above half the number of rounds count as that half (winsorized
scores: Policello & Hettmansperger, JASA 1976), which means that only values near each other in sorted order are averaged. So a
wild round moves few averages, and at ten rounds the interval has room for one. Requests and tokens are never the sample: within a
round they all share its fate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
MIN_ROUNDS = 6  # fewer cannot exclude anything at 95 %
RECOMMENDED_ROUNDS = 18  # `make power`: with one wild round in ten, false alarms under 2 %, +10 % found in 95 % at 3 % of noise
MOST_ROUNDS = 200  # more are never advised
SURE = 0.85  # that so many rounds will tell; simulated, four in five or more do


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


def hodges_lehmann(differences: Sequence[float], level: float = LEVEL, reach: int | None = None) -> Shift:
    """Median of the Walsh averages of values that are less than `reach` places apart in sorted order, and the interval that inverts
    the exact test with ranks capped at `reach`. Default: half the number of values. All of them: the plain signed-rank test."""
    values = np.sort(np.asarray(differences, dtype=np.float64))
    reach = reach or max(1, len(values) // 2)
    first, second = np.triu_indices(len(values))
    near = second - first < reach
    walsh = np.sort((values[first[near]] + values[second[near]]) / 2)
    low = high = None
    if (cut := tail_rank((1 - level) / 2, len(values), reach)) is not None:
        low, high = float(walsh[cut]), float(walsh[len(walsh) - 1 - cut])
    return Shift(float(np.median(walsh)), low, high, len(values))


def tail_rank(tail: float, num: int, reach: int | None = None) -> int | None:
    """The largest k with P(W <= k) <= tail, for the signed-rank sum W of `num` values with ranks capped at `reach`; None where even
    P(W = 0) is more."""
    if num == 0 or 0.5**num > tail:
        return None
    ways = np.ones(1)
    for rank in range(1, num + 1):  # each rank counts or does not
        score = min(rank, reach or num)
        longer = np.zeros(len(ways) + score)
        longer[: len(ways)] += ways / 2
        longer[score:] += ways / 2
        ways = longer
    return int(np.searchsorted(np.cumsum(ways), tail, side="right")) - 1


def rounds_needed(shift: Shift, margin: float) -> int | None:
    """How many rounds would very likely tell, even ones so that mirrored orders cancel; None where more than MOST_ROUNDS would be
    needed, as always where the difference is about as large as the margin.

    The estimate of another run of N rounds is taken as normal around this one's, with the errors of both; it tells where it lies
    beyond the margin and its own interval, or within the margin by more than its interval.
    """
    if shift.half_width is None or margin <= 0:
        return None
    first = max(MIN_ROUNDS, shift.num + 1)
    rounds = np.arange(first + first % 2, MOST_ROUNDS + 1, 2, dtype=np.float64)
    widths = shift.half_width * np.sqrt(shift.num / rounds)
    errors = np.maximum(shift.half_width / 1.96 * np.sqrt(1 + shift.num / rounds), 1e-12)

    def below(bounds: np.ndarray) -> np.ndarray:
        from scipy.special import ndtr  # type: ignore[import-untyped,unused-ignore]

        found: np.ndarray = ndtr((bounds - abs(shift.estimate)) / errors)
        return found

    outside, inside = np.maximum(margin, widths), np.maximum(margin - widths, 0.0)
    tells = 1 - below(outside) + below(-outside) + below(inside) - below(-inside)
    enough = np.flatnonzero(tells >= SURE)
    return int(rounds[enough[0]]) if len(enough) else None


def prediction_interval(history: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Where one more value of the same kind falls: mean +- t s sqrt(1 + 1/n). At least two values."""
    from scipy.special import stdtrit  # type: ignore[import-untyped,unused-ignore]

    values = np.asarray(history, dtype=np.float64)
    num = len(values)
    reach = float(stdtrit(num - 1, (1 + level) / 2)) * float(values.std(ddof=1)) * math.sqrt(1 + 1 / num)
    return float(values.mean()) - reach, float(values.mean()) + reach
