"""The two flash kernels that `varlen` calls on CUDA, in plain torch on a CPU, with what the real ones demand of their arguments.

`aten_on_a_cpu` puts one below torch's real `varlen_attn`, whose own checks then run; `flash_attn_module` stands in for the package.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

PAGE, HEAD, LARGEST_HEAD = 256, 8, 256


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_q: Any, cu_k: Any, max_q: int, max_k: int, *, causal: bool, scale: float | None,
    window: tuple[int, int], block_table: Any, used_k: Any,
) -> torch.Tensor:  # fmt: skip
    """What flash-attn computes: q [T, H, D]; k, v [T', K, D], or pages [N, B, K, D] with a block table. Raises AssertionError for
    arguments that the real kernels refuse, or that they would read beside."""
    assert cu_q is not None and cu_k is not None, "cumulative sequence lengths: both or none"
    for borders in (cu_q, cu_k):
        assert borders.dtype is torch.int32 and borders.is_contiguous() and borders[0] == 0, "borders are int32, contiguous, from 0"
    assert q.dtype == k.dtype == v.dtype and all(x.stride(-1) == 1 for x in (q, k, v)), "one dtype, last dimension contiguous"
    num_rows, (num_tokens, num_heads, dim) = len(cu_q) - 1, q.shape
    assert len(cu_k) == num_rows + 1 and int(cu_q[-1]) == num_tokens and dim % HEAD == 0 and dim <= LARGEST_HEAD
    assert num_heads % k.shape[-2] == 0, "query heads are a multiple of key heads"
    if block_table is None:
        assert k.dim() == 3 and int(cu_k[-1]) <= len(k), "keys beyond the borders would be read"
    else:
        assert k.dim() == 4 and k.shape[1] % PAGE == 0, f"a page is a multiple of {PAGE}"
        assert block_table.dtype is torch.int32 and block_table.shape[0] == num_rows and block_table.stride(-1) == 1
    lengths = cu_k.diff() if used_k is None else used_k
    assert lengths.dtype is torch.int32 and int(cu_q.diff().max()) <= max_q and int(lengths.max()) <= max_k
    out = torch.empty_like(q)
    for row in range(num_rows):
        first, last, length = int(cu_q[row]), int(cu_q[row + 1]), int(lengths[row])
        if block_table is None:
            start = int(cu_k[row])
            keys, values = k[start : start + length], v[start : start + length]
        else:
            blocks = block_table[row, : -(-length // k.shape[1])].long()
            assert len(blocks) * k.shape[1] >= length and int(blocks.max()) < len(k), "the table covers the row, within the pool"
            keys, values = (x[blocks].flatten(0, 1)[:length] for x in (k, v))
        queries = q[first:last]
        group = num_heads // keys.shape[1]
        scores = torch.einsum("thd,lhd->htl", queries.float(), keys.float().repeat_interleave(group, 1))
        position = torch.arange(length - len(queries), length)[:, None]
        key = torch.arange(length)
        left, right = window[0], 0 if causal else window[1]
        seen = torch.ones(len(queries), length, dtype=torch.bool)
        seen &= key <= position + right if right >= 0 else True
        seen &= key >= position - left if left >= 0 else True
        weights = (scores * (dim**-0.5 if scale is None else scale)).masked_fill(~seen, -torch.inf).softmax(-1)
        out[first:last] = torch.einsum("htl,lhd->thd", weights, values.float().repeat_interleave(group, 1)).to(q.dtype)
    return out


CALLS: list[dict[str, Any]] = []  # what the kernel was asked, newest last


def _aten(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, dropout: float, causal: bool, debug: bool, *,
          scale: Any = None, window_size_left: Any = None, window_size_right: Any = None, seqused_k: Any = None, alibi_slopes: Any = None,
          block_table: Any = None, num_splits: Any = None) -> tuple[torch.Tensor, ...]:  # fmt: skip
    left, right = (-1 if side is None else side for side in (window_size_left, window_size_right))
    CALLS.append({"causal": causal, "window": (left, right), "paged": block_table is not None, "num_splits": num_splits, "max_q": max_q})
    out = attention(q, k, v, cu_q, cu_k, max_q, max_k, causal=causal, scale=scale, window=(left, right), block_table=block_table,
                    used_k=seqused_k)  # fmt: skip
    return out, torch.zeros(q.shape[1], len(q)), torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64), torch.zeros(0)


@contextmanager
def aten_on_a_cpu() -> Iterator[None]:
    """Inside, torch.ops.aten._flash_attention_forward runs on CPU tensors."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", _aten, "CPU")
    try:
        yield
    finally:
        library._destroy()


def flash_attn_module() -> types.ModuleType:
    """A package `flash_attn` with the one function that is called."""

    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
        block_table: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        CALLS.append({"causal": causal, "window": window_size, "paged": block_table is not None, "max_q": max_seqlen_q})
        return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal, scale=softmax_scale,
                         window=window_size, block_table=block_table, used_k=None)  # fmt: skip

    module = types.ModuleType("flash_attn")
    module.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    return module
