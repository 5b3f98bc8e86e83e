"""One tensor for all keys, one for all values, and a table that says whose entry is where."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from cbbench.kvcache.base import EntryTable, KVCache, KVSpec, KVView
from cbbench.plan import Row


class Pool:
    """Keys and values of all layers, [layers, S, K, D] each."""

    def __init__(self, spec: KVSpec, num_entries: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (spec.num_layers, num_entries, spec.num_kv_heads, spec.head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)

    def clear(self, start: int, num_entries: int) -> None:
        """Zeros, so that a view over more than was written reads finite values."""
        self.keys[:, start : start + num_entries] = 0
        self.values[:, start : start + num_entries] = 0


def even_step(first_R: np.ndarray, longest: int, num_clear: int) -> int | None:
    """Entries from one row's first to the next one's where `padded` can be a view, else None: see PoolView."""
    if longest > num_clear:
        return None
    steps = np.diff(first_R)
    if len(steps) and (steps[0] < 0 or (steps != steps[0]).any()):
        return None
    return int(steps[0]) if len(steps) else longest


class PoolView(KVView):
    """Rows of a pool. One run a row (contiguous memory) makes `ragged` a view; more make it a gather.

    `num_clear`: so many entries from a row's first hold finite values, for every row. Where that covers the longest row
    and the rows lie in even steps, they are a rectangle as they stand, and `padded` is a view too.
    """

    def __init__(self, cache: KVCache, pool: Pool, rows: list[Row], entries: EntryTable, num_clear: int = 0) -> None:
        super().__init__(cache, rows)
        self.memory = pool
        self.num_clear = num_clear
        self._entries = entries
        positions = np.concatenate([np.arange(row.start, row.stop) for row in rows])
        owners = np.repeat(np.arange(len(rows)), [row.num_new for row in rows])
        self.new_entries = self._to_device(self._find(owners, positions))

    @property
    def entries(self) -> EntryTable:
        return self._entries

    @property
    def write_entries(self) -> torch.Tensor:
        return self.new_entries

    def write(self, layer: int, keys_TKD: torch.Tensor, values_TKD: torch.Tensor) -> None:
        self.memory.keys[layer].index_copy_(0, self.new_entries, keys_TKD)
        self.memory.values[layer].index_copy_(0, self.new_entries, values_TKD)

    def pool(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.memory.keys[layer], self.memory.values[layer]

    def ragged(self, layer: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        keys, values = self.pool(layer)
        first_RM = self.entries.first_RM
        if first_RM.shape[1] == 1:
            spans = [slice(start, start + n) for start, n in zip(first_RM[:, 0].tolist(), self.lengths, strict=True)]
            return [(keys[span], values[span]) for span in spans]
        packed = self.packed(layer)
        keys_by_row, values_by_row = (part.split(self.lengths) for part in packed)
        return list(zip(keys_by_row, values_by_row, strict=True))

    def packed(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._gather(layer, self._packed_entries)

    def padded(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._even_step is not None:
            keys, values = (self._rectangle(part, self._even_step) for part in self.pool(layer))
            return keys, values
        keys, values = self._gather(layer, self._padded_entries)
        shape = (len(self.rows), max(self.lengths), *keys.shape[1:])
        return keys.view(shape), values.view(shape)

    def _gather(self, layer: int, entries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.cache.count_copy(len(entries))
        keys, values = self.pool(layer)
        return keys.index_select(0, entries), values.index_select(0, entries)

    @cached_property
    def _even_step(self) -> int | None:
        return even_step(self.entries.first_RM[:, 0], max(self.lengths), self.num_clear)

    def _rectangle(self, pool_SKD: torch.Tensor, step: int) -> torch.Tensor:
        """The rows as they stand in the pool, [R, L, K, D]."""
        shape = (len(self.rows), max(self.lengths), *pool_SKD.shape[1:])
        stride = pool_SKD.stride()
        offset = pool_SKD.storage_offset() + int(self.entries.first_RM[0, 0]) * stride[0]
        return pool_SKD.as_strided(shape, (step * stride[0], *stride), offset)

    @cached_property
    def _packed_entries(self) -> torch.Tensor:
        owners = np.repeat(np.arange(len(self.rows)), self.lengths)
        positions = np.arange(len(owners)) - np.repeat(self.cu_seqlens[:-1], self.lengths)
        return self._to_device(self._find(owners, positions))

    @cached_property
    def _padded_entries(self) -> torch.Tensor:
        """Behind a row's length its own first entry stands in, which has been written."""
        columns = np.arange(max(self.lengths))[None]
        positions = np.where(columns < np.array(self.lengths)[:, None], columns, 0)
        owners = np.arange(len(self.rows))[:, None]
        return self._to_device(self._find(owners, positions).reshape(-1))

    def _find(self, owners: np.ndarray, positions: np.ndarray) -> np.ndarray:
        run = self.entries.run
        entries: np.ndarray = self.entries.first_RM[owners, positions // run] + positions % run
        return entries

    def _to_device(self, entries: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(entries).to(self.memory.keys.device)
