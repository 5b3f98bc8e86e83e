"""Who is still to come, and when: by the clock (open loop), or after another request's end (closed loop)."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator

from cbbench.request import Sequence


class ArrivalQueue:
    """Sequences that have not arrived. ArrivalQueue times are absolute: what comes late is not moved, its lateness is measured."""

    def __init__(self, sequences: list[Sequence]) -> None:
        self._timed: list[tuple[float, int, Sequence]] = []  # a heap: when, order of submission
        self._after: dict[str, list[Sequence]] = defaultdict(list)  # request id -> the turns that wait for its end
        for sequence in sequences:
            if sequence.request.after is None:
                self._expect(sequence)
            else:
                self._after[sequence.request.after].append(sequence)

    def _expect(self, sequence: Sequence) -> None:
        heapq.heappush(self._timed, (sequence.arrival_s, sequence.index, sequence))

    @property
    def next_s(self) -> float | None:
        """When the next one is due; None while all who are left wait for somebody's end."""
        return self._timed[0][0] if self._timed else None

    def __iter__(self) -> Iterator[Sequence]:
        yield from (sequence for _, _, sequence in self._timed)
        for waiting in self._after.values():
            yield from waiting

    def pop(self, now_s: float) -> Sequence | None:
        """The next one that is due by now."""
        return heapq.heappop(self._timed)[-1] if self._timed and self._timed[0][0] <= now_s else None

    def ended(self, sequence: Sequence, now_s: float) -> None:
        """Its follow-up is due a think time from now, however the turn before ended."""
        for follower in self._after.pop(sequence.request.id, ()) if self._after else ():
            follower.arrival_s = now_s + follower.request.think_s
            self._expect(follower)

    def remove(self, sequence: Sequence) -> bool:
        """Whether it was still to come."""
        for entry in self._timed:
            if entry[-1] is sequence:
                self._timed.remove(entry)
                heapq.heapify(self._timed)
                return True
        waiting = self._after.get(sequence.request.after or "", [])
        if sequence in waiting:
            waiting.remove(sequence)
            return True
        return False
