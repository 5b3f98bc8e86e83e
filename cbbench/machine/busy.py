"""How much of the machine others took while a round ran."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


class OthersTime:
    """CPU time of the whole machine between two moments, less that of this process, its children and `own_pids` (with theirs),
    as a share of all that there was. A machine that lends its cores to other guests says how much it took (steal); that counts too."""

    def __init__(self, own_pids: Iterable[int] = ()) -> None:
        self.own_pids = tuple(own_pids)
        self.before = self._now()

    def _now(self) -> tuple[float, float, float]:
        """Seconds: there were, were used or taken by anybody, were ours."""
        whole = psutil.cpu_times()
        idle = whole.idle + getattr(whole, "iowait", 0.0)
        own = psutil.Process().cpu_times()
        ours = own.user + own.system + own.children_user + own.children_system + sum(map(_family_s, self.own_pids))
        total = sum(whole) - getattr(whole, "guest", 0.0) - getattr(whole, "guest_nice", 0.0)
        return total, total - idle, ours

    def frac(self, at_least_s: float = 0.25) -> float | None:
        """None where too little time has passed to tell: the system counts in hundredths of a second."""
        total, used, ours = (now - before for now, before in zip(self._now(), self.before, strict=True))
        return min(max(used - ours, 0.0) / total, 1.0) if total >= at_least_s * (psutil.cpu_count() or 1) else None


def _family_s(pid: int) -> float:
    """CPU time of a running process and of all that it started."""
    try:
        leader = psutil.Process(pid)
        family = [leader, *leader.children(recursive=True)]
        return sum(sum(process.cpu_times()[:4]) for process in family)
    except psutil.Error:  # ended meanwhile
        return 0.0


LOOK_S = 0.2  # between two looks: the system counts in hundredths of a second


class ThreadLimit:
    """While other processes take cores, no more threads than there are cores left.

    Threads that share a parallel loop wait for the slowest. One that has to wait for its core holds all of them up in every loop:
    beside one spinning process two threads were 4 to 6 times slower on two cores, and one thread 1.8 times."""

    def __init__(self, num_threads: int) -> None:
        self.wanted = num_threads
        self.was_lowered = False
        self._others = OthersTime()
        self._looked_s = 0.0

    def look(self, now_s: float) -> None:
        """After each step; most return at once."""
        if self._looked_s <= now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        taken = self._others.frac(at_least_s=LOOK_S / 2)
        if taken is not None:
            self._others = OthersTime()
            self._lower_to(taken)

    def wait_and_look(self) -> None:
        """Before anything runs: what others take is then all that is taken."""
        self._lower_to(psutil.cpu_percent(interval=LOOK_S) / 100)

    def _lower_to(self, taken: float) -> None:
        import torch

        cores = psutil.cpu_count() or 1
        left = max(1, min(self.wanted, int(cores * (1 - taken) + 0.4)))
        self.was_lowered |= left < self.wanted
        if left != torch.get_num_threads():
            torch.set_num_threads(left)
