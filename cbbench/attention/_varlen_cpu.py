"""The CPU kernel behind `varlen`: one parallel loop over (tile of a row's queries, kv head), keys through the slot table.

Online softmax over tiles of keys, so scratch memory does not grow with context. All query heads of a kv head go over
its keys together. Source: Dao, FlashAttention-2 (2023), algorithm 1.

Letters as in base.py, and S slots, M blocks a row.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import torch

from cbbench.attention.base import ForwardPass, LayerCall
from cbbench.kvcache.base import KVView

QUERY_TILE = 8  # queries of one row that share a pass over its keys
KEY_TILE = 64


class CpuKernel:
    def __init__(self, forward_pass: ForwardPass, kv: KVView, device: torch.device) -> None:
        self.slot_table = np.ascontiguousarray(kv.slot_table)
        self.block_size = kv.block_size
        tiles = []  # first packed query, number of queries, row, position of the first
        packed = 0
        for index, row in enumerate(forward_pass.rows):
            for first in range(0, row.num_new, QUERY_TILE):
                tiles.append((packed + first, min(QUERY_TILE, row.num_new - first), index, row.start + first))
            packed += row.num_new
        tiles.sort(key=lambda tile: -tile[3])  # the long ones first, so that threads end together
        self.tiles = np.array(tiles, np.int64)
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))

    def attend(self, call: LayerCall, queries_THD: torch.Tensor, kv: KVView) -> torch.Tensor:
        keys_SKD, values_SKD = kv.blocks(call.layer)
        out_THD = torch.empty(queries_THD.shape)
        _attend(
            queries_THD.numpy(), keys_SKD.numpy(), values_SKD.numpy(), self.slot_table, self.block_size,
            self.tiles, np.float32(call.scale), call.window or np.iinfo(np.int64).max, out_THD.numpy(),
        )  # fmt: skip
        return out_THD


@numba.njit(parallel=True, fastmath=True, cache=True, boundscheck=False, nogil=True)
def _attend(q, keys, values, slot_table, block_size, tiles, scale, window, out):  # type: ignore[no-untyped-def]
    num_heads, dim = q.shape[1], q.shape[2]
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    for task in numba.prange(len(tiles) * num_kv_heads):
        tile, kv_head = task // num_kv_heads, task % num_kv_heads
        first, num_queries, row, position = tiles[tile]
        lines = num_queries * group  # (query, head of the group) pairs
        scores = np.empty((lines, KEY_TILE), np.float32)
        mixed = np.zeros((lines, dim), np.float32)
        top = np.full(lines, -1e30, np.float32)  # fastmath knows no infinity
        total = np.zeros(lines, np.float32)
        last = position + num_queries - 1
        for tile_start in range(max(0, position - window + 1), last + 1, KEY_TILE):
            tile_stop = min(tile_start + KEY_TILE, last + 1)
            for p in range(tile_start, tile_stop):
                slot = slot_table[row, p // block_size] + p % block_size
                for line in range(lines):
                    query = line // group
                    dot = np.float32(0)
                    for d in range(dim):
                        dot += q[first + query, kv_head * group + line % group, d] * keys[slot, kv_head, d]
                    scores[line, p - tile_start] = dot * scale
            for line in range(lines):
                at = position + line // group  # this query sees keys at - window + 1 to at
                low, high = max(tile_start, at - window + 1), min(tile_stop, at + 1)
                if low >= high:
                    for j in range(tile_stop - tile_start):
                        scores[line, j] = 0
                    continue
                peak = top[line]
                for p in range(low, high):
                    peak = max(peak, scores[line, p - tile_start])
                fade = np.float32(math.exp(top[line] - peak)) if total[line] > 0 else np.float32(0)
                top[line] = peak
                total[line] *= fade
                for d in range(dim):
                    mixed[line, d] *= fade
                for p in range(tile_start, tile_stop):
                    weight = np.float32(0)
                    if low <= p < high:
                        weight = np.float32(math.exp(scores[line, p - tile_start] - peak))
                        total[line] += weight
                    scores[line, p - tile_start] = weight
            for p in range(tile_start, tile_stop):
                slot = slot_table[row, p // block_size] + p % block_size
                for line in range(lines):
                    weight = scores[line, p - tile_start]
                    for d in range(dim):
                        mixed[line, d] += weight * values[slot, kv_head, d]
        for line in range(lines):
            for d in range(dim):
                out[first + line // group, kv_head * group + line % group, d] = mixed[line, d] / total[line]
