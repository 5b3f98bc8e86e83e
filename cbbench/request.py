"""A request is what was asked; a sequence is its life in the engine."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

UNKNOWN = -1  # a token that was counted, but whose id nobody tells: it cannot be verified, and is like no other


@dataclass(frozen=True, slots=True)
class Request:
    """One line of a workload. `arrival_s` counts from the start of the run."""

    id: str
    prompt_ids: abc.Sequence[int]  # a tuple, or made from a recipe on the first look
    max_new_tokens: int
    arrival_s: float = 0.0
    ignore_eos: bool = False
    output_ids: tuple[int, ...] | None = None  # the recorded reference, plain greedy generation
    prompt: str | None = None
    meta: dict[str, Any] | None = None
    after: str | None = None  # closed loop: comes `think_s` after that request has ended; arrival_s does not count
    think_s: float = 0.0

    @property
    def max_kv_tokens(self) -> int:
        """Positions whose keys and values may be needed: the last token is never fed back."""
        return len(self.prompt_ids) + self.max_new_tokens - 1


@runtime_checkable
class HasContent(Protocol):
    """A prompt that can say what stands at some positions without making the ids."""

    def content(self, start: int, stop: int) -> abc.Hashable: ...


def refusal(request: Request, max_positions: int | None) -> str | None:
    """Why no engine could ever run it, with both numbers; `max_positions`: of the model, None without a limit."""
    if not request.prompt_ids:
        return "the prompt has no tokens"
    if request.max_new_tokens < 1:
        return f"asks for {request.max_new_tokens} new tokens"
    if max_positions is not None and request.max_kv_tokens > max_positions:
        return f"needs {request.max_kv_tokens} positions, the model has {max_positions}"
    return None


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    REFUSED = "refused"  # could never run: too long, empty
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way. Preemption sets `num_computed` to 0 and the state back to WAITING."""

    request: Request
    index: int  # order of submission; the age that preemption respects
    arrival_s: float = field(init=False)  # the request's own, or in a closed loop the moment it became due
    state: State = State.WAITING
    output_ids: list[int] = field(default_factory=list)
    num_computed: int = 0  # tokens whose keys and values are in the cache
    reason: str | None = None  # why it ended: eos, length, or the text of a refusal
    first_scheduled_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)  # when each output token was known
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0  # at its start, found in the cache and not computed

    def __post_init__(self) -> None:
        self.arrival_s = self.request.arrival_s

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_tokens(self) -> int:
        """All known tokens: prompt and output. `num_tokens - num_computed` of them still need a forward pass."""
        return len(self.request.prompt_ids) + len(self.output_ids)

    @property
    def is_over(self) -> bool:
        return self.state in (State.FINISHED, State.REFUSED, State.CANCELLED)

    def tokens(self, start: int, stop: int) -> abc.Sequence[int]:
        """Token ids at positions start to stop, over prompt and output."""
        num_prompt = len(self.request.prompt_ids)
        if start >= num_prompt:
            return self.output_ids[start - num_prompt : stop - num_prompt]
        if stop <= num_prompt:
            return self.request.prompt_ids[start:stop]
        return [*self.request.prompt_ids[start:], *self.output_ids[: stop - num_prompt]]

    def content(self, start: int, stop: int) -> abc.Hashable | None:
        """Equal exactly for equal tokens at positions start to stop; None where one is not known. Prompts that are known by a
        recipe answer without making their token ids."""
        prompt, num_prompt = self.request.prompt_ids, len(self.request.prompt_ids)
        if stop > num_prompt and UNKNOWN in self.output_ids[max(start - num_prompt, 0) : stop - num_prompt]:
            return None
        if stop <= num_prompt and isinstance(prompt, HasContent):
            return prompt.content(start, stop)
        return tuple(self.tokens(start, stop))
