"""The CPU kernel behind `varlen`: one parallel loop over (tile of a row's queries, kv head), each key from where it lies.

Online softmax over tiles of keys, so scratch memory does not grow with context. All query heads of a kv head go over
its keys together. While one tile of keys is worked on the next is asked for: pages lie anywhere, and the CPU does not guess
where. What a query gets does not depend on the rows beside it, bit by bit. Source: Dao, FlashAttention-2 (2023), algorithm 1.

Letters as in base.py, and S entries of the pool, M runs a row.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from cbbench.attention._varlen_tiles import KEYS, LINES, LOWEST, MOST_VECTORS, UNSEEN, mix, score, soften
from cbbench.attention.base import ForwardPass, LayerCall
from cbbench.kernels.compiling import inlined, kernel, share_threads
from cbbench.kernels.vectors import LANES, address, prefetch
from cbbench.kvcache.base import KVView

QUERY_TILE = 8  # queries of one row that share a pass over its keys
KEY_TILE = 16  # so few that the next tile fits the fastest cache beside them
MIXED_AT_ONCE = 8  # values between two looks ahead
CACHE_LINE = 16  # floats
ALL_KEYS = 1 << 40  # a window wider than any context


class CpuKernel:
    def __init__(self, forward_pass: ForwardPass, kv: KVView, device: torch.device) -> None:
        entries = kv.entries
        self.first_RM, self.run = np.ascontiguousarray(entries.first_RM), entries.run
        tiles = []  # first packed query, number of queries, row, position of the first
        packed = 0
        for index, row in enumerate(forward_pass.rows):
            for first in range(0, row.num_new, QUERY_TILE):
                tiles.append((packed + first, min(QUERY_TILE, row.num_new - first), index, row.start + first))
            packed += row.num_new
        self.num_tokens = packed
        self.num_entries = _entries_read(self.first_RM, self.run, kv.lengths)
        shares = share_threads()
        tiles.sort(key=lambda tile: tile[1] * (tile[1] + tile[3]))  # by its products
        self.tiles = np.array([tile for share in range(shares) for tile in tiles[share::shares]], np.int64)  # numba splits into runs

    def copied(self, into: Any, longest_tokens: int) -> None:
        """No CUDA graph runs on a CPU."""

    def attend(self, call: LayerCall, queries_THD: torch.Tensor, kv: KVView) -> torch.Tensor:
        keys_SKD, values_SKD = kv.pool(call.layer)
        self._check(queries_THD, keys_SKD, values_SKD)
        out_THD = torch.empty(queries_THD.shape)
        _attend(
            queries_THD.contiguous().numpy(), keys_SKD.numpy(), values_SKD.numpy(), self.first_RM, self.run,
            self.tiles, np.float32(call.scale), call.window or ALL_KEYS, out_THD.numpy(),
        )  # fmt: skip
        return out_THD

    def _check(self, q_THD: torch.Tensor, keys_SKD: torch.Tensor, values_SKD: torch.Tensor) -> None:
        """The kernel follows addresses: what does not fit would be read beside. Raises ValueError."""
        (num_tokens, num_heads, dim), (num_entries, num_kv_heads, key_dim) = q_THD.shape, keys_SKD.shape
        fits = num_tokens == self.num_tokens and dim == key_dim and num_heads % num_kv_heads == 0 and keys_SKD.shape == values_SKD.shape
        if not fits or num_entries < self.num_entries:
            raise ValueError(
                f"varlen's cpu kernel was given queries {[*q_THD.shape]}, keys {[*keys_SKD.shape]} and values {[*values_SKD.shape]} "
                f"for {self.num_tokens} tokens over {self.num_entries} entries"
            )
        if not (keys_SKD.is_contiguous() and values_SKD.is_contiguous()):
            raise ValueError("varlen's cpu kernel takes keys and values without gaps")


def _entries_read(first_RM: np.ndarray, run: int, lengths: list[int]) -> int:
    """Entries that a pool must have at least: one behind the last that a row reads."""
    begins = np.arange(first_RM.shape[1]) * run
    left_RM = np.minimum(np.array(lengths)[:, None] - begins, run)  # tokens of each run
    return int(np.where(left_RM > 0, first_RM + left_RM, 0).max())


def compile_kernel() -> None:
    """One query over one key, so that no measured step waits for the compiler."""
    one = np.zeros((1, 1, LANES), np.float32)
    tiles = np.array([(0, 1, 0, 0)], np.int64)
    _attend(one, one, one, np.zeros((1, 1), np.int64), 1, tiles, np.float32(1), ALL_KEYS, one.copy())


@kernel()
def _attend(q, keys, values, first_RM, run, tiles, scale, window, out):  # type: ignore[no-untyped-def]
    for task in numba.prange(len(tiles) * keys.shape[1]):
        _attend_tile(task, q, keys, values, first_RM, run, tiles, scale, window, out)


@inlined()
def _attend_tile(task, q, keys, values, first_RM, run, tiles, scale, window, out):  # type: ignore[no-untyped-def]
    """One tile of queries and one kv head, over all keys that they see."""
    group, num_kv_heads, dim = q.shape[1] // keys.shape[1], keys.shape[1], keys.shape[2]
    token = num_kv_heads * dim  # floats from a token to the next
    vectors = -(-dim // LANES)
    width = vectors * LANES
    ragged = width > dim  # heads that are no whole vectors are worked on in copies that are
    (first, num_queries, row, position), kv_head = tiles[task // num_kv_heads], task % num_kv_heads
    (_, num_after, row_after, after), head_after = tiles[(task + 1) // num_kv_heads % len(tiles)], (task + 1) % num_kv_heads
    stop, first_after, stop_after = position + num_queries, _first_tile(after, window), after + num_after

    num_lines = num_queries * group  # (query, head of the group) pairs
    bundles = -(-num_lines // LINES)
    queries, mixed = np.zeros((bundles * LINES, width), np.float32), np.zeros((bundles * LINES, width), np.float32)
    for line in range(num_lines):
        for d in range(dim):
            queries[line, d] = q[first + line // group, kv_head * group + line % group, d] * scale
    peak, total = np.full((bundles, LANES), np.float32(LOWEST)), np.zeros((bundles, LANES), np.float32)
    fade, weights = np.empty(LANES, np.float32), np.empty((KEY_TILE, LINES), np.float32)
    places, ahead = np.empty(KEY_TILE, np.int64), np.empty(KEY_TILE, np.int64)
    copies = np.zeros((2, KEY_TILE if ragged else 0, width), np.float32)

    for begin in range(_first_tile(position, window), stop, KEY_TILE):
        num_keys = _find(first_RM[row], run, begin, stop, token, kv_head * dim, places)
        if begin + KEY_TILE < stop:
            num_ahead = _find(first_RM[row], run, begin + KEY_TILE, stop, token, kv_head * dim, ahead)
        else:
            num_ahead = _find(first_RM[row_after], run, first_after, stop_after, token, head_after * dim, ahead)
        if ragged:
            _copy(keys, values, places, num_keys, dim, copies)
        for bundle in range(bundles):
            line = bundle * LINES
            num_asked = num_ahead if bundle == 0 else 0
            for j in range(0, num_keys, KEYS):
                _ask_for(keys, ahead, j, min(j + KEYS, num_asked), dim)
                some = address(copies, 0) if ragged else address(keys, 0)
                score(address(queries, line * width), width, some, address(places, j), vectors, address(weights, j * LINES))
            num_scored = -(-num_keys // KEYS) * KEYS
            for i in range(LINES):
                at = position + min(line + i, num_lines - 1) // group  # this query sees keys at - window + 1 to at
                _hide(weights[:num_scored, i], at - window + 1 - begin, at + 1 - begin)
            soften(address(weights, 0), num_scored // KEYS, address(peak, line * KEYS), address(total, line * KEYS), address(fade, 0))
            for i in range(LINES):
                for d in range(width):
                    mixed[line + i, d] *= fade[i]
            for j in range(0, num_keys, MIXED_AT_ONCE):
                _ask_for(values, ahead, j, min(j + MIXED_AT_ONCE, num_asked), dim)
                for v in range(0, vectors, MOST_VECTORS):
                    some = address(copies, KEY_TILE * width + v * LANES) if ragged else address(values, v * LANES)
                    mix(
                        address(weights, j * LINES), min(MIXED_AT_ONCE, num_keys - j), some, address(places, j),
                        min(MOST_VECTORS, vectors - v), address(mixed, line * width + v * LANES), width,
                    )  # fmt: skip
    for line in range(num_lines):
        whole = total[line // LINES, line % LINES :: LINES].sum()
        for d in range(dim):
            out[first + line // group, kv_head * group + line % group, d] = mixed[line, d] / whole


@inlined()
def _hide(scores, low, high):  # type: ignore[no-untyped-def]
    """Of the scores of one query, all but `low` to `high`."""
    for j in range(len(scores)):
        if j < low or j >= high:
            scores[j] = UNSEEN


@inlined()
def _first_tile(position, window):  # type: ignore[no-untyped-def]
    """Where the tiles of a query begin: for every query at the same places, so that its sums are the same too."""
    return max(0, position - window + 1) // KEY_TILE * KEY_TILE


@inlined()
def _find(table, run, start, stop, token, offset, places):  # type: ignore[no-untyped-def]
    """Where the keys from `start` on lie in the pool, in floats from its first: at most a tile, and how many. Filled up to
    whole KEYS with one of them."""
    num = min(KEY_TILE, stop - start)
    at, skip, j = start // run, start % run, 0
    while j < num:
        together = min(run - skip, num - j)
        for i in range(together):
            places[j + i] = (table[at] + skip + i) * token + offset
        at, skip, j = at + 1, 0, j + together
    places[num : -(-num // KEYS) * KEYS] = places[num - 1]
    return num


@inlined()
def _ask_for(states, places, start, stop, dim):  # type: ignore[no-untyped-def]
    for j in range(start, stop):
        for d in range(0, dim, CACHE_LINE):
            prefetch(address(states, places[j] + d))


@inlined()
def _copy(keys, values, places, num, dim, copies):  # type: ignore[no-untyped-def]
    """Moves a tile to where each head is filled up with zeros, and `places` with it."""
    for which, flat in enumerate((keys.reshape(-1), values.reshape(-1))):
        for j in range(num):
            copies[which, j, :dim] = flat[places[j] : places[j] + dim]
    for j in range(KEY_TILE):
        places[j] = j * copies.shape[2]
