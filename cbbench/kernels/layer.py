"""What a decoder layer computes before and after its attention, each one call: in float32 on a CPU.

A decode step of a small model is some ten operations a layer that take microseconds each, and as long again to be reached.
Letters as in attention/base.py, and E the width of a token's hidden state.
"""

from __future__ import annotations

import numba
import numpy as np

from cbbench.kernels.compiling import kernel
from cbbench.kernels.norms import norm_row, norm_rows
from cbbench.kernels.products import gated_rows, product_rows
from cbbench.kernels.vectors import LANES


@kernel()
def before(x, norm, eps, qkv, qkv_bias, head_norms, cos, sin, queries, keys, values):  # type: ignore[no-untyped-def]
    """x [T, E] -> queries [T, H, D], keys and values [T, K, D]: normed, projected and turned to their positions.

    `head_norms`: [2, D], weights of a norm over each query head and each key head, or [0, D] without one. cos, sin: [T, D].
    Source: Su et al., RoFormer (2021), section 3.2; a head's first half is turned against its second."""
    num_heads, num_kv_heads, dim = queries.shape[1], keys.shape[1], queries.shape[2]
    normed, projected = np.empty_like(x), np.empty((len(x), len(qkv_bias)), np.float32)
    norm_rows(x, norm, eps, normed)
    product_rows(normed, qkv, qkv_bias, projected)
    for token in numba.prange(len(x)):
        for head in range(num_heads + num_kv_heads):
            of_keys = head >= num_heads
            made = keys[token, head - num_heads] if of_keys else queries[token, head]
            given = projected[token, head * dim : (head + 1) * dim]
            if len(head_norms):
                norm_row(given, head_norms[1 if of_keys else 0], eps, given)
            for d in range(dim // 2):
                e = d + dim // 2
                made[d] = given[d] * cos[token, d] - given[e] * sin[token, d]
                made[e] = given[e] * cos[token, e] + given[d] * sin[token, e]
        for head in range(num_kv_heads):
            start = (num_heads + num_kv_heads + head) * dim
            for d in range(dim):
                values[token, head, d] = projected[token, start + d]


@kernel()
def after(x, attended, o, o_bias, norm, eps, gate_up, gate_up_bias, down, down_bias, out):  # type: ignore[no-untyped-def]
    """x [T, E], the layer's input, and attended [T, H * D] -> out [T, E], its output: projected, added, normed, through the
    gated unit, added."""
    projected, added, normed = np.empty((len(x), len(o_bias)), np.float32), np.empty_like(x), np.empty_like(x)
    hidden, made = np.empty((len(x), len(gate_up) * LANES), np.float32), np.empty((len(x), len(down_bias)), np.float32)
    product_rows(attended, o, o_bias, projected)
    for token in numba.prange(len(x)):
        for d in range(x.shape[1]):
            added[token, d] = x[token, d] + projected[token, d]
    norm_rows(added, norm, eps, normed)
    gated_rows(normed, gate_up, gate_up_bias, hidden, down, down_bias, made)
    for token in numba.prange(len(x)):
        for d in range(x.shape[1]):
            out[token, d] = added[token, d] + made[token, d]
