"""A contiguous region per request. See it: `cbbench run workloads/mixed.yaml --kv preallocated,paged`."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from cbbench.errors import CacheError
from cbbench.kvcache._arena import Buddy, FirstFit
from cbbench.kvcache._pool import Pool, PoolView, even_step
from cbbench.kvcache.base import EntryTable, KVCache, KVSpec, KVView
from cbbench.plan import Row
from cbbench.request import Sequence
from cbbench.strategy import StrictOptions


class Preallocated(KVCache):
    """At admission, a sequence reserves one contiguous region of memory with room for all tokens that it may ever have.

        arena    | A A A . . . . . | B B . . . . . . |  free  |     . reserved, not yet written

    The option `reserve` sets the size of a region. `max_len`: the length of the workload's longest request. `pow2`: the
    prompt, plus max_new_tokens rounded up to a power of two. `exact`: the most that the request can need, which is the prompt
    plus max_new_tokens - 1.
    Source: the baselines Orca (Max), (Pow2) and (Oracle) of Kwon et al., vLLM (SOSP 2023), section 6.1. Our `exact` knows
    max_new_tokens, but not where the model will stop.
    A region is set to zero when it is taken. Regions at equal distances form a rectangle, which `padded` reads in place.

    Cost: memory is reserved from the first step for tokens that come late or never; free gaps (holes) remain between regions.
    Use when: lengths are known and equal, or keys and values must be read without a copy.
    """

    class Options(StrictOptions):
        reserve: Literal["max_len", "pow2", "exact"] = Field("max_len", description="the size of a region")
        max_len: int | None = Field(None, ge=1, description="tokens per region with reserve=max_len; default: the longest request")
        placement: Literal["first-fit", "buddy"] = Field("first-fit", description="how a hole for a new region is chosen")

    options: Options

    def __init__(self, spec: KVSpec, budget_tokens: int, longest_tokens: int, options: Options) -> None:
        super().__init__(spec, budget_tokens, longest_tokens, options)
        self.arena: FirstFit | Buddy = Buddy(budget_tokens) if options.placement == "buddy" else FirstFit(budget_tokens)
        self.regions: dict[int, tuple[int, int]] = {}  # sequence index -> start, size
        self.pool: Pool | None = None
        self.largest = max((hole for _, hole in self.arena.holes), default=0)

    def region_tokens(self, sequence: Sequence) -> int:
        """Entries of the region that this sequence takes."""
        request = sequence.request
        size = {
            "max_len": max(self.options.max_len or self.longest_tokens, 1),
            "pow2": len(request.prompt_ids) + (1 << (request.max_new_tokens - 1).bit_length()),
            "exact": request.max_kv_tokens,
        }[self.options.reserve]
        return self.arena.round_up(size)

    def refusal(self, sequence: Sequence) -> str | None:
        region, needed = self.region_tokens(sequence), sequence.request.max_kv_tokens
        if region > self.largest:
            return f"needs a region of {region} tokens, the arena has {self.largest}"
        if needed > region:
            return f"needs {needed} tokens, a region has {region} (max_len)"
        return None

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        if sequence.index in self.regions:
            return num_tokens <= self.regions[sequence.index][1]
        size = self.region_tokens(sequence)
        start = self.arena.place(size) if num_tokens <= size else None
        if start is None:
            return False
        self.regions[sequence.index] = (start, size)
        self.written[sequence.index] = 0
        if self.pool is not None:
            self.pool.clear(start, size)
        return True

    def release(self, sequence: Sequence) -> None:
        if sequence.index not in self.regions:
            raise CacheError(f"sequence {sequence.index} holds no region: freed twice?")
        self.arena.free(*self.regions.pop(sequence.index))
        del self.written[sequence.index]

    def reserved_tokens(self) -> dict[int, int]:
        return {index: size for index, (_, size) in self.regions.items()}

    def free_tokens(self) -> int:
        return sum(hole for _, hole in self.arena.holes)

    def external_tokens(self, head: Sequence) -> int:
        free, size = self.free_tokens(), self.region_tokens(head)
        return free if free >= size > max((hole for _, hole in self.arena.holes), default=0) else 0

    def check(self) -> None:
        super().check()
        end = 0
        for start, size in sorted([*self.regions.values(), *self.arena.holes]):
            if start != end:
                raise CacheError(f"regions and holes overlap or leave a gap at entry {end}")
            end = start + size

    def allocate(self, dtype: torch.dtype, device: torch.device) -> None:
        self.pool = Pool(self.spec, self.budget_tokens, dtype, device)

    def copies(self, rows: list[Row], form: str) -> list[int]:
        starts, sizes = zip(*(self.regions[row.sequence.index] for row in rows), strict=True)
        is_rectangle = even_step(np.array(starts), max(row.stop for row in rows), min(sizes)) is not None
        return [] if form == "pool" or (form == "padded" and is_rectangle) else super().copies(rows, form)

    def view(self, rows: list[Row]) -> KVView:
        assert self.pool is not None
        starts, sizes = zip(*(self.regions[row.sequence.index] for row in rows), strict=True)
        entries = EntryTable(np.array(starts, np.int64)[:, None], self.budget_tokens)
        return PoolView(self, self.pool, rows, entries, num_clear=min(sizes))
