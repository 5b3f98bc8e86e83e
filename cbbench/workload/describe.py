"""`cbbench workload describe`: what a workload asks for, before anything runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cbbench.request import Request
from cbbench.workload.prompts import HashedPrompt
from cbbench.workload.sharing import Blocks, PrefixHits
from cbbench.workload.statistics import profile

BLOCK_TOKENS = 16  # explicit token ids are compared in whole blocks of this many


@dataclass(frozen=True)
class Kv:
    """A model, as far as key-value memory goes."""

    model: str
    bytes_per_token: int
    max_positions: int | None


def describe(requests: list[Request], kvs: list[Kv], max_num_seqs: int, budget: dict[str, int] | None) -> dict[str, Any]:
    """Counts, lengths, arrivals, sharing, sessions, and the memory that keys and values need on each model.

    `budget`: model -> tokens of a memory budget.
    """
    hits = PrefixHits()
    for request in requests:
        hits.add(_blocks(request))
    # A closed loop has no times before it has run.
    times = None if any(r.after is not None for r in requests) else sorted(r.arrival_s for r in requests)
    prompt, output = [len(r.prompt_ids) for r in requests], [r.max_new_tokens for r in requests]
    slots = np.sort([max(r.max_kv_tokens, 0) for r in requests])
    return {
        **profile(prompt, output, times, hits.hit_tokens), "turns_after_another": sum(r.after is not None for r in requests),
        "recorded_references": sum(r.output_ids is not None for r in requests),
        "kv": [_memory(slots, kv, max_num_seqs, (budget or {}).get(kv.model)) for kv in kvs],
    }  # fmt: skip


def _memory(slots: np.ndarray[Any, Any], kv: Kv, max_num_seqs: int, budget_tokens: int | None) -> dict[str, Any]:
    """At most: each request at its full length, as many at once as said."""
    row: dict[str, Any] = {
        "model": kv.model, "bytes_per_token": kv.bytes_per_token, "max_positions": kv.max_positions,
        "longest_request_bytes": int(slots[-1]) * kv.bytes_per_token,
        "longest_batch_bytes": int(slots[-max_num_seqs:].sum()) * kv.bytes_per_token, "batch": max_num_seqs,
        "all_at_once_bytes": int(slots.sum()) * kv.bytes_per_token,
        "fits_positions_frac": float((slots <= kv.max_positions).mean()) if kv.max_positions else None,
    }  # fmt: skip
    if budget_tokens is not None:
        row |= {"budget_tokens": budget_tokens, "fits_budget_frac": float((slots <= budget_tokens).mean())}
    return row


def _blocks(request: Request) -> Blocks:
    ids = request.prompt_ids
    return ids.blocks if isinstance(ids, HashedPrompt) else _chained(ids)


def _chained(ids: Any) -> Iterator[tuple[tuple[str, int], int]]:
    """Blocks named by a hash of everything up to their end."""
    chain = b""
    for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        chain = hashlib.blake2b(chain + np.asarray(ids[start : start + BLOCK_TOKENS], np.int64).tobytes(), digest_size=8).digest()
        yield ("", int.from_bytes(chain, "little")), BLOCK_TOKENS
