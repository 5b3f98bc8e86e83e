"""What happened: one record a step, one a request. Everything in metrics.py is computed from these alone."""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cbbench.plan import Plan
from cbbench.request import Sequence

if TYPE_CHECKING:
    from cbbench.attention.base import ForwardPass


@dataclass(slots=True)
class StepRecord:
    """One step. Times count from the start of the run; `start_s` is the end of the step before or of a wait."""

    step: int
    start_s: float
    end_s: float
    model_s: float  # inside forward passes; the rest of end_s - start_s is host time
    slots: int  # places in the batch
    live: int  # unfinished sequences in them
    held: int  # finished ones in them (static)
    waiting: int  # requests in the queue after planning
    passes: list[list[Any]]  # [kind, positions, padded positions, key positions attended, of those masked]
    rows: list[tuple[int, int, int, int]]  # slot, sequence, start, new tokens
    kv: list[tuple[int, int, int]]  # sequence, tokens reserved, tokens written; for every resident sequence
    free_tokens: int
    external_tokens: int  # free, but in no hole that the next waiting request fits
    copied_bytes: int
    copied_tokens: int  # the same in tokens
    preempted: list[int]
    extra_tokens: int = 0  # entries that `kv` counts for more than one sequence, beyond the first
    shared_tokens: int = 0  # entries that more than one sequence reads, each once
    cached_tokens: int = 0  # free, but what stands there can still be found
    evicted_tokens: int = 0  # forgotten to make room, since the run began


@dataclass(slots=True)
class RequestRecord:
    """One request. `token_times_s` has the moment each output token was known."""

    id: str
    index: int
    state: str
    reason: str | None
    prompt_tokens: int
    max_new_tokens: int
    arrival_s: float  # when it was due
    submitted_s: float | None  # when the loop saw it; later than arrival_s by its lateness
    first_scheduled_s: float | None
    token_times_s: list[float]
    output_ids: list[int]
    num_preemptions: int
    recomputed_tokens: int
    cached_tokens: int | None  # found in the cache when it started, and not computed; None: the cache never looks
    ideal_cached_tokens: int | None  # what it would have found in memory without end

    @classmethod
    def of(cls, sequence: Sequence, submitted_s: float | None, ideal_cached_tokens: int | None = None) -> RequestRecord:
        request = sequence.request
        return cls(
            request.id, sequence.index, str(sequence.state), sequence.reason, len(request.prompt_ids),
            request.max_new_tokens, sequence.arrival_s, submitted_s, sequence.first_scheduled_s,
            sequence.token_times_s, sequence.output_ids, sequence.num_preemptions, sequence.recomputed_tokens,
            None if ideal_cached_tokens is None else sequence.cached_tokens, ideal_cached_tokens,
        )  # fmt: skip


@dataclass(slots=True)
class RunRecord:
    """All of one arm's round. `interrupted`: it did not end by itself."""

    steps: list[StepRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    interrupted: bool = False

    def step_lines(self) -> list[dict[str, Any]]:
        return [asdict(step) for step in self.steps]

    def request_lines(self) -> list[dict[str, Any]]:
        return [asdict(request) for request in self.requests]


class Slots:
    """Which place of the batch a sequence sits in: the lowest free one, kept until it leaves."""

    def __init__(self) -> None:
        self._taken: dict[int, int] = {}
        self._free: list[int] = []

    def seat(self, sequences: list[Sequence]) -> list[int]:
        """Places of the sequences now in the batch; whoever is missing has left."""
        here = {sequence.index for sequence in sequences}
        for index in [index for index in self._taken if index not in here]:
            heapq.heappush(self._free, self._taken.pop(index))
        for sequence in sequences:
            if sequence.index not in self._taken:
                self._taken[sequence.index] = heapq.heappop(self._free) if self._free else len(self._taken)
        return [self._taken[sequence.index] for sequence in sequences]


def describe_pass(forward_pass: ForwardPass) -> list[Any]:
    """A pass as it stands in a step record."""
    kind = forward_pass.kind
    positions = forward_pass.num_positions
    keys, masked = (forward_pass.keys_attended, forward_pass.keys_masked) if kind == "decode" else (0, 0)
    return [kind, positions, positions - forward_pass.num_tokens, keys, masked]


def describe_rows(plan: Plan, slot_of: dict[int, int]) -> list[tuple[int, int, int, int]]:
    """Tuples of numbers, which Python's garbage collector need not walk: a long run keeps millions of them."""
    return [(slot_of[row.sequence.index], row.sequence.index, row.start, row.num_new) for row in plan.rows]
