"""When requests come: all at once, as recorded, or by a process with a rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from cbbench.errors import UserError
from cbbench.request import Request
from cbbench.strict import Strict


class Poisson(Strict):
    rate_per_s: float = Field(gt=0)
    seed: int = Field(0, ge=0)


class Constant(Strict):
    rate_per_s: float = Field(gt=0)


class Gamma(Poisson):
    cv: float = Field(gt=0, description="coefficient of variation of the gaps; 1 is Poisson")


class Arrivals(Strict):
    """When requests come: all at 0 (`offline`), as `recorded`, by a process with a rate, or in a `closed` loop: a turn
    waits for the end of the one before and its think time, everything else comes as recorded."""

    recorded: bool = False
    closed: bool = False
    constant: Constant | None = None
    poisson: Poisson | None = None
    gamma: Gamma | None = None

    def describe(self) -> Any:
        """As it is written in a file."""
        process = self.model_dump(exclude_none=True, exclude={"recorded", "closed"})
        return process or ("closed" if self.closed else "recorded" if self.recorded else "offline")


def _written(written: Any) -> Any:
    if written in ("offline", "recorded", "closed"):
        return {"recorded": written == "recorded", "closed": written == "closed"}
    if not isinstance(written, dict) or len(written) != 1 or not written.keys() <= {"poisson", "gamma", "constant"}:
        raise ValueError(
            "should be 'offline', 'recorded', 'closed', {constant: {rate_per_s: 4}}, {poisson: {rate_per_s: 4}} or "
            "{gamma: {rate_per_s: 4, cv: 3}}, not " + repr(written)[:60]
        )
    return written


ArrivalsField = Annotated[Arrivals, BeforeValidator(_written)]  # as a file spells it


def arrivals_of(kind: str, rate_per_s: float | None, cv: float | None, seed: int) -> Arrivals:
    """From flags. Raises UserError where one is missing or says nothing."""
    if kind in ("offline", "recorded", "closed"):
        if rate_per_s is not None or cv is not None:
            raise UserError(f"--arrivals {kind} has no --{'rate' if rate_per_s is not None else 'cv'}")
        return Arrivals(recorded=kind == "recorded", closed=kind == "closed")
    if rate_per_s is None:
        raise UserError(f"--arrivals {kind} needs --rate (requests a second)")
    if (kind == "gamma") != (cv is not None):
        raise UserError("--arrivals gamma needs --cv" if kind == "gamma" else f"--arrivals {kind} has no --cv")
    if kind == "constant":
        return Arrivals(constant=Constant(rate_per_s=rate_per_s))
    if cv is None:
        return Arrivals(poisson=Poisson(rate_per_s=rate_per_s, seed=seed))
    return Arrivals(gamma=Gamma(rate_per_s=rate_per_s, seed=seed, cv=cv))


def process_times(arrivals: Arrivals, num: int) -> list[float] | None:
    """From 0 on; gaps of a renewal process of that rate and coefficient of variation. None where no process was asked for."""
    process = arrivals.gamma or arrivals.poisson
    if process is not None:
        shape = 1 / (arrivals.gamma.cv if arrivals.gamma else 1.0) ** 2
        gaps = np.random.default_rng(process.seed).gamma(shape, 1 / (process.rate_per_s * shape), num)
        times: list[float] = (np.cumsum(gaps) - gaps[:1]).tolist()
        return times
    return None if arrivals.constant is None else [index / arrivals.constant.rate_per_s for index in range(num)]


def arriving(requests: list[Request], arrivals: Arrivals) -> list[Request]:
    """The same requests at their times. Only a closed loop keeps who comes after whom."""
    if arrivals.closed:
        return requests
    times = process_times(arrivals, len(requests))
    if times is None:
        times = [request.arrival_s if arrivals.recorded else 0.0 for request in requests]
    return [_at(request, time) for request, time in zip(requests, times, strict=True)]


def _at(request: Request, time: float) -> Request:
    same = request.arrival_s == time and request.after is None
    return request if same else replace(request, arrival_s=time, after=None)
