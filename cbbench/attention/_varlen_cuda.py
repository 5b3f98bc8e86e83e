"""The CUDA kernels behind `varlen`: flash-attn's varlen call and torch.nn.attention.varlen.

Both read a pool of pages in place where its block size suits them (a multiple of 256), and a packed copy of any other memory;
the copy is counted. Letters as in base.py.
"""

from __future__ import annotations

import inspect
from copy import copy

import numpy as np
import torch

from cbbench.attention.base import ForwardPass, LayerCall
from cbbench.kvcache.base import KVView

HEAD_DIM_MULTIPLE, LARGEST_HEAD_DIM = 8, 256  # flash kernels, both of them
OLDEST_CAPABILITY = (8, 0)  # Ampere
PAGE_MULTIPLE = 256  # flash-attn: a paged cache's block must be a multiple of it


class _CudaKernel:
    def __init__(self, forward_pass: ForwardPass, kv: KVView, device: torch.device) -> None:
        sizes = [row.num_new for row in forward_pass.rows]
        check_cu_seqlens(cu_seqlens_q := np.cumsum([0, *sizes], dtype=np.int32), forward_pass.num_tokens)
        self.cu_seqlens_q = torch.from_numpy(cu_seqlens_q).to(device)
        self.max_q, self.max_k = max(sizes), max(kv.lengths)
        pages = kv.pages
        self.block_table: torch.Tensor | None = None
        if pages is not None and pages.block_size % PAGE_MULTIPLE == 0:
            self.block_size = pages.block_size
            self.block_table = torch.from_numpy(pages.block_table_RM).to(device)
            self.lengths = torch.tensor(kv.lengths, dtype=torch.int32, device=device)
            self.cu_seqlens_k = torch.zeros_like(self.cu_seqlens_q)
            self.cu_seqlens_k[1:] = self.lengths.cumsum(0)
        else:
            self.cu_seqlens_k = torch.from_numpy(kv.cu_seqlens).to(device)

    def copied(self, into: _CudaKernel | None, longest_tokens: int) -> _CudaKernel | None:
        """As Attention.copy_state."""
        if self.block_table is None:
            return None
        if into is None:
            into = copy(self)
            num_blocks = -(-longest_tokens // self.block_size)
            into.max_k = num_blocks * self.block_size
            into.block_table = self.block_table.new_zeros((len(self.block_table), num_blocks))
            into.lengths, into.cu_seqlens_k = torch.empty_like(self.lengths), torch.empty_like(self.cu_seqlens_k)
        assert into.block_table is not None
        into.block_table[:, : self.block_table.shape[1]].copy_(self.block_table)
        into.lengths.copy_(self.lengths)
        into.cu_seqlens_k.copy_(self.cu_seqlens_k)
        return into

    def window(self, call: LayerCall) -> tuple[int, int]:
        """Keys to the left and right of a query that it sees, -1 for all. A pass of one query a row needs no causal bound: its keys end
        with the query, and only unbounded do the kernels take their decode path (packed heads of a group, split keys)."""
        if call.window is not None:
            return call.window - 1, 0
        return (-1, -1) if self.max_q == 1 else (-1, 0)

    def read(self, layer: int, kv: KVView) -> tuple[torch.Tensor, torch.Tensor]:
        """A pool of pages [N, B, K, D], or packed [sum of lengths, K, D]."""
        if self.block_table is None:
            return kv.packed(layer)
        keys, values = kv.pool(layer)
        pages = (-1, self.block_size, *keys.shape[1:])
        return keys.view(pages), values.view(pages)


class FlashAttnKernel(_CudaKernel):
    """flash_attn_varlen_func; causal is aligned to the bottom right since flash-attn 2.1."""

    def attend(self, call: LayerCall, queries_THD: torch.Tensor, kv: KVView) -> torch.Tensor:
        from flash_attn import flash_attn_varlen_func

        keys, values = self.read(call.layer, kv)
        out: torch.Tensor = flash_attn_varlen_func(
            queries_THD.contiguous(), keys, values, self.cu_seqlens_q, self.cu_seqlens_k, self.max_q, self.max_k,
            softmax_scale=call.scale, causal=self.max_q > 1, block_table=self.block_table, window_size=self.window(call),
        )  # fmt: skip
        return out


class TorchKernel(_CudaKernel):
    """varlen_attn; one split, so that a sequence's numbers do not depend on its neighbours."""

    def attend(self, call: LayerCall, queries_THD: torch.Tensor, kv: KVView) -> torch.Tensor:
        from torch.nn.attention.varlen import varlen_attn

        keys, values = self.read(call.layer, kv)
        out = varlen_attn(
            queries_THD.contiguous(), keys, values, self.cu_seqlens_q, self.cu_seqlens_k,
            self.max_q, self.max_k, scale=call.scale, window_size=self.window(call),
            enable_gqa=queries_THD.shape[1] != keys.shape[-2], seqused_k=None if self.block_table is None else self.lengths,
            block_table=self.block_table, num_splits=1,
        )  # fmt: skip
        assert isinstance(out, torch.Tensor)
        return out


def torch_lacks() -> str | None:
    """Why the installed torch has no varlen attention as it is called here; None where it has."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"torch {torch.__version__} has no torch.nn.attention.varlen; 2.13 has"
    wanted = {"window_size", "enable_gqa", "seqused_k", "block_table", "num_splits"}
    missing = wanted - {*inspect.signature(varlen_attn).parameters}
    return f"torch {torch.__version__} has no {', '.join(sorted(missing))} in varlen_attn; 2.13 has" if missing else None


def check_cu_seqlens(cu_seqlens: np.ndarray, num_tokens: int) -> None:
    """A row the borders do not cover would come back with whatever was in memory."""
    assert cu_seqlens[0] == 0 and cu_seqlens[-1] == num_tokens and (np.diff(cu_seqlens) > 0).all(), f"cu_seqlens {cu_seqlens.tolist()}"
