"""One sequence through torch's scaled_dot_product_attention, grouped heads without copies of the keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def attend_one(
    queries_THD: torch.Tensor, keys_LKD: torch.Tensor, values_LKD: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """The last T of L positions attend causally over all L, [T, H, D].

    `is_causal` is aligned to the top left in SDPA, so it is used only where T == L; a chunk over a longer cache
    gets an explicit mask aligned to the bottom right.
    """
    (num_new, num_heads, _), num_keys = queries_THD.shape, len(keys_LKD)
    queries, keys, values = (x.transpose(0, 1)[None] for x in (queries_THD, keys_LKD, values_LKD))
    mask = None
    if (window is not None and window < num_keys) or 1 < num_new < num_keys:
        mask = visible(torch.arange(num_keys - num_new, num_keys, device=keys.device), num_keys, window)
    causal = mask is None and num_new > 1
    grouped = num_heads != keys.shape[1]
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)
    return out[0].transpose(0, 1)


def visible(positions: torch.Tensor, num_keys: int, window: int | None) -> torch.Tensor:
    """Which of keys 0 to num_keys a query at each position sees, [*positions.shape, num_keys] bool."""
    keys = torch.arange(num_keys, device=positions.device)
    mask = keys <= positions[..., None]
    return mask if window is None else mask & (keys > positions[..., None] - window)
