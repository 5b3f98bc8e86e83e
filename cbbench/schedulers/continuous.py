"""Iteration-level scheduling. See it: `cbbench run workloads/tutorial.yaml --scheduler static,continuous`."""

from __future__ import annotations

from cbbench.plan import Plan, Room
from cbbench.schedulers.base import Scheduler


class Continuous(Scheduler):
    """After every step finished sequences leave and waiting ones take their slots; a prompt is computed whole.

    Source: Yu et al., Orca (OSDI 2022), section 3.1, iteration-level scheduling.

    Cost: a step that admits a long prompt makes every running sequence wait for it.
    Use when: outputs differ in length and throughput matters more than an even token rhythm.
    """

    def plan(self, now_s: float, room: Room) -> Plan:
        self.grow(room)
        self.admit(room)
        return Plan([self.rest_of(sequence) for sequence in self.running])
