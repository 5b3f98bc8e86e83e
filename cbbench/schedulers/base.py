"""The scheduler contract: who runs in the next step, and with how many new tokens each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from cbbench.plan import Plan, Room, Row
from cbbench.request import Sequence
from cbbench.strategy import Strategy, StrictOptions


class Scheduler(Strategy, ABC):
    """Holds every unfinished sequence in exactly one of `waiting` (a queue) and `running` (oldest first).

    A subclass implements `plan`. Memory is reserved while the plan is made, so a plan can always be carried out.
    """

    def __init__(self, max_num_seqs: int, options: StrictOptions) -> None:
        self.max_num_seqs = max_num_seqs
        self.options = options
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @abstractmethod
    def plan(self, now_s: float, room: Room) -> Plan:
        """The next step. Empty only when nothing can run before an arrival or `Plan.wake_s`."""

    @property
    def num_slots(self) -> int:
        """Places in the batch, the denominator of slot_idle_frac."""
        return self.max_num_seqs

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """A new arrival, behind all others."""
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence, room: Room) -> None:
        """A running sequence produced its last token: it leaves, its memory with it."""
        self.running.remove(sequence)
        room.release(sequence)

    def cancel(self, sequence: Sequence, room: Room) -> None:
        """A sequence that nobody wants any more leaves from wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
            room.release(sequence)
        else:
            self.waiting.remove(sequence)

    # Parts that several schedulers share.

    def grow(self, room: Room) -> None:
        """Room for every running sequence's known tokens; where it lacks, one gives way (vLLM, section 4.5).

        The oldest is served first and never evicted by a younger one, so some sequence always makes progress.
        """
        position = 0
        while position < len(self.running):
            sequence = self.running[position]
            if sequence.is_over or room.reserve(sequence, sequence.num_tokens):
                position += 1
            else:
                self.give_way(room)
                position = 0  # reserving again what is reserved changes nothing

    def give_way(self, room: Room) -> None:
        """The newest goes back to the front of the queue, to resume by a prefill over prompt and output."""
        newest = self.running.pop()
        room.preempt(newest)
        self.waiting.appendleft(newest)

    def admit_one(self, room: Room) -> bool:
        """The head of the queue starts running if there is a slot and room for all its known tokens. Nobody
        overtakes: behind a request that does not fit yet, smaller ones wait, and their queue time shows it."""
        if not self.waiting or len(self.running) >= self.max_num_seqs:
            return False
        if not room.reserve(self.waiting[0], self.waiting[0].num_tokens):
            return False
        self.running.append(self.waiting.popleft())
        return True

    def admit(self, room: Room) -> None:
        """First come, first served, until the first that cannot start."""
        while self.admit_one(room):
            pass

    @staticmethod
    def rest_of(sequence: Sequence) -> Row:
        """A row over all tokens of a sequence not yet computed; an empty one for a sequence held after its end."""
        num_new = 0 if sequence.is_over else sequence.num_tokens - sequence.num_computed
        return Row(sequence, sequence.num_computed, num_new)
