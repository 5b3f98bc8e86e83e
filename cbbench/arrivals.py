"""When requests come: all at once, as recorded, or by a process with a rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from cbbench.request import Request
from cbbench.strict import Strict


class Poisson(Strict):
    rate_per_s: float = Field(gt=0)
    seed: int = Field(0, ge=0)


class Gamma(Poisson):
    cv: float = Field(gt=0, description="coefficient of variation of the gaps; 1 is Poisson")


class Arrivals(Strict):
    """When requests come: all at 0 (`offline`), as `recorded`, or by a process with a rate."""

    recorded: bool = False
    poisson: Poisson | None = None
    gamma: Gamma | None = None

    def describe(self) -> Any:
        """As it is written in a file."""
        process = self.model_dump(exclude_none=True, exclude={"recorded"})
        return process or ("recorded" if self.recorded else "offline")


def _written(written: Any) -> Any:
    if written in ("offline", "recorded"):
        return {"recorded": written == "recorded"}
    if not isinstance(written, dict) or len(written) != 1 or not written.keys() <= {"poisson", "gamma"}:
        raise ValueError(
            "should be 'offline', 'recorded', {poisson: {rate_per_s: 4}} or {gamma: {rate_per_s: 4, cv: 3}}, not " + repr(written)[:60]
        )
    return written


ArrivalsField = Annotated[Arrivals, BeforeValidator(_written)]  # as a file spells it


def arriving(requests: list[Request], arrivals: Arrivals) -> list[Request]:
    """The same requests at their times; gaps of a renewal process with the given rate and coefficient of variation."""
    process = arrivals.gamma or arrivals.poisson
    if process is not None:
        shape = 1 / (arrivals.gamma.cv if arrivals.gamma else 1.0) ** 2
        gaps = np.random.default_rng(process.seed).gamma(shape, 1 / (process.rate_per_s * shape), len(requests))
        times = [float(time) for time in np.cumsum(gaps) - gaps[0]]
    else:
        times = [request.arrival_s if arrivals.recorded else 0.0 for request in requests]
    return [replace(request, arrival_s=time) for request, time in zip(requests, times, strict=True)]
