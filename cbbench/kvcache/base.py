"""The KV cache contract: who may write where, what that reserves, and the forms in which attention can read it.

Accounting needs no tensors, so a virtual run counts exactly what a real one would. Tensors appear with `allocate`.

An entry is the place of one token's keys and values in memory.

Letters: T packed new tokens, S entries of a pool, R rows (sequences) of a pass, L longest key length of a pass, M runs or
blocks a row, K kv heads, D head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cbbench.errors import CacheError
from cbbench.plan import Row
from cbbench.request import Sequence
from cbbench.strategy import Strategy, StrictOptions


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The shape of one token's keys and values."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    itemsize: int

    @property
    def bytes_per_token(self) -> int:
        """layers x 2 x kv_heads x head_dim x bytes. Qwen3-0.6B in bf16: 28 x 2 x 8 x 128 x 2 = 114,688."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * self.itemsize


@dataclass(frozen=True, slots=True)
class Sharing:
    """What several sequences, or nobody, read, in entries."""

    extra_tokens: int = 0  # readers beyond the first: what the sum over sequences counts too much
    shared_tokens: int = 0  # entries with two readers or more, each once
    cached_tokens: int = 0  # free, but what stands there can still be found
    evicted_tokens: int = 0  # forgotten to make room, since the cache was made


@dataclass(frozen=True, slots=True)
class EntryTable:
    """Where the positions of each row lie: position p of row r in entry `first_RM[r, p // run] + p % run`."""

    first_RM: np.ndarray  # int64
    run: int  # entries that lie one behind another


@dataclass(frozen=True, slots=True)
class Pages:
    """A pool in blocks: position p of row r in block `block_table_RM[r, p // block_size]`; a block the same for keys and values."""

    block_table_RM: np.ndarray  # int32
    block_size: int  # entries


class KVView(ABC):
    """What one forward pass may do with the cache: write its new tokens, then read each row's keys 0 to `lengths[r]`.

    `ragged` is the one form a cache must give; `padded`, `packed` and `pool` are copied from it unless the cache knows better.
    Every byte moved to make a form is added to `cache.copied_bytes`. Memory never written is never read.
    """

    def __init__(self, cache: KVCache, rows: list[Row]) -> None:
        self.cache = cache
        self.rows = rows
        self.lengths = [row.stop for row in rows]

    @abstractmethod
    def write(self, layer: int, keys_TKD: torch.Tensor, values_TKD: torch.Tensor) -> None:
        """Stores the new tokens of all rows, packed in row order; held rows have none."""

    @property
    def write_entries(self) -> torch.Tensor | None:
        """The entries into which `write` puts the new tokens, [T]: the very tensor that it reads; None where there is none."""
        return None

    @abstractmethod
    def ragged(self, layer: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each row its keys and values, [length, K, D] each."""

    def padded(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [R, L, K, D]: position p of a row in column p, finite values behind its length."""
        pairs = self.ragged(layer)
        keys, values = (torch.nn.utils.rnn.pad_sequence(list(part), batch_first=True) for part in zip(*pairs, strict=True))
        self.cache.count_copy(keys.shape[0] * keys.shape[1])
        return keys, values

    def packed(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all rows one behind another, [sum of lengths, K, D]; `cu_seqlens` has the borders."""
        pairs = self.ragged(layer)
        self.cache.count_copy(sum(self.lengths))
        keys, values = (torch.cat(part) for part in zip(*pairs, strict=True))
        return keys, values

    @property
    def cu_seqlens(self) -> np.ndarray:
        """Where each row begins in the packed form, [R + 1], int32."""
        return np.cumsum([0, *self.lengths], dtype=np.int32)

    def pool(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Entries [S, K, D] each for keys and values; `entries` says which are whose."""
        return self.packed(layer)

    @property
    def entries(self) -> EntryTable:
        """For kernels that take each key from where it lies."""
        return EntryTable(self.cu_seqlens[:-1, None].astype(np.int64), max(self.lengths))

    @property
    def pages(self) -> Pages | None:
        """For kernels that read whole blocks of `pool`; None where memory is not in blocks."""
        return None


class KVCache(Strategy, ABC):
    """Holds up to `budget_tokens` tokens, an entry each. A sequence is resident from its first `reserve` to its `release`."""

    def __init__(self, spec: KVSpec, budget_tokens: int, longest_tokens: int, options: StrictOptions) -> None:
        """`longest_tokens`: the workload's longest request, for caches that reserve by it."""
        self.spec = spec
        self.budget_tokens = budget_tokens
        self.longest_tokens = longest_tokens
        self.options = options
        self.written: dict[int, int] = {}  # sequence index -> positions whose keys and values are stored
        self.ideal_tokens: dict[int, int] = {}  # sequence index -> tokens that endless memory would have known; empty: it never looks
        self.copied_bytes = 0
        self.copied_layer_tokens = 0  # the same in tokens, each counted in every layer
        self.peak_extra_bytes = 0  # memory alive for a moment beside what is reserved: the largest copy

    @classmethod
    def unit_tokens(cls, options: Any) -> int:
        """Entries that are given and taken together."""
        return 1

    # Room: counts only.

    @abstractmethod
    def refusal(self, sequence: Sequence) -> str | None:
        """Why the cache could never hold this request, with the needed and the available amount; None if it could.

        The one rule of admission: `reserve` of an empty cache succeeds exactly when this is None."""

    @abstractmethod
    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Room for positions 0 to `num_tokens`, or False with nothing changed. Asking again for less is free.

        A sequence becomes resident with the entry that a subclass makes in `self.written`: 0, or how many of its first
        positions are stored already."""

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """The sequence's memory is free again. Raises CacheError if it has none."""

    @abstractmethod
    def reserved_tokens(self) -> dict[int, int]:
        """Entries reserved for each resident sequence, by its index."""

    @abstractmethod
    def free_tokens(self) -> int:
        """Entries reserved for nobody."""

    def sharing(self) -> Sharing:
        """Nothing is shared and nothing found again, unless a subclass says so."""
        return Sharing()

    def external_tokens(self, head: Sequence) -> int:
        """Free entries that `head`, the next waiting request, could use if only they lay together."""
        return 0

    def resident(self) -> list[tuple[int, int, int]]:
        """Index, reserved entries and written ones of each resident sequence."""
        return [(index, reserved, self.written[index]) for index, reserved in self.reserved_tokens().items()]

    def advance(self, row: Row) -> None:
        """Notes that a row's new positions are stored now: each once a life, all inside the reservation."""
        if self.written[row.sequence.index] != row.start:
            raise CacheError(f"sequence {row.sequence.index}: writes at {row.start}, {self.written[row.sequence.index]} stored")
        self.written[row.sequence.index] = row.stop

    def check(self) -> None:
        """Raises CacheError when an invariant is broken; subclasses add theirs."""
        reserved = self.reserved_tokens()
        if reserved.keys() != self.written.keys():
            raise CacheError(f"resident {sorted(self.written)} but reserved for {sorted(reserved)}")
        for index, written in self.written.items():
            if written > reserved[index]:
                raise CacheError(f"sequence {index}: {written} positions stored in {reserved[index]} entries")
        held = sum(reserved.values()) - self.sharing().extra_tokens
        if held + self.free_tokens() != self.capacity_tokens():
            raise CacheError(f"{held} reserved + {self.free_tokens()} free != {self.capacity_tokens()}")

    def capacity_tokens(self) -> int:
        """Entries that can be reserved at most: the budget less what the strategy's own granularity loses."""
        return self.budget_tokens

    # Tensors.

    @abstractmethod
    def allocate(self, dtype: torch.dtype, device: torch.device) -> None:
        """Makes the tensors. Before it, the cache only counts."""

    @abstractmethod
    def view(self, rows: list[Row]) -> KVView:
        """Access for one forward pass over these rows, whose room is already reserved."""

    def count_copy(self, num_tokens: int, num_layers: int = 1) -> None:
        """Adds the bytes of one layer's keys and values of `num_tokens` tokens, or of so many layers, one after another."""
        copied_bytes = num_tokens * self.spec.bytes_per_token // self.spec.num_layers
        self.copied_bytes += copied_bytes * num_layers
        self.copied_layer_tokens += num_tokens * num_layers
        self.peak_extra_bytes = max(self.peak_extra_bytes, copied_bytes)

    def copies(self, rows: list[Row], form: str) -> list[int]:
        """Tokens of each copy that one layer makes in a pass over these rows: to write what is new, and to be read in `form`
        (Attention.reads). What a virtual run counts; a test holds it against what a real one copies."""
        lengths = [row.stop for row in rows]
        return [] if form == "ragged" else [len(rows) * max(lengths) if form == "padded" else sum(lengths)]
