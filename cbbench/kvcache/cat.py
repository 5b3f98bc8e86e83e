"""Growth by torch.cat, as Hugging Face's DynamicCache does. See it: `cbbench run workloads/mixed.yaml --kv cat,paged`."""

from __future__ import annotations

import torch

from cbbench.errors import CacheError
from cbbench.kvcache.base import KVCache, KVSpec, KVView
from cbbench.plan import Row
from cbbench.request import Sequence
from cbbench.strategy import StrictOptions


class Cat(KVCache):
    """Each sequence has tensors of exactly its length, per layer; every step copies them into longer ones.

        step n     A | k0 k1 k2 |
        step n+1   A | k0 k1 k2 | -> | k0 k1 k2 k3 |     both exist during the copy

    Cost: every step copies the keys and values of all running sequences; the old and the new copy of a layer exist together.
    Use when: you need the baseline that most tutorials start from.
    """

    def __init__(self, spec: KVSpec, budget_tokens: int, longest_tokens: int, options: StrictOptions) -> None:
        super().__init__(spec, budget_tokens, longest_tokens, options)
        self.reserved: dict[int, int] = {}  # sequence index -> tokens
        self.free = budget_tokens
        self.tensors: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}  # sequence index -> by layer

    def refusal(self, sequence: Sequence) -> str | None:
        if sequence.request.max_kv_tokens <= self.budget_tokens:
            return None
        return f"needs {sequence.request.max_kv_tokens} tokens, the cache has {self.budget_tokens}"

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        more = num_tokens - self.reserved.get(sequence.index, 0)
        if more > self.free:
            return False
        if more > 0:
            self.written.setdefault(sequence.index, 0)
            self.reserved[sequence.index] = num_tokens
            self.free -= more
        return True

    def release(self, sequence: Sequence) -> None:
        if sequence.index not in self.reserved:
            raise CacheError(f"sequence {sequence.index} holds no tensors: freed twice?")
        self.free += self.reserved.pop(sequence.index)
        self.tensors.pop(sequence.index, None)
        del self.written[sequence.index]

    def reserved_tokens(self) -> dict[int, int]:
        return dict(self.reserved)

    def free_tokens(self) -> int:
        return self.free

    def allocate(self, dtype: torch.dtype, device: torch.device) -> None:
        nothing = torch.empty((0, self.spec.num_kv_heads, self.spec.head_dim), dtype=dtype, device=device)
        self.empty = [(nothing, nothing)] * self.spec.num_layers

    def copies(self, rows: list[Row], form: str) -> list[int]:
        return [*(row.start for row in rows if not row.is_held), *super().copies(rows, form)]

    def view(self, rows: list[Row]) -> KVView:
        return CatView(self, rows)


class CatView(KVView):
    cache: Cat

    def write(self, layer: int, keys_TKD: torch.Tensor, values_TKD: torch.Tensor) -> None:
        sizes = [row.num_new for row in self.rows]
        for row, keys, values in zip(self.rows, keys_TKD.split(sizes), values_TKD.split(sizes), strict=True):
            if row.is_held:
                continue
            layers = self.cache.tensors.setdefault(row.sequence.index, list(self.cache.empty))
            old_keys, old_values = layers[layer]
            layers[layer] = (torch.cat([old_keys, keys]), torch.cat([old_values, values]))
            self.cache.count_copy(row.start)

    def ragged(self, layer: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [self.cache.tensors[row.sequence.index][layer] for row in self.rows]
