"""Rectangles and masks. See it: `cbbench run workloads/mixed.yaml --attn padded,varlen`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from cbbench.attention._sdpa import visible
from cbbench.attention.base import Attention, ForwardPass, LayerCall
from cbbench.kvcache.base import KVView
from cbbench.plan import Plan


@dataclass(slots=True)
class Masks:
    """Filled by `prepare`; one mask [R, 1, G * W, L] a window size, made when a layer first asks for it."""

    positions_RW: torch.Tensor  # of each query; padding and held rows: 0, so that their softmax sees one key
    is_padding_RW: torch.Tensor | None
    by_window: dict[int | None, torch.Tensor] = field(default_factory=dict)


class Padded(Attention):
    """Puts the prompts of a step in one rectangle and the decodes in another; each row is padded on the left to the longest.

    The position of padding follows from lengths, not from token ids. Held rows of a static batch are computed like the
    others, and their results are discarded.

    Cost: padded positions go through every linear layer; keys are read up to the longest row's length for every row.
    Use when: you need the baseline, or all lengths are equal.
    """

    def reads(self, device: str) -> str:
        return "padded"

    def lay_out(self, plan: Plan) -> list[ForwardPass]:
        decodes = [row for row in plan.rows if row.is_decode or row.is_held]
        prefills = [row for row in plan.rows if not (row.is_decode or row.is_held)]
        passes = []
        if prefills:
            passes.append(ForwardPass(prefills, max(row.num_new for row in prefills)))
        if any(not row.is_held for row in decodes):
            passes.append(ForwardPass(decodes, 1))
        return passes

    def prepare(self, forward_pass: ForwardPass, kv: KVView, device: torch.device) -> None:
        rows, width = forward_pass.rows, forward_pass.width
        assert width is not None
        starts = torch.tensor([row.stop for row in rows], device=device)[:, None]
        positions = starts + torch.arange(-width, 0, device=device)
        new = torch.tensor([row.num_new for row in rows], device=device)[:, None]
        is_padding = torch.arange(width, 0, -1, device=device) > new
        forward_pass.state = Masks(positions.masked_fill(is_padding, 0), is_padding if is_padding.any() else None)

    def attend(self, call: LayerCall, queries_BWHD: torch.Tensor, forward_pass: ForwardPass, kv: KVView) -> torch.Tensor:
        masks: Masks = forward_pass.state
        keys, values = (x.transpose(1, 2) for x in kv.padded(call.layer))
        num_rows, width, num_heads = queries_BWHD.shape[:3]
        num_kv_heads, longest = keys.shape[1:3]
        group = num_heads // num_kv_heads
        # The query heads of a group become more queries of their one kv head: no copy of keys, any width.
        grouped = queries_BWHD.unflatten(2, (num_kv_heads, group)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        if call.window not in masks.by_window:
            mask = visible(masks.positions_RW, longest, call.window)
            masks.by_window[call.window] = mask[:, None].repeat(1, group, 1, 1).view(num_rows, 1, group * width, longest)
        mask = masks.by_window[call.window]
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=call.scale)
        out_BWHD: torch.Tensor = out.unflatten(2, (group, width)).permute(0, 3, 1, 2, 4).reshape(queries_BWHD.shape)
        if masks.is_padding_RW is not None:
            out_BWHD.masked_fill_(masks.is_padding_RW[..., None, None], 0)
        return out_BWHD
