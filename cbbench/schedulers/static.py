"""Request-level batching, the baseline. See it: `cbbench run workloads/tutorial.yaml --scheduler static,continuous`."""

from __future__ import annotations

from pydantic import Field

from cbbench.plan import Plan, Room
from cbbench.request import Sequence
from cbbench.schedulers.base import Scheduler
from cbbench.strategy import StrictOptions


class Static(Scheduler):
    """Starts up to `max_num_seqs` waiting requests as one batch; no other request starts until all of them have ended.

    A finished sequence stays in the batch as a held row and keeps its memory, as in a rectangular batch. This is the
    waste that continuous batching removes. If memory runs out, the memory of finished sequences is freed before an
    unfinished sequence is preempted.

    Cost: slots are idle until the longest output ends; requests that arrive later wait for the whole batch.
    Use when: you need the baseline, or all outputs have the same length.
    """

    class Options(StrictOptions):
        max_wait_s: float = Field(0.0, ge=0, description="how long an incomplete batch waits for more requests")

    options: Options

    def __init__(self, max_num_seqs: int, options: Options) -> None:
        super().__init__(max_num_seqs, options)
        self.batch_size = 0

    @property
    def num_slots(self) -> int:
        return self.batch_size

    def plan(self, now_s: float, room: Room) -> Plan:
        if not self.running:
            wake_s = self.waiting[0].arrival_s + self.options.max_wait_s if self.waiting else now_s
            if len(self.waiting) < self.max_num_seqs and now_s < wake_s:
                return Plan(wake_s=wake_s)
            self.admit(room)
            self.batch_size = len(self.running)
        self.grow(room)
        return Plan([self.rest_of(sequence) for sequence in self.running])

    def give_way(self, room: Room) -> None:
        held = [sequence for sequence in self.running if sequence.is_over]
        if held:
            self.running.remove(held[-1])
            room.release(held[-1])
        else:
            super().give_way(room)

    def finish(self, sequence: Sequence, room: Room) -> None:
        if all(s.is_over for s in self.running):
            for held in self.running:
                room.release(held)
            self.running = []

    def cancel(self, sequence: Sequence, room: Room) -> None:
        super().cancel(sequence, room)
        self.finish(sequence, room)
