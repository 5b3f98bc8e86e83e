"""Iteration-level scheduling. See it: `cbbench run workloads/tutorial.yaml --scheduler static,continuous`."""

from __future__ import annotations

from cbbench.plan import Plan, Room
from cbbench.schedulers.base import Scheduler


class Continuous(Scheduler):
    """After every step, finished sequences leave the batch and waiting ones take their slots.

    A prompt is computed in one step.

    Source: Yu et al., Orca (OSDI 2022), section 3.1, iteration-level scheduling.

    Cost: a step that computes a long prompt delays the next token of every running sequence.
    Use when: outputs differ in length, and throughput matters more than an even gap between tokens.
    """

    def plan(self, now_s: float, room: Room) -> Plan:
        self.grow(room)
        self.admit(room)
        return Plan([self.rest_of(sequence) for sequence in self.running])
