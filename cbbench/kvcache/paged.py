"""Paged keys and values. See it: `cbbench run workloads/mixed.yaml --kv preallocated,paged`."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from cbbench.errors import CacheError
from cbbench.kvcache._pool import Pool, PoolView
from cbbench.kvcache.base import EntryTable, KVCache, KVSpec, KVView, Pages
from cbbench.plan import Row
from cbbench.request import Sequence
from cbbench.strategy import StrictOptions


class Paged(KVCache):
    """Memory is divided into blocks of `block_size` tokens; a block table per sequence lists the blocks that it has taken.

        pool     | A0 | B0 | A1 | .. | B1 | .. |     a block is taken when the sequence reaches it
        tables   A: 0 2    B: 1 4

    Source: Kwon et al., vLLM (SOSP 2023), section 4.

    Cost: the end of each sequence's last block is not used; attention must follow the block table or copy the keys together.
    Use when: many sequences of unknown length share limited memory.
    """

    class Options(StrictOptions):
        block_size: int = Field(16, ge=1, description="tokens per block")

    options: Options

    def __init__(self, spec: KVSpec, budget_tokens: int, longest_tokens: int, options: Options) -> None:
        super().__init__(spec, budget_tokens, longest_tokens, options)
        self.num_blocks = budget_tokens // options.block_size
        self.free_blocks = list(range(self.num_blocks))[::-1]  # a stack: the block freed last is still in the CPU's cache
        self.tables: dict[int, np.ndarray] = {}  # sequence index -> block ids, as many as it may ever need
        self.num_held: dict[int, int] = {}  # sequence index -> blocks taken, the filled part of its table

    @classmethod
    def unit_tokens(cls, options: Options) -> int:
        return options.block_size

    def refusal(self, sequence: Sequence) -> str | None:
        needed = self.blocks_for(sequence.request.max_kv_tokens)
        if needed <= self.num_blocks:
            return None
        return f"needs {needed} blocks of {self.options.block_size} tokens, the cache has {self.num_blocks}"

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.options.block_size)

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        held = self.num_held.get(sequence.index, 0)
        wanted = self.blocks_for(num_tokens)
        if wanted - held > len(self.free_blocks):
            return False
        if sequence.index not in self.tables:
            self.tables[sequence.index] = np.zeros(self.blocks_for(sequence.request.max_kv_tokens), np.int64)
            self.written[sequence.index] = 0
        for position in range(held, wanted):
            self.tables[sequence.index][position] = self.free_blocks.pop()
        self.num_held[sequence.index] = max(held, wanted)
        return True

    def release(self, sequence: Sequence) -> None:
        if sequence.index not in self.tables:
            raise CacheError(f"sequence {sequence.index} holds no blocks: freed twice?")
        table = self.tables.pop(sequence.index)
        self.free_blocks += table[: self.num_held.pop(sequence.index)][::-1].tolist()
        del self.written[sequence.index]

    def reserved_tokens(self) -> dict[int, int]:
        return {index: held * self.options.block_size for index, held in self.num_held.items()}

    def free_tokens(self) -> int:
        return len(self.free_blocks) * self.options.block_size

    def capacity_tokens(self) -> int:
        return self.num_blocks * self.options.block_size

    def check(self) -> None:
        super().check()
        owned = [int(block) for index, table in self.tables.items() for block in table[: self.num_held[index]]]
        if sorted(owned + self.free_blocks) != list(range(self.num_blocks)):
            raise CacheError("a block has two owners, or none and is not free")
        for index, written in self.written.items():
            if self.blocks_for(written) > self.num_held[index]:
                raise CacheError(f"sequence {index}: {written} positions in {self.num_held[index]} blocks")

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
        return PagedView(self, self.pool, rows, block_table_RM, self.options.block_size)


class PagedView(PoolView):
    def __init__(self, cache: KVCache, pool: Pool, rows: list[Row], block_table_RM: np.ndarray, block_size: int) -> None:
        super().__init__(cache, pool, rows, EntryTable(block_table_RM * block_size, block_size))
        self._block_table_RM = block_table_RM

    @property
    def pages(self) -> Pages:
        return Pages(self._block_table_RM.astype(np.int32), self.entries.run)
