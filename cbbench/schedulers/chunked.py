"""Chunked prefill under a token budget. See it: `cbbench run workloads/long-prompt.yaml --scheduler continuous,chunked`."""

from __future__ import annotations

from pydantic import Field

from cbbench.plan import Plan, Room
from cbbench.schedulers.base import Scheduler
from cbbench.strategy import StrictOptions


class Chunked(Scheduler):
    """Every step computes at most `max_num_batched_tokens`: one for each decode first, the rest for prompt chunks.

    A long prompt is spread over steps, so running decodes never stall behind it. The whole prompt has room before
    its first chunk runs, so a started prompt is not restarted for want of memory by its own growth. A chunk that does
    not finish its prompt samples nothing.
    Source: Agrawal et al., Sarathi-Serve (OSDI 2024), section 4.2, stall-free batching.

    Cost: a prompt's first token comes later; earlier keys are read again for each chunk.
    Use when: prompts are long, arrive while others decode, and the gap between tokens matters.
    """

    class Options(StrictOptions):
        max_num_batched_tokens: int = Field(256, ge=1, description="new tokens a step, decodes and chunks together")

    options: Options

    def plan(self, now_s: float, room: Room) -> Plan:
        self.grow(room)
        rows = [self.rest_of(sequence) for sequence in self.running]
        rows.sort(key=lambda row: row.num_new > 1)  # decodes, then prompts; stable, so the oldest first in each
        budget = self.options.max_num_batched_tokens
        for row in rows:
            row.num_new = min(row.num_new, budget)
            budget -= row.num_new
        while budget and self.admit_one(room):
            row = self.rest_of(self.running[-1])
            row.num_new = min(row.num_new, budget)
            budget -= row.num_new
            rows.append(row)
        return Plan([row for row in rows if row.num_new])
