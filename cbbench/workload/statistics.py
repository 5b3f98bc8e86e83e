"""What a set of requests looks like: how many, how long, how often, how bursty, how much alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Profile = dict[str, Any]
KEYS = ("mean", "p50", "p90", "p99", "max")


def profile(prompt_tokens: Sequence[int], output_tokens: Sequence[int], times_s: Sequence[float] | None, hit_tokens: int) -> Profile:
    """Lengths, arrivals and ideal prefix hits; a value that does not exist is None. `times_s` ascending."""
    prompt = lengths(prompt_tokens)
    total = int(np.sum(prompt_tokens)) if len(prompt_tokens) else 0
    return {
        "num_requests": len(prompt_tokens), "prompt_tokens": prompt, "output_tokens": lengths(output_tokens), **arrivals(times_s),
        "prefix_hit_frac": hit_tokens / total if total else None,
    }  # fmt: skip


def lengths(values: Sequence[int]) -> dict[str, Any]:
    """mean, p50, p90, p99, max (numpy's linear percentiles)."""
    if not len(values):
        return dict.fromkeys(KEYS)
    array = np.asarray(values)
    middle = zip(("p50", "p90", "p99"), np.percentile(array, [50, 90, 99]), strict=True)
    return {"mean": round(float(array.mean()), 2), **{key: round(float(value), 2) for key, value in middle}, "max": int(array.max())}


def arrivals(times_s: Sequence[float] | None) -> Profile:
    """Rate over the span, the gaps' coefficient of variation (population), and the dispersion of counts a second
    (variance / mean; a Poisson process has 1)."""
    row: Profile = dict.fromkeys(("span_s", "rate_per_s", "gap_cv", "dispersion_1s", "max_in_1s"))
    if times_s is None or len(times_s) < 2 or times_s[-1] <= times_s[0]:
        return row
    times = np.asarray(times_s, dtype=np.float64) - times_s[0]
    gaps, span_s = np.diff(times), float(times[-1])
    row |= {"span_s": round(span_s, 6), "rate_per_s": len(times) / span_s, "gap_cv": float(gaps.std() / gaps.mean())}
    if span_s >= 1:
        # A trace that idles for years has more seconds than arrivals: empty ones are counted, not stored.
        seconds = int(span_s) + 1
        counts = np.unique(times.astype(np.int64), return_counts=True)[1].astype(np.float64)
        mean = len(times) / seconds
        variance = float((counts**2).sum()) / seconds - mean**2
        row |= {"dispersion_1s": variance / mean, "max_in_1s": int(counts.max())}
    return row
