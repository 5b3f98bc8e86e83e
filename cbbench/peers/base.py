"""The peer contract: the same requests, lengths and end-of-sequence rule, and back come tokens and when they were known.

A peer runs the model as its users have it. What it cannot report stays None and is null in the tables, never a guess.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cbbench.clock import RealClock
from cbbench.request import Request
from cbbench.strategy import Strategy, StrictOptions


class HfModel(Protocol):
    """What a peer may use of a loaded model."""

    hf: Any  # the transformers model itself
    eos_ids: frozenset[int]

    @property
    def device(self) -> Any: ...


@dataclass(frozen=True)
class Setting:
    """What every peer is held to."""

    max_num_seqs: int
    dtype: str
    device: str
    num_threads: int
    model: Callable[[], HfModel]  # loaded on the first call, as it comes: nothing fused or packed
    model_digest: str = ""
    eos_ids: frozenset[int] = frozenset()
    bytes_per_token: int = 0  # of keys and values


UNKNOWN = -1  # a token that was counted, but whose id the peer does not tell: it cannot be verified


@dataclass
class Answer:
    """One request's outcome. Times count from the start of the run."""

    index: int
    output_ids: list[int] = field(default_factory=list)
    token_times_s: list[float] | None = None  # when each token was known, where the peer tells
    first_scheduled_s: float | None = None
    ended_s: float | None = None
    failed: str | None = None


class Peer(Strategy, ABC):
    """Another system. The docstring has three parts: what it does; `Cost:` what is not comparable; `Use when:`.

    `cannot_run` says how to get it where it is not installed."""

    version: str | None = None  # of another system, known after `start`
    is_in_process = True  # in this one, so that the memory of its run can be told from that of its model
    notes: tuple[str, ...] = ()  # after a run: what a reader of its row has to know

    def __init__(self, setting: Setting, options: StrictOptions) -> None:
        self.setting = setting
        self.options = options

    def start(self, requests: list[Request]) -> None:
        """Whatever is done once before the clock runs: loading, compiling."""

    @abstractmethod
    def run(self, requests: list[Request], clock: RealClock) -> list[Answer]:
        """All requests, none before its arrival_s. Returns one answer each, in any order."""

    def forget_prompts(self) -> None:
        """Called before each measured run: what a warm-up left of its prompts in a cache goes, as an arm starts with an empty one."""

    def processes(self) -> list[int]:
        """Process ids of what it started, whose CPU time is its own."""
        return []

    def stop(self) -> None:
        """Gives back what `start` took."""


def until_end(ids: list[int], request: Request, eos_ids: frozenset[int]) -> list[int]:
    """What of a generation belongs to the request: up to its length, or its end-of-sequence token where that counts."""
    ids = ids[: request.max_new_tokens]
    ends = [] if request.ignore_eos else [place for place, token in enumerate(ids) if token in eos_ids]
    return ids[: ends[0] + 1] if ends else ids


def shortfall(answer: Answer, request: Request, eos_ids: frozenset[int]) -> str | None:
    """Why an answer does not count: it is whole with as many tokens as were asked for, or up to an end of sequence where that counts.
    Of tokens without ids only the number is known."""
    number, asked = len(answer.output_ids), request.max_new_tokens
    if number > asked:
        return f"{number} tokens, {asked} were asked for"
    may_end = not request.ignore_eos and number > 0 and ({*answer.output_ids[-1:]} & {*eos_ids, UNKNOWN})
    return None if number == asked or may_end else f"it ended after {number} of {asked} tokens"


def describe_answer(answer: Answer, request: Request) -> dict[str, Any]:
    """As a line of requests.jsonl."""
    return {
        "id": request.id, "index": answer.index, "state": "failed" if answer.failed else "finished",
        "reason": answer.failed or ("length" if len(answer.output_ids) == request.max_new_tokens else "eos"),
        "prompt_tokens": len(request.prompt_ids), "max_new_tokens": request.max_new_tokens, "arrival_s": request.arrival_s,
        "submitted_s": None, "first_scheduled_s": answer.first_scheduled_s, "token_times_s": answer.token_times_s,
        "ended_s": answer.ended_s, "output_ids": answer.output_ids, "num_preemptions": None, "recomputed_tokens": None,
    }  # fmt: skip
