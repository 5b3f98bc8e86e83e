"""RMSNorm in float32 on a CPU, one pass over a row that stays in the cache: torch's goes over memory six times.

Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019)."""

from __future__ import annotations

import numba
import numpy as np
import torch

from cbbench.kernels.compiling import check_width, inlined, kernel, rows_of


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., D], weight [D]."""
    check_width(x, len(weight))
    rows = rows_of(x)
    out = torch.empty(rows.shape)
    norm_rows(rows, weight.numpy(), np.float32(eps), out.numpy())
    return out.view(x.shape)


@kernel(fastmath=True)
def norm_rows(x, weight, eps, out):  # type: ignore[no-untyped-def]
    for row in numba.prange(len(x)):
        norm_row(x[row], weight, eps, out[row])


@inlined(fastmath=True)
def norm_row(x, weight, eps, out):  # type: ignore[no-untyped-def]
    squares = np.float32(0)
    for d in range(len(x)):
        squares += x[d] * x[d]
    scale = np.float32(1) / np.sqrt(squares / np.float32(len(x)) + eps)
    for d in range(len(x)):
        out[d] = x[d] * scale * weight[d]
