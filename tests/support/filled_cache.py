"""Sequences that already lie in a cache, with random keys and values that the test knows. For tests without a model."""

from __future__ import annotations

from typing import Any

import torch

from cbbench import plugins
from cbbench.kvcache.base import KVCache, KVSpec
from cbbench.plan import Row
from cbbench.request import Request, Sequence

CACHE_ARMS: list[tuple[str, dict[str, Any]]] = [
    ("cat", {}),
    *[("paged", {"block_size": size}) for size in (1, 4, 16, 64)],
    *[("prefix", {"block_size": size}) for size in (1, 4, 16, 64)],
    *[("preallocated", {"reserve": "exact", "placement": place}) for place in ("first-fit", "buddy")],
]


class FilledCache:
    """A poisoned cache, its sequences, and beside it what was written: `keys[index][layer]`, [tokens, K, D]."""

    def __init__(self, kv: str, options: dict[str, Any], spec: KVSpec, budget: int = 1024, seed: int = 0) -> None:
        cls: Any = plugins.find("kv", kv)
        self.spec = spec
        self.cache: KVCache = cls(spec, budget, 64, cls.Options(**options))
        self.cache.allocate(torch.float32, torch.device("cpu"))
        pool: Any = getattr(self.cache, "pool", None)
        if pool is not None:
            pool.keys.fill_(torch.nan)
            pool.values.fill_(torch.nan)
        self.generator = torch.Generator().manual_seed(seed)
        self.keys: dict[int, list[torch.Tensor]] = {}
        self.values: dict[int, list[torch.Tensor]] = {}

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def sequence(self, num_prompt: int, num_output: int = 0, max_new_tokens: int = 8) -> Sequence:
        index = len(self.keys)
        made = Sequence(Request(f"r{index}", (3 + index,) * num_prompt, max_new_tokens), index)
        made.output_ids = [5] * num_output
        nothing = torch.empty(0, self.spec.num_kv_heads, self.spec.head_dim)
        self.keys[index], self.values[index] = [nothing] * self.spec.num_layers, [nothing] * self.spec.num_layers
        return made

    def row(self, sequence: Sequence, num_new: int) -> Row:
        return Row(sequence, sequence.num_computed, num_new)

    def write(self, rows: list[Row]) -> Any:
        """Writes random keys and values for the new tokens of these rows, as a pass does; returns its view."""
        assert all(self.cache.reserve(row.sequence, max(row.stop, 1)) for row in rows)
        view = self.cache.view(rows)
        shape = (sum(row.num_new for row in rows), self.spec.num_kv_heads, self.spec.head_dim)
        for layer in range(self.spec.num_layers):
            keys, values = self.random(*shape), self.random(*shape)
            view.write(layer, keys, values)
            sizes = [row.num_new for row in rows]
            for row, new_keys, new_values in zip(rows, keys.split(sizes), values.split(sizes), strict=True):
                index = row.sequence.index
                self.keys[index][layer] = torch.cat([self.keys[index][layer], new_keys])
                self.values[index][layer] = torch.cat([self.values[index][layer], new_values])
        for row in rows:
            if row.num_new:
                self.cache.advance(row)
                row.sequence.num_computed = row.stop
        self.cache.check()
        return view

    def fill(self, *lengths: int) -> list[Sequence]:
        """New sequences with that many tokens computed each, written a few at a time and in turns."""
        made = [self.sequence(length) for length in lengths]
        while any(s.num_computed < s.num_prompt for s in made):
            self.write([self.row(s, min(5, s.num_prompt - s.num_computed)) for s in made if s.num_computed < s.num_prompt])
        return made
