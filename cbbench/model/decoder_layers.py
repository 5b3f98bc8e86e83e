"""Decoder layers of the Llama form, with one call before attention and one after it in place of a dozen modules.

Over the same weights as fused.py's modules, which stay inside: they answer where attention is not ours, as in the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from cbbench.attention.base import LayerCall
from cbbench.kernels.compiling import check_width, rows_of
from cbbench.kernels.layer import after, before
from cbbench.model import attention_interface
from cbbench.model.fused_layers import QKV, FusedRMSNorm, GatedMLP, PackedLinear, SharedProjection, kernels_take, same_values
from cbbench.model.self_test import last_position


def fuse_decoder_layers(hf: Any) -> int:
    """Replaces layers of a Hugging Face model in place, where what replaces them computes the same; returns how many. After `fuse`."""
    count = 0
    with attention_interface.serving(hf), torch.inference_mode():
        asked = _asked(hf)
        for module in list(hf.modules()):
            for name, child in list(module.named_children()):
                if child in asked and (short := FusedDecoderLayer.of(child, asked[child])) is not None:
                    setattr(module, name, short)
                    count += 1
    return count


def _asked(hf: Any) -> dict[nn.Module, dict[str, Any]]:
    """What the model itself calls each of its modules that has position embeddings with: positions near and far."""
    found: dict[nn.Module, dict[str, Any]] = {}

    def note(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if "position_embeddings" in kwargs:
            found[module] = {key: value for key, value in kwargs.items() if key != "cbbench"}

    limit = last_position(hf.config) or getattr(hf.config.get_text_config(), "max_position_embeddings", None) or 1 << 15
    positions = torch.tensor([[0, 1, 2, limit // 3, limit // 2, limit - 1]], device=hf.device)
    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in hf.modules() if _has_the_form(module)]
    if not hooks:
        return {}
    try:
        hf(input_ids=torch.zeros_like(positions), position_ids=positions, use_cache=False, cbbench=_Listener())
    finally:
        for hook in hooks:
            hook.remove()
    return found


class FusedDecoderLayer(nn.Module):
    """A decoder layer and the short way through it."""

    def __init__(self, layer: Any, call: LayerCall) -> None:
        super().__init__()
        self.layer, self.call = layer, call
        attention, unit = layer.self_attn, layer.mlp.run
        qkv, o = attention.q_proj.shared, attention.o_proj.run
        self.head_dim = attention.head_dim
        self.num_heads, self.num_kv_heads, _ = (size // self.head_dim for size in qkv.sizes)
        norms = [norm.weight.numpy() for norm in _head_norms(attention)]
        first, second = (norm.weight.numpy() for norm in (layer.input_layernorm, layer.post_attention_layernorm))
        eps = np.float32(layer.input_layernorm.variance_epsilon)
        self.before = (first, eps, qkv.run.weight, qkv.run.bias, np.array(norms, np.float32).reshape(-1, self.head_dim))
        self.after = (o.weight, o.bias, second, eps, unit.gate_up, unit.gate_up_bias, unit.down, unit.down_bias)

    @classmethod
    def of(cls, layer: Any, asked: dict[str, Any]) -> FusedDecoderLayer | None:
        """None for a module that computes something else when the model calls it with `asked`: cos and sin [B, W, D] among others."""
        embeddings = asked.get("position_embeddings")
        if not _has_the_form(layer) or not isinstance(embeddings, tuple):
            return None
        if len(embeddings) != 2 or any(part.shape[-1] != layer.self_attn.head_dim for part in embeddings):
            return None  # only a part of each head is turned
        width, lead = len(layer.input_layernorm.weight), embeddings[0].shape[-2]
        scales = torch.tensor([0.1, 1.0, 10.0]).repeat(lead)[:lead, None]
        x = torch.randn(1, lead, width, generator=torch.Generator().manual_seed(0)) * scales
        theirs, ours = _Listener(), _Listener()
        try:
            expected = layer(x, **asked, cbbench=theirs)
        except Exception:  # foreign code, which may ask for more
            return None
        made = cls(layer, theirs.calls[0])
        found = made(x, **asked, cbbench=ours)
        both = zip([found, *ours.heard], [expected, *theirs.heard], strict=True)
        return made if all(same_values(mine, its) for mine, its in both) else None

    def forward(self, hidden_states: torch.Tensor, *args: Any, position_embeddings: Any = None, cbbench: Any = None, **kwargs: Any) -> Any:
        """[B, W, E] -> [B, W, E]."""
        if cbbench is None:
            return self.layer(hidden_states, *args, position_embeddings=position_embeddings, **kwargs)
        lead = hidden_states.shape[:2]
        check_width(hidden_states, len(self.before[0]))
        for part in position_embeddings:
            check_width(part, self.head_dim)
        x = rows_of(hidden_states)
        cos, sin = (rows_of(part.expand(*lead, -1)) for part in position_embeddings)
        queries, keys, values = (
            torch.empty(len(x), num, self.head_dim) for num in (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        )  # fmt: skip
        before(x, *self.before, cos, sin, queries.numpy(), keys.numpy(), values.numpy())
        by_row = [part.unflatten(0, lead) for part in (queries, keys, values)]
        attended = cbbench.attend(self.call, *by_row)
        check_width(attended.flatten(2), self.num_heads * self.head_dim)
        out = torch.empty(x.shape)
        after(x, rows_of(attended.flatten(2)), *self.after, out.numpy())
        return out.unflatten(0, lead)


def _has_the_form(layer: Any) -> bool:
    """Norm, attention, norm, gated unit, every part of them made ready by `fuse`."""
    attention: Any = getattr(layer, "self_attn", None)
    norms: list[Any] = [getattr(layer, name, None) for name in ("input_layernorm", "post_attention_layernorm")]
    head_norms = _head_norms(attention)
    return (
        all(isinstance(part := getattr(attention, name, None), SharedProjection) and part.shared.is_packed for name in QKV)
        and isinstance(getattr(attention, "o_proj", None), PackedLinear)
        and isinstance(getattr(layer, "mlp", None), GatedMLP)
        and all(isinstance(norm, FusedRMSNorm) and kernels_take(norm.weight) for norm in norms + head_norms)
        and len({norm.variance_epsilon for norm in norms + head_norms}) == 1
        and len(head_norms) in (0, 2)
        and all(len(norm.weight) == attention.head_dim for norm in head_norms)
        and attention.head_dim % 2 == 0
    )


def _head_norms(attention: Any) -> list[Any]:
    """Of queries and of keys, where a layer has them (Qwen3)."""
    return [norm for name in ("q_norm", "k_norm") if (norm := getattr(attention, name, None)) is not None]


class _Listener:
    """Stands in for a step while two ways through a layer are compared."""

    def __init__(self) -> None:
        self.calls: list[LayerCall] = []
        self.heard: list[torch.Tensor] = []

    def attend(self, call: LayerCall, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self.calls.append(call)
        self.heard += [queries, keys, values]
        return queries.flip(-1)
