"""Where time comes from. The engine asks for it and waits on it; nothing else in a run reads a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the run began."""

    def now(self) -> float: ...

    def wait_until(self, moment_s: float) -> None: ...


class RealClock:
    """Monotonic: a step of the wall clock changes no metric."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def at(self, stamp: float) -> float:
        """A moment that somebody else stamped with `time.perf_counter`."""
        return stamp - self._start

    def wait_until(self, moment_s: float) -> None:
        """Due times are absolute, so work between two waits is not added to the gap."""
        while (left_s := moment_s - self.now()) > 0:
            time.sleep(left_s)


class VirtualClock:
    """Moves only when told to: every run is exact on any machine."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def wait_until(self, moment_s: float) -> None:
        self._now_s = max(self._now_s, moment_s)
