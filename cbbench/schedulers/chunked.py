"""Chunked prefill under a token budget. See it: `cbbench run workloads/long-prompt.yaml --scheduler continuous,chunked`."""

from __future__ import annotations

from pydantic import Field

from cbbench.plan import Plan, Room
from cbbench.schedulers.base import Scheduler
from cbbench.strategy import StrictOptions


class Chunked(Scheduler):
    """Every step computes at most `max_num_batched_tokens` tokens: first one for each decode, then chunks of prompts.

    A long prompt is computed over several steps, so decoding sequences do not wait for the whole prompt. Memory for the
    whole prompt is reserved before its first chunk runs, so a later chunk of the same prompt never fails for lack of
    memory. An older request that grows can still preempt it. Only the last chunk of a prompt gives an output token.
    Source: Agrawal et al., Sarathi-Serve (OSDI 2024), section 4.2, stall-free batching.

    Cost: the first token of a long prompt comes later; each chunk reads the keys of the earlier chunks again.
    Use when: long prompts arrive while other requests decode, and the gap between tokens matters.
    """

    class Options(StrictOptions):
        max_num_batched_tokens: int = Field(256, ge=1, description="most new tokens per step, decodes and chunks together")

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
