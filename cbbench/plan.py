"""What a scheduler decides: the plan of one step, and the room it may ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from cbbench.request import Sequence


@dataclass(slots=True, eq=False)
class Row:
    """The share of one sequence in one step: positions `start` to `start + num_new` are computed.

    `num_new` 0 is a row held in the batch after its end (static): a rectangle still computes it, a packed layout
    skips it, nothing is written for it.
    """

    sequence: Sequence
    start: int
    num_new: int

    @property
    def stop(self) -> int:
        return self.start + self.num_new

    @property
    def is_held(self) -> bool:
        return self.num_new == 0

    @property
    def samples(self) -> bool:
        """A row that reaches the last known token yields the next one; a chunk in the middle of a prompt does not."""
        return self.num_new > 0 and self.stop == self.sequence.num_tokens

    @property
    def is_decode(self) -> bool:
        """One new token behind the prompt. Not "has output": a resumed sequence has output and is a prefill."""
        return self.num_new == 1 and self.start >= self.sequence.num_prompt


@dataclass(slots=True)
class Plan:
    """One step: its rows, or none and the moment to ask again."""

    rows: list[Row] = field(default_factory=list)
    wake_s: float | None = None  # an empty plan may say when time alone would change it

    @property
    def live(self) -> list[Row]:
        return [row for row in self.rows if row.num_new]


class Room(Protocol):
    """The cache as a scheduler may see it: a question whose yes is kept. Nothing here names blocks or tensors."""

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Could the cache hold `num_tokens` positions of this sequence? True means it now does."""
        ...

    def preempt(self, sequence: Sequence) -> None:
        """Takes a running sequence's memory away; all its known tokens will be computed again."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has left for good."""
        ...
