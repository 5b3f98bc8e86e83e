"""Prompts given as text made into token ids, turn by turn, on their way into a workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from cbbench.importers.base import TraceRow
from cbbench.workload.prompts import PromptRecipe, TokenSource
from cbbench.workload.rows import Vocabulary, as_text


@dataclass
class TextPrompts:
    """Fills `prompt_ids`, `prompt_tokens` and `output_tokens` of rows in file order.

    A turn that continues another is fed that turn's prompt, its answer and then its own text. Where the file has no
    answer, hashed tokens of its length stand in: what the model would say is not known before it has said it.
    """

    vocabulary: Callable[[], Vocabulary]  # asked for only when a row has text
    recipe: PromptRecipe
    output_tokens: int | None = None  # for rows that say none
    lengths_only: bool = False  # keep no text, only how long it is
    dropped: Counter[str] = field(default_factory=Counter)
    keep_history: bool = False  # for turns that continue
    _history: dict[str, list[int]] = field(default_factory=dict)  # key -> prompt and answer

    def fill(self, row: TraceRow) -> str | None:
        """Why the row cannot be replayed; None when it can. Raises ValueError where a text is no prompt for this model."""
        answer = None
        if row.prompt is not None or row.messages is not None or row.prompt_ids is not None:
            told, row.prompt_ids = row.prompt_tokens, self._ids(row)
            row.prompt_tokens = told if told and self.lengths_only else len(row.prompt_ids)
        if row.answer is not None:
            answer = self._encode(row.answer)
        if row.output_tokens is None:
            row.output_tokens = len(answer) if answer is not None else self.output_tokens
        if row.output_tokens is None:
            return "no output length (--output-tokens gives one)"
        if self.keep_history and row.key is not None and row.prompt_ids is not None:
            self._history[row.key] = row.prompt_ids + (answer if answer is not None else self._stand_in(row.key, row.output_tokens))
        if self.lengths_only:
            row.prompt = row.messages = row.prompt_ids = None
        if not row.prompt_tokens:
            return "no prompt tokens"
        return None if row.output_tokens else "no output tokens"

    def _ids(self, row: TraceRow) -> list[int]:
        ids = row.prompt_ids
        if ids is None:
            if row.messages is not None:
                row.prompt, row.messages = as_text(row.messages, self.vocabulary()), None
            ids = self._encode(row.prompt or "")
        size = self.vocabulary().size
        if size is not None and max(ids, default=0) >= size:
            raise ValueError(f"token id {max(ids)} is outside the model's vocabulary of {size}")
        if row.continues and row.parent in self._history:
            row.prompt = None  # the text is only the end of what is fed
            return self._history[row.parent] + ids
        return ids

    def _encode(self, text: str) -> list[int]:
        encode = self.vocabulary().encode
        if encode is None:
            raise ValueError("has text, and the model has no tokenizer")
        return encode(text)

    def _stand_in(self, key: str, num_tokens: int) -> list[int]:
        source = TokenSource(self.recipe, self.vocabulary().ordinary_ids)
        ids: list[int] = source.block("answer", key, num_tokens).tolist()
        return ids


@dataclass
class TurnLengths:
    """Turns of lengths alone that continue another: its prompt, its answer, then what is new. Only the whole blocks of
    the turn before stay shared, as in a cache of such blocks."""

    block_tokens: int | None
    _known: dict[str, tuple[int, int, list[int]]] = field(default_factory=dict)  # key -> prompt, output, blocks

    def lengthen(self, row: TraceRow) -> None:
        if row.prompt_tokens is None or row.prompt is not None or row.messages is not None or row.prompt_ids is not None:
            return
        if row.continues and row.parent in self._known:
            prompt_tokens, output_tokens, blocks = self._known[row.parent]
            row.prompt_tokens += prompt_tokens + output_tokens
            if self.block_tokens and row.blocks is not None:
                row.blocks, row.has_tail = blocks[: prompt_tokens // self.block_tokens], True
        if row.key is not None:
            self._known[row.key] = (row.prompt_tokens, row.output_tokens or 0, list(row.blocks or ()))
