"""What carries a plan out: the real model, or nothing at all under a virtual clock.

The engine knows only `Executor`. Both kinds lay the plan out with the same attention, so positions and padding are
counted alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cbbench.attention.base import Attention, ForwardPass
from cbbench.clock import Clock, VirtualClock
from cbbench.kvcache.base import KVCache
from cbbench.plan import Plan
from cbbench.request import UNKNOWN, Sequence

if TYPE_CHECKING:
    from cbbench.model.model import Model


@dataclass(slots=True)
class StepResult:
    """What a step gave: the next token of each sequence that sampled, the passes it took, the time inside them."""

    tokens: list[tuple[Sequence, int]]
    passes: list[ForwardPass]
    model_s: float


class Executor(Protocol):
    max_positions: int | None  # positions the model has; None: no limit

    def step(self, plan: Plan, clock: Clock) -> StepResult: ...

    def said_eos(self, sequence: Sequence) -> bool:
        """Whether the newest output token is an end-of-sequence token."""
        ...


class ModelExecutor:
    """Runs each pass of the layout through the model, which calls the attention back in every layer."""

    def __init__(self, model: Model, attention: Attention, cache: KVCache, num_graphs: int = 0) -> None:
        """`num_graphs`: decode steps of so many rows are captured as CUDA graphs, where the attention's state allows."""
        self.model = model
        self.attention = attention
        self.cache = cache
        self.max_positions = model.max_positions
        cache.allocate(model.dtype, model.device)
        self.forward = model.forward
        if num_graphs:
            from cbbench.model.graphs import DecodeGraphs

            self.forward = DecodeGraphs(model, attention, cache, num_graphs).forward

    def said_eos(self, sequence: Sequence) -> bool:
        return sequence.output_ids[-1] in self.model.eos_ids

    def step(self, plan: Plan, clock: Clock) -> StepResult:
        tokens: list[tuple[Sequence, int]] = []
        model_s = 0.0
        passes = self.attention.lay_out(plan)
        for forward_pass in passes:
            kv = self.cache.view(forward_pass.rows)
            self.attention.prepare(forward_pass, kv, self.model.device)
            started_s = clock.now()
            sampled = self.forward(forward_pass, kv, self.attention)
            model_s += clock.now() - started_s
            tokens += zip((row.sequence for row in forward_pass.rows if row.samples), sampled, strict=True)
        return StepResult(tokens, passes, model_s)


class VirtualExecutor:
    """No tensors: a step costs `step_s` and `position_s` for each position computed, the tokens are the recorded ones
    (UNKNOWN where none are), and the end comes where the recording ended."""

    max_positions: int | None = None

    def __init__(self, attention: Attention, cache: KVCache, step_s: float, position_s: float) -> None:
        self.attention = attention
        self.cache = cache
        self.step_s = step_s
        self.position_s = position_s

    def said_eos(self, sequence: Sequence) -> bool:
        return len(sequence.output_ids) == len(sequence.request.output_ids or ())

    def step(self, plan: Plan, clock: Clock) -> StepResult:
        assert isinstance(clock, VirtualClock)
        passes = self.attention.lay_out(plan)
        for forward_pass in passes:
            for num_tokens in self.cache.copies(forward_pass.rows, self.attention.reads("cpu")):
                self.cache.count_copy(num_tokens, self.cache.spec.num_layers)
        model_s = self.step_s + self.position_s * sum(p.num_positions for p in passes)
        clock.wait_until(clock.now() + model_s)
        tokens = [(row.sequence, self._token(row.sequence)) for row in plan.live if row.samples]
        return StepResult(tokens, passes, model_s)

    @staticmethod
    def _token(sequence: Sequence) -> int:
        recorded = sequence.request.output_ids or ()
        return recorded[len(sequence.output_ids)] if len(sequence.output_ids) < len(recorded) else UNKNOWN
