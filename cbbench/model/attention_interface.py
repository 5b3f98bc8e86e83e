"""Where a Hugging Face model calls our attention: one registered function, the step passed as a keyword.

transformers hands extra keyword arguments of a forward call down to the attention function, with queries, keys and
values after RoPE. Architectures that never call the function would generate without our cache in silence, so every
pass counts its calls and `probe` refuses such models by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from cbbench.attention.base import Attention, ForwardPass, LayerCall
from cbbench.errors import UserError
from cbbench.kvcache.base import KVSpec, KVView

NAME = "cbbench"


def _attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, *,
    scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None, s_aux: Any = None,
    cbbench: Step | Probe, **_: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """What a layer calls: query [B, H, W, D], key and value [B, K, W, D] -> [B, W, H, D]."""
    window = sliding_window or getattr(module, "sliding_window", None)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = LayerCall(int(module.layer_idx), scale, window)  # type: ignore[arg-type]
    unserved = "softcap" if softcap else "attention sinks" if s_aux is not None else None
    return cbbench.attend(call, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), unserved), None


AttentionInterface.register(NAME, _attention)  # and no mask function: transformers then builds no mask; ours come from lengths


@contextmanager
def serving(hf: PreTrainedModel) -> Iterator[None]:
    """The model calls our attention inside, and its own again afterwards, also after an exception."""
    before = hf.config._attn_implementation
    hf.set_attn_implementation(NAME)
    try:
        yield
    finally:
        hf.set_attn_implementation(before)


@dataclass(slots=True)
class Step:
    """One pass on its way through the layers."""

    forward_pass: ForwardPass
    kv: KVView
    attention: Attention
    token_index: torch.Tensor | None  # the real tokens of a rectangle with padding
    calls: int = 0

    def attend(
        self, call: LayerCall, queries_BWHD: torch.Tensor, keys_BWKD: torch.Tensor, values_BWKD: torch.Tensor, _: str | None
    ) -> torch.Tensor:
        self.calls += 1
        self.kv.write(call.layer, self._tokens(keys_BWKD), self._tokens(values_BWKD))
        return self.attention.attend(call, queries_BWHD, self.forward_pass, self.kv)

    def _tokens(self, states_BWKD: torch.Tensor) -> torch.Tensor:
        """The real tokens, packed in row order, [T, K, D]."""
        flat = states_BWKD.flatten(0, 1)
        return flat if self.token_index is None else flat[self.token_index]


@dataclass(slots=True)
class Probe:
    """Stands in for a step once, at load, to learn what the layers ask for."""

    layers: list[int] = field(default_factory=list)
    shapes: set[tuple[int, int, int]] = field(default_factory=set)  # kv heads, key dim, value dim
    unserved: set[str] = field(default_factory=set)

    def attend(
        self, call: LayerCall, queries_BWHD: torch.Tensor, keys_BWKD: torch.Tensor, values_BWKD: torch.Tensor, unserved: str | None
    ) -> torch.Tensor:
        self.layers.append(call.layer)
        self.shapes.add((keys_BWKD.shape[2], keys_BWKD.shape[3], values_BWKD.shape[3]))
        if unserved:
            self.unserved.add(unserved)
        return torch.zeros_like(queries_BWHD)


def probe(hf: PreTrainedModel) -> KVSpec:
    """The shape of one token's keys and values, seen from two tokens sent through. Raises UserError, naming the
    architecture and the reason, for a model that our attention cannot serve."""
    name, num_layers = type(hf).__name__, hf.config.get_text_config().num_hidden_layers
    seen = Probe()
    ids = torch.zeros((1, 2), dtype=torch.long, device=hf.device)
    try:
        with serving(hf), torch.inference_mode():
            hf(input_ids=ids, position_ids=torch.arange(2, device=hf.device)[None], use_cache=False, cbbench=seen)
    except Exception as error:  # whatever foreign code makes of it
        raise UserError(f"{name} cannot be served: it does not take our attention ({error})") from error
    if sorted(seen.layers) != list(range(num_layers)):
        raise UserError(f"{name} cannot be served: {len(seen.layers)} of its {num_layers} layers call a replaceable attention")
    if seen.unserved:
        raise UserError(f"{name} cannot be served: its layers ask for {', '.join(sorted(seen.unserved))}, which would be ignored")
    if len(seen.shapes) > 1 or any(keys != values for _, keys, values in seen.shapes):
        raise UserError(f"{name} cannot be served: its layers keep keys and values of different shapes {sorted(seen.shapes)}")
    ((num_kv_heads, head_dim, _),) = seen.shapes
    return KVSpec(num_layers, num_kv_heads, head_dim, hf.dtype.itemsize)
