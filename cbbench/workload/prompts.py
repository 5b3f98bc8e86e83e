"""Prompts that a workload gives by length: token ids from a stable hash, made when they are needed.

Public traces carry lengths and block ids, never text. A row's prompt is a run of blocks; a block's tokens depend on
(seed, namespace, scope, block id) and nothing else, so any process and any subset of the rows gets the same tokens, and
equal leading blocks give equal leading tokens: what could be shared in the trace can be shared here.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from pydantic import Field

from cbbench.strict import Strict

FIRST_TOKENS = 1 << 14  # distinct first tokens that `first_code` can tell apart
WORDS = np.arange(1 << 15)  # stands in for a vocabulary where there is no model


class PromptRecipe(Strict):
    """`prompts:` of a workload."""

    seed: int = Field(0, ge=0)
    namespace: str = Field("", description="whose block ids these are: equal ids of another file are other tokens")
    block_tokens: int | None = Field(None, ge=1, description="tokens of each of a row's `blocks`; the last one takes the rest")


@dataclass(frozen=True)
class TokenSource:
    """`ordinary_ids` are the ids that a prompt may hold: no special tokens."""

    recipe: PromptRecipe
    ordinary_ids: np.ndarray[Any, np.dtype[np.int64]]

    def block(self, scope: str, block: int | str, num_tokens: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The block's first tokens. Shorter calls give a prefix of longer ones (SHAKE-128 is a stream)."""
        raw = hashlib.shake_128(_name(self.recipe, scope, block)).digest(4 * num_tokens)
        words = np.frombuffer(raw, "<u4").astype(np.uint64)
        words[:1] &= np.uint64(0xFFFFFFFF << 18 & 0xFFFFFFFF)  # see first_code
        ids: np.ndarray[Any, np.dtype[np.int64]] = self.ordinary_ids[words * np.uint64(len(self.ordinary_ids)) >> np.uint64(32)]
        return ids


def first_code(recipe: PromptRecipe, scope: str, block: int) -> int:
    """Decides the block's first token: with 2**14 ordinary ids or more, blocks of different codes begin differently."""
    return int.from_bytes(hashlib.shake_128(_name(recipe, scope, block)).digest(4), "little") >> 18


def _name(recipe: PromptRecipe, scope: str, block: int | str) -> bytes:
    return json.dumps([recipe.seed, recipe.namespace, scope, block]).encode()


def block_sizes(num_tokens: int, num_blocks: int, block_tokens: int) -> list[int]:
    """Tokens of each block of a prompt; the last one takes the rest, whatever that is."""
    whole = num_blocks - 1
    return [block_tokens] * whole + [num_tokens - block_tokens * whole]


class HashedPrompt(Sequence[int]):
    """Token ids known by their recipe; `len` costs nothing, the ids are made on the first look and kept.

    Without blocks the whole prompt is one, named by the request's id, and nothing is shared.
    """

    __slots__ = ("_blocks", "_ids", "_length", "_scope", "_source")

    def __init__(self, source: TokenSource, length: int, name: str, blocks: Sequence[int] | None = None, scope: str = "") -> None:
        self._source = source
        self._length = length
        self._blocks = array("q", blocks) if blocks else name
        self._scope = scope
        self._ids: tuple[int, ...] | None = None

    @property
    def recipe(self) -> list[Any]:
        """All that decides the ids, beside the vocabulary."""
        recipe = self._source.recipe
        blocks = self._blocks if isinstance(self._blocks, str) else list(self._blocks)
        return [recipe.seed, recipe.namespace, self._scope, recipe.block_tokens, blocks, self._length]

    @property
    def blocks(self) -> list[tuple[tuple[str, int], int]]:
        """(scope, id) and tokens of each block; none where nothing can be shared."""
        if isinstance(self._blocks, str):
            return []
        return [((self._scope, block), size) for block, size in zip(self._blocks, self._sizes(), strict=True)]

    @property
    def ids(self) -> tuple[int, ...]:
        if self._ids is None:
            blocks: Sequence[int | str] = [self._blocks] if isinstance(self._blocks, str) else self._blocks
            parts = [self._source.block(self._scope, block, size) for block, size in zip(blocks, self._sizes(), strict=True)]
            self._ids = tuple(np.concatenate(parts).tolist())
        return self._ids

    def content(self, start: int, stop: int) -> tuple[tuple[str, int | str, int, int], ...]:
        """The parts of blocks at these positions: (scope, block, from, to). Equal parts are equal tokens."""
        if isinstance(self._blocks, str):
            return ((self._scope, self._blocks, start, stop),)
        size, last = self._source.recipe.block_tokens or self._length, len(self._blocks) - 1
        pieces = []
        while start < stop:
            place = min(start // size, last)
            begin = place * size
            end = stop if place == last else min(stop, begin + size)
            pieces.append((self._scope, self._blocks[place], start - begin, end - begin))
            start = end
        return tuple(pieces)

    def _sizes(self) -> list[int]:
        if isinstance(self._blocks, str):
            return [self._length]
        return block_sizes(self._length, len(self._blocks), self._source.recipe.block_tokens or self._length)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        return self.ids[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)
