"""Where a Hugging Face model calls our attention: one registered function, the step passed as a keyword.

transformers hands extra keyword arguments of a forward call down to the attention function, with queries, keys and
values after RoPE. Architectures that never call the function would generate without our cache in silence, and others ask for
more than it does: `probe` counts the calls and listens to what is asked, and refuses such models by name. Whether a model that
passes is served right is then tried: self_test.py.
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
ABSENT: Any = object()  # a keyword that was not passed; a layer that passes None means it
HARMLESS = {  # keywords that ask for nothing, or for what comes from lengths and positions here
    "position_ids", "cache_position", "use_cache", "past_key_values", "logits_to_keep", "return_dict", "output_attentions",
    "output_hidden_states", "output_router_logits", "position_embeddings", "dropout", "training",
}  # fmt: skip


def _attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, *,
    scaling: float | None = None, sliding_window: Any = ABSENT, cbbench: Step | Probe, **asked: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """What a layer calls: query [B, H, W, D], key and value [B, K, W, D] -> [B, W, H, D]."""
    window = getattr(module, "sliding_window", None) if sliding_window is ABSENT else sliding_window
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = LayerCall(int(module.layer_idx), scale, window or None)  # type: ignore[arg-type]
    if isinstance(cbbench, Probe):
        cbbench.listen(attention_mask, query.shape[2], asked)
    return cbbench.attend(call, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)), None


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

    def attend(self, call: LayerCall, queries_BWHD: torch.Tensor, keys_BWKD: torch.Tensor, values_BWKD: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.kv.write(call.layer, self._tokens(keys_BWKD), self._tokens(values_BWKD))
        out_BWHD = self.attention.attend(call, queries_BWHD, self.forward_pass, self.kv)
        assert out_BWHD.shape == queries_BWHD.shape, (
            f"{type(self.attention).__name__}.attend gave {[*out_BWHD.shape]} for queries of {[*queries_BWHD.shape]}"
        )
        return out_BWHD.contiguous()  # some layers take a view of it

    def _tokens(self, states_BWKD: torch.Tensor) -> torch.Tensor:
        """The real tokens, packed in row order, [T, K, D]."""
        flat = states_BWKD.flatten(0, 1)
        return flat if self.token_index is None else flat[self.token_index]


@dataclass(slots=True)
class Probe:
    """Stands in for a step once, at load, to learn what the layers ask for."""

    layers: list[int] = field(default_factory=list)
    shapes: set[tuple[int, int, int]] = field(default_factory=set)  # kv heads, key dim, value dim
    windows: set[int | None] = field(default_factory=set)
    unserved: set[str] = field(default_factory=set)

    def listen(self, mask: Any, num_tokens: int, asked: dict[str, Any]) -> None:
        """Whatever is handed to an attention and is not known would be ignored."""
        self.unserved |= {name for name, value in asked.items() if name not in HARMLESS and value is not None and value is not False}
        if asked.get("is_causal") is True:
            self.unserved.discard("is_causal")
        elif asked.get("is_causal") is False:
            self.unserved.add("is_causal=False")
        if mask is not None and not _is_causal(mask, num_tokens):
            self.unserved.add("a mask of its own")

    def attend(self, call: LayerCall, queries_BWHD: torch.Tensor, keys_BWKD: torch.Tensor, values_BWKD: torch.Tensor) -> torch.Tensor:
        self.layers.append(call.layer)
        self.shapes.add((keys_BWKD.shape[2], keys_BWKD.shape[3], values_BWKD.shape[3]))
        self.windows.add(call.window)
        return torch.zeros_like(queries_BWHD)


def _is_causal(mask: Any, num_tokens: int) -> bool:
    """Whether a mask, boolean or added to scores, lets each of the tokens see itself and those before it, and no other."""
    if not isinstance(mask, torch.Tensor) or mask.shape[-2:] != (num_tokens, num_tokens):
        return False
    seen = mask if mask.dtype is torch.bool else mask == 0
    return bool((seen == torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=mask.device).tril()).all())


def probe(hf: PreTrainedModel) -> tuple[KVSpec, set[int | None]]:
    """The shape of one token's keys and values, and the windows that the layers ask for, seen from two tokens sent through.
    Raises UserError, naming the architecture and the reason, for a model that our attention cannot serve."""
    name, num_layers = type(hf).__name__, hf.config.get_text_config().num_hidden_layers
    seen = Probe()
    ids = torch.zeros((1, 2), dtype=torch.long, device=hf.device)
    try:
        with serving(hf), torch.inference_mode():
            hf(input_ids=ids, position_ids=torch.arange(2, device=hf.device)[None], use_cache=False, cbbench=seen)
    except Exception as error:  # whatever foreign code makes of it
        raise UserError(f"{name} cannot be served: it does not take our attention ({_short(error)})") from error
    if sorted(seen.layers) != list(range(num_layers)):
        raise UserError(f"{name} cannot be served: {len(seen.layers)} of its {num_layers} layers call a replaceable attention")
    if seen.unserved:
        raise UserError(f"{name} cannot be served: its layers ask for {', '.join(sorted(seen.unserved))}, which would be ignored")
    if len(seen.shapes) > 1 or any(keys != values for _, keys, values in seen.shapes):
        raise UserError(f"{name} cannot be served: its layers keep keys and values of different shapes {sorted(seen.shapes)}")
    ((num_kv_heads, head_dim, _),) = seen.shapes
    return KVSpec(num_layers, num_kv_heads, head_dim, hf.dtype.itemsize), seen.windows


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
