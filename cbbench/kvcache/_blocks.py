"""Memory in blocks: a pool, and for each sequence a table of the blocks that it holds. Who gets which block is the subclass's."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from cbbench.kvcache._pool import Pool, PoolView
from cbbench.kvcache.base import EntryTable, KVCache, KVSpec, KVView, Pages
from cbbench.plan import Row
from cbbench.request import Sequence
from cbbench.strategy import StrictOptions


class BlockOptions(StrictOptions):
    block_size: int = Field(16, ge=1, description="tokens per block")


class BlockCache(KVCache):
    """A subclass takes blocks in `reserve` and gives them back in `release`; it keeps `tables` and `num_held`."""

    options: BlockOptions

    def __init__(self, spec: KVSpec, budget_tokens: int, longest_tokens: int, options: BlockOptions) -> None:
        super().__init__(spec, budget_tokens, longest_tokens, options)
        self.num_blocks = budget_tokens // options.block_size
        self.free_blocks = list(range(self.num_blocks))[::-1]  # a stack: the block freed last is still in the CPU's cache
        self.tables: dict[int, np.ndarray] = {}  # sequence index -> block ids, as many as it may ever need
        self.num_held: dict[int, int] = {}  # sequence index -> blocks held, the filled part of its table

    @classmethod
    def unit_tokens(cls, options: BlockOptions) -> int:
        return options.block_size

    def refusal(self, sequence: Sequence) -> str | None:
        needed = self.blocks_for(sequence.request.max_kv_tokens)
        if needed <= self.num_blocks:
            return None
        return f"needs {needed} blocks of {self.options.block_size} tokens, the cache has {self.num_blocks}"

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.options.block_size)

    def new_table(self, sequence: Sequence) -> np.ndarray:
        return np.zeros(self.blocks_for(sequence.request.max_kv_tokens), np.int64)

    def reserved_tokens(self) -> dict[int, int]:
        return {index: held * self.options.block_size for index, held in self.num_held.items()}

    def capacity_tokens(self) -> int:
        return self.num_blocks * self.options.block_size

    def allocate(self, dtype: torch.dtype, device: torch.device) -> None:
        self.pool = Pool(self.spec, self.capacity_tokens(), dtype, device)

    def copies(self, rows: list[Row], form: str) -> list[int]:
        if form == "ragged" and max(self.blocks_for(row.stop) for row in rows) > 1:
            form = "packed"  # rows of several blocks are gathered
        in_place = form == "pool" or (form == "pages" and self.options.block_size % 256 == 0)  # flash kernels' pages
        return [] if in_place else super().copies(rows, form)

    def view(self, rows: list[Row]) -> KVView:
        most = max(self.blocks_for(row.stop) for row in rows)
        block_table_RM = np.zeros((len(rows), most), np.int64)
        for table_row, row in zip(block_table_RM, rows, strict=True):
            held = min(self.num_held[row.sequence.index], most)
            table_row[:held] = self.tables[row.sequence.index][:held]
        return BlockView(self, self.pool, rows, block_table_RM, self.options.block_size)


class BlockView(PoolView):
    def __init__(self, cache: KVCache, pool: Pool, rows: list[Row], block_table_RM: np.ndarray, block_size: int) -> None:
        super().__init__(cache, pool, rows, EntryTable(block_table_RM * block_size, block_size))
        self._block_table_RM = block_table_RM

    @property
    def pages(self) -> Pages:
        return Pages(self._block_table_RM.astype(np.int32), self.entries.run)
