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
        num_threads = torch.get_num_threads()
        shares = min(num_threads, numba.config.NUMBA_NUM_THREADS)
        tiles.sort(key=lambda tile: tile[1] * (tile[1] + tile[3]))  # by its products
        self.tiles = np.array([tile for share in range(shares) for tile in tiles[share::shares]], np.int64)  # numba splits into runs
        numba.set_num_threads(shares)
        torch.set_num_threads(num_threads)  # both share one OpenMP, which numba's call has just set to all cores

    def attend(self, call: LayerCall, queries_THD: torch.Tensor, kv: KVView) -> torch.Tensor:
        keys_SKD, values_SKD = kv.blocks(call.layer)
        out_THD = torch.empty(queries_THD.shape)
        _attend(
            queries_THD.numpy(), keys_SKD.numpy(), values_SKD.numpy(), self.slot_table, self.block_size,
            self.tiles, np.float32(call.scale), call.window or np.iinfo(np.int64).max, out_THD.numpy(),
        )  # fmt: skip
        return out_THD


@numba.njit(fastmath=True, cache=True, boundscheck=False, inline="always")
def _scores(q0, q1, keys, slots, num_keys, kv_head, out0, out1):  # type: ignore[no-untyped-def]
    """Dot products of two queries with every key, two by four at a time: each loaded vector is used several times.
    `slots` is filled up to whole fours."""
    dim = len(q0)
    for j in range(0, num_keys, 4):
        k0, k1, k2, k3 = keys[slots[j], kv_head], keys[slots[j + 1], kv_head], keys[slots[j + 2], kv_head], keys[slots[j + 3], kv_head]
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
        for d in range(dim):
            a0 += q0[d] * k0[d]
            a1 += q0[d] * k1[d]
            a2 += q0[d] * k2[d]
            a3 += q0[d] * k3[d]
            b0 += q1[d] * k0[d]
            b1 += q1[d] * k1[d]
            b2 += q1[d] * k2[d]
            b3 += q1[d] * k3[d]
        out0[j], out0[j + 1], out0[j + 2], out0[j + 3] = a0, a1, a2, a3
        out1[j], out1[j + 1], out1[j + 2], out1[j + 3] = b0, b1, b2, b3


@numba.njit(fastmath=True, cache=True, boundscheck=False, inline="always")
def _exp(x, out, bits):  # type: ignore[no-untyped-def]
    """out = exp(x) for x <= 0, to about 1e-7: 2 ** (whole + rest), the whole part put straight into the exponent bits.

    `bits` is the int32 view of scratch memory that is read back as floats; plain loops, so that they vectorise.
    Coefficients: the Cephes library's expf."""
    for j in range(len(x)):
        y = max(x[j], np.float32(-87))
        whole = math.floor(y * np.float32(1.44269504) + np.float32(0.5))
        rest = y - whole * np.float32(0.693359375) - whole * np.float32(-2.12194440e-4)
        p = np.float32(1.9875691500e-4)
        p = p * rest + np.float32(1.3981999507e-3)
        p = p * rest + np.float32(8.3334519073e-3)
        p = p * rest + np.float32(4.1665795894e-2)
        p = p * rest + np.float32(1.6666665459e-1)
        p = p * rest + np.float32(5.0000001201e-1)
        out[j] = p * rest * rest + rest + np.float32(1)
        bits[j] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    scale = bits.view(np.float32)
    for j in range(len(x)):
        out[j] *= scale[j]


@numba.njit(fastmath=True, cache=True, boundscheck=False, inline="always")
def _mix(w0, w1, values, slots, num_keys, kv_head, out0, out1):  # type: ignore[no-untyped-def]
    """Adds the values, weighted, to two outputs, four keys at a time. Weights behind num_keys are 0."""
    dim = len(out0)
    for j in range(0, num_keys, 4):
        v0, v1 = values[slots[j], kv_head], values[slots[j + 1], kv_head]
        v2, v3 = values[slots[j + 2], kv_head], values[slots[j + 3], kv_head]
        a0, a1, a2, a3 = w0[j], w0[j + 1], w0[j + 2], w0[j + 3]
        b0, b1, b2, b3 = w1[j], w1[j + 1], w1[j + 2], w1[j + 3]
        for d in range(dim):
            out0[d] += a0 * v0[d] + a1 * v1[d] + a2 * v2[d] + a3 * v3[d]
            out1[d] += b0 * v0[d] + b1 * v1[d] + b2 * v2[d] + b3 * v3[d]


@numba.njit(parallel=True, fastmath=True, cache=True, boundscheck=False, nogil=True)
def _attend(q, keys, values, slot_table, block_size, tiles, scale, window, out):  # type: ignore[no-untyped-def]
    num_heads, dim = q.shape[1], q.shape[2]
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    for task in numba.prange(len(tiles) * num_kv_heads):
        tile, kv_head = task // num_kv_heads, task % num_kv_heads
        first, num_queries, row, position = tiles[tile]
        lines = num_queries * group  # (query, head of the group) pairs
        queries = np.empty((lines + 1, dim), np.float32)  # scaled; one spare, lines are taken two by two
        for line in range(lines):
            for d in range(dim):
                queries[line, d] = q[first + line // group, kv_head * group + line % group, d] * scale
        queries[lines] = 0
        scores = np.empty((lines + 1, KEY_TILE), np.float32)
        weights, bits = np.zeros((lines + 1, KEY_TILE), np.float32), np.empty(KEY_TILE, np.int32)
        slots = np.empty(KEY_TILE + 3, np.int64)
        mixed = np.zeros((lines + 1, dim), np.float32)
        top = np.full(lines, np.float32(-1e30))  # fastmath knows no infinity
        total = np.zeros(lines, np.float32)
        last = position + num_queries - 1
        for start in range(max(0, position - window + 1), last + 1, KEY_TILE):
            num_keys = min(KEY_TILE, last + 1 - start)
            for j in range(num_keys):
                slots[j] = slot_table[row, (start + j) // block_size] + (start + j) % block_size
            slots[num_keys : num_keys + 3] = slots[num_keys - 1]  # up to whole fours: a written slot, weighted 0
            for line in range(0, lines, 2):
                _scores(queries[line], queries[line + 1], keys, slots, num_keys, kv_head, scores[line], scores[line + 1])
            for line in range(lines):
                at = position + line // group  # this query sees keys at - window + 1 to at
                low, high = max(0, at - window + 1 - start), min(num_keys, at + 1 - start)
                if low >= high:
                    weights[line] = 0
                    continue
                peak = top[line]
                for j in range(low, high):
                    peak = max(peak, scores[line, j])
                fade = np.float32(math.exp(max(top[line] - peak, np.float32(-87))))
                top[line] = peak
                for j in range(low, high):
                    scores[line, j] -= peak
                _exp(scores[line], weights[line], bits)
                weights[line, :low] = 0
                weights[line, high:] = 0
                total[line] = total[line] * fade + weights[line].sum()
                for d in range(dim):
                    mixed[line, d] *= fade
            for line in range(0, lines, 2):
                _mix(weights[line], weights[line + 1], values, slots, num_keys, kv_head, mixed[line], mixed[line + 1])
        for line in range(lines):
            for d in range(dim):
                out[first + line // group, kv_head * group + line % group, d] = mixed[line, d] / total[line]
