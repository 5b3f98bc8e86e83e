"""The lines of a workload's JSONL: what a request may say, checked, and made into requests with token ids."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from cbbench.errors import UserError
from cbbench.request import Request
from cbbench.strict import Strict
from cbbench.workload.jsonl import Lines
from cbbench.workload.prompts import WORDS, HashedPrompt, PromptRecipe, TokenSource
from cbbench.workload.yaml_source import explain

TokenIds = list[Annotated[int, Field(ge=0)]]
Message = dict[str, Any]


@checked(config=ConfigDict(**{**Strict.model_config, "frozen": False}), slots=True, kw_only=True)
class RequestRow:
    """One request. `prompt_ids` win over `prompt` or `messages`, which then only say what they spell; `prompt_tokens`
    stands for a prompt of that length made from hashed `blocks` (prompts.py). A million of these must fit in memory."""

    id: str = Field(min_length=1)
    prompt: str | None = None
    messages: list[Message] | None = None
    prompt_ids: TokenIds | None = None
    prompt_tokens: int | None = Field(default=None, ge=1)
    blocks: list[Annotated[int, Field(ge=0, lt=2**63)]] | None = Field(default=None, min_length=1)
    scope: str = ""  # block ids hold within it
    max_new_tokens: int = Field(ge=1)
    arrival_s: float = Field(default=0.0, ge=0)
    after: str | None = None  # closed loop: comes once that request has ended ...
    think_s: float = Field(default=0.0, ge=0)  # ... and this time has passed
    ignore_eos: bool = False
    meta: dict[str, Any] | None = None
    output_ids: TokenIds | None = None


_ROW = TypeAdapter(RequestRow)  # says what is wrong with what is no mapping


def _is_mapping(data: Any) -> bool:
    return isinstance(data, dict) and all(isinstance(key, str) for key in data)


@dataclass(frozen=True)
class Rows:
    """Checked rows, and where each stood."""

    rows: list[RequestRow]
    where: Callable[[int], str]  # index -> file:line

    def only(self, index: int) -> Rows:
        return Rows([self.rows[index]], lambda _: self.where(index))


def check_rows(lines: Lines, recipe: PromptRecipe) -> Rows:
    """Raises UserError at the first row that is wrong, whose id was given before, or that comes `after` no earlier one."""
    rows: list[RequestRow] = []
    numbers = array("q")
    seen: dict[str, int] = {}
    for number, data in lines:
        try:
            row = RequestRow(**data) if _is_mapping(data) else _ROW.validate_python(data)
        except ValidationError as error:
            raise explain(error, RequestRow, lambda _, number=number: lines.where(number)) from error  # type: ignore[misc]
        if problem := _problem(row, recipe):
            raise UserError(f"{lines.where(number)}: request {row.id!r} {problem}")
        if row.id in seen:
            raise UserError(f"{lines.where(number)}: id {row.id!r} was given before, at {lines.where(numbers[seen[row.id]])}")
        if row.after is not None and row.after not in seen:
            raise UserError(f"{lines.where(number)}: request {row.id!r} comes after {row.after!r}, which no earlier line has")
        if row.blocks is not None:
            row.blocks = array("q", row.blocks)  # type: ignore[assignment]  # an eighth of the memory
        seen[row.id] = len(rows)
        rows.append(row)
        numbers.append(number)
    return Rows(rows, lambda index: lines.where(numbers[index]))


def _problem(row: RequestRow, recipe: PromptRecipe) -> str | None:
    if row.prompt is None and row.messages is None and row.prompt_ids is None and row.prompt_tokens is None:
        return "has neither prompt, messages, prompt_ids nor prompt_tokens"
    if row.blocks is None:
        return None
    if row.prompt_tokens is None:
        return "has blocks, which go with prompt_tokens"
    if recipe.block_tokens is None:
        return "has blocks, and the workload says no `prompts: {block_tokens: N}`"
    if row.prompt_tokens <= recipe.block_tokens * (len(row.blocks) - 1):
        return f"has {len(row.blocks)} blocks of {recipe.block_tokens}, more than {row.prompt_tokens} prompt tokens need"
    return None


@dataclass(frozen=True)
class Vocabulary:
    """What makes prompts into token ids. Where a model has no tokenizer or no chat template these are None."""

    encode: Callable[[str], list[int]] | None = None
    chat: Callable[[list[Message]], str] | None = None  # messages -> the text that the model is to continue
    size: int | None = None
    ordinary_ids: np.ndarray[Any, np.dtype[np.int64]] = field(default_factory=lambda: WORDS)


def to_requests(rows: Rows, vocabulary: Vocabulary, recipe: PromptRecipe) -> list[Request]:
    """Requests with token ids.

    An empty prompt stays: the engine refuses that one request. A prompt that the model cannot read is an error.
    """
    source = TokenSource(recipe, vocabulary.ordinary_ids)
    requests = []
    for index, row in enumerate(rows.rows):
        try:
            text, ids = _prompt(row, vocabulary, source)
        except ValueError as error:
            raise UserError(f"{rows.where(index)}: request {row.id!r}{error}") from error
        output = None if row.output_ids is None else tuple(row.output_ids)
        requests.append(
            Request(row.id, ids, row.max_new_tokens, row.arrival_s, row.ignore_eos, output, text, row.meta, row.after, row.think_s)
        )
    return requests


def _prompt(row: RequestRow, vocabulary: Vocabulary, source: TokenSource) -> tuple[str | None, Sequence[int]]:
    """Text and token ids. Raises ValueError."""
    text = row.prompt
    if row.prompt_ids is None and row.prompt_tokens is not None:
        return text, HashedPrompt(source, row.prompt_tokens, row.id, row.blocks, row.scope)
    ids: Sequence[int] | None = row.prompt_ids
    if ids is None:
        if row.messages is not None:
            text = as_text(row.messages, vocabulary)
        if vocabulary.encode is None:
            raise ValueError(" has text but the model has no tokenizer; give prompt_ids")
        ids = vocabulary.encode(text or "")
    if vocabulary.size is not None and max(ids, default=0) >= vocabulary.size:
        raise ValueError(f": token id {max(ids)} is outside the model's vocabulary of {vocabulary.size}")
    return text, tuple(ids)


def as_text(messages: list[Message], vocabulary: Vocabulary) -> str:
    """The chat template applied. Raises ValueError."""
    if vocabulary.chat is None:
        raise ValueError(": messages need a chat template, the model has none; give prompt or prompt_ids")
    try:
        return vocabulary.chat(messages)
    except Exception as error:  # whatever a template raises on what it does not understand
        raise ValueError(f": messages do not fit the chat template: {' '.join(str(error).split())}") from error
