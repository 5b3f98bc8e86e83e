"""The real model: what it is, and one forward pass over a layout. Where it comes from: load.py."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from cbbench.attention.base import Attention, ForwardPass
from cbbench.kvcache.base import KVSpec, KVView
from cbbench.model import attention_interface, self_test
from cbbench.workload.rows import Vocabulary

NO_TOKEN = -1  # in place of one whose logit is no number


@dataclass
class Model:
    """A loaded model. Reference tokens and every arm run on this one object."""

    name: str
    hf: PreTrainedModel
    tokenizer: Any | None
    eos_ids: frozenset[int]
    neutralised: dict[str, Any]  # what its generation_config asked for beside greedy; used by neither side
    prepared: dict[str, int] | None = None  # what load.py made of its layers; the digest is of the weights before
    unprepared: str | None = None  # why its layers had to stay as they are
    read_again: Callable[[], PreTrainedModel] | None = None  # the same weights anew
    spec: KVSpec = field(init=False)
    tried: self_test.Tried = field(init=False)  # what its own attention answered at load
    cost: dict[str, int] | None = field(init=False)  # what a token costs, see `cost`
    digest: str = field(init=False)  # of weights and the configuration that shapes its outputs

    def __post_init__(self) -> None:
        self.spec, windows = attention_interface.probe(self.hf)
        self.tried = self_test.check(self.hf, self.spec, windows)
        self.digest = digest(self.hf)
        self.cost = cost(self.hf)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.hf.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self.hf.device
        return device

    @property
    def max_positions(self) -> int | None:
        """Positions that a request may have."""
        limits = (getattr(self.hf.config.get_text_config(), "max_position_embeddings", None), self_test.last_position(self.hf.config))
        return min((limit for limit in limits if limit), default=None)

    @property
    def vocabulary(self) -> Vocabulary:
        return vocabulary(self.hf.config, self.tokenizer, self.eos_ids)

    def serving(self) -> AbstractContextManager[None]:
        """Inside, the layers call our attention; `forward` needs it."""
        return attention_interface.serving(self.hf)

    @torch.inference_mode()
    def forward(self, forward_pass: ForwardPass, kv: KVView, attention: Attention) -> list[int]:
        """Runs one pass; returns the greedy next token of each row that samples, in row order."""
        rows = forward_pass.rows
        if forward_pass.width is None:
            ids = np.concatenate([row.sequence.tokens(row.start, row.stop) for row in rows])[None]
            positions = np.concatenate([np.arange(row.start, row.stop) for row in rows])[None]
            ends = np.cumsum([row.num_new for row in rows]) - 1
            keep = ends[[row.samples for row in rows]]
        else:
            ids = np.zeros((len(rows), forward_pass.width), np.int64)  # any valid id pads: it is never attended to
            positions = np.zeros_like(ids)
            for line, row in enumerate(rows):
                if row.num_new:
                    ids[line, -row.num_new :] = row.sequence.tokens(row.start, row.stop)
                    positions[line, -row.num_new :] = np.arange(row.start, row.stop)
            keep = np.array([forward_pass.width - 1])
        index = forward_pass.token_index
        step = attention_interface.Step(forward_pass, kv, attention, None if index is None else torch.from_numpy(index).to(self.device))
        ids_BW, positions_BW, kept = (torch.from_numpy(array).to(self.device) for array in (ids, positions, keep))
        found = self.greedy(ids_BW, positions_BW, kept, step)
        assert step.calls == self.spec.num_layers, f"{step.calls} attention calls in {self.spec.num_layers} layers"
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # a pass that samples nothing would otherwise be stamped before it has run
        tokens: list[int] = found.flatten().tolist()
        if NO_TOKEN in tokens:
            raise ValueError("logits are no numbers: an attention or a KV cache gave NaN or infinity")
        if forward_pass.width is None:
            return tokens
        return [token for token, row in zip(tokens, rows, strict=True) if row.samples]

    def greedy(self, ids_BW: torch.Tensor, positions_BW: torch.Tensor, keep: torch.Tensor, step: attention_interface.Step) -> torch.Tensor:
        """The most likely next token of the columns `keep`, [B, len(keep)], NO_TOKEN where none is. Works on the device alone: it can
        be captured."""
        logits = self.hf(input_ids=ids_BW, position_ids=positions_BW, use_cache=False, logits_to_keep=keep, cbbench=step).logits
        if logits.shape[1] != len(keep):  # an architecture that does not know logits_to_keep
            logits = logits[:, keep]
        best = logits.float().max(-1)
        found: torch.Tensor = torch.where(best.values.isfinite(), best.indices, NO_TOKEN)
        return found


def vocabulary(config: Any, tokenizer: Any | None, eos_ids: frozenset[int]) -> Vocabulary:
    """Prompts to token ids as this model reads them; a text as it stands, special tokens in it read as such."""
    size = int(config.get_text_config().vocab_size)
    special = {*eos_ids, *(getattr(config, name, None) for name in ("bos_token_id", "pad_token_id"))}
    if tokenizer is None:
        return Vocabulary(size=size, ordinary_ids=_without(special, size))
    special |= {*tokenizer.all_special_ids, *(id for id, token in tokenizer.added_tokens_decoder.items() if token.special)}

    def chat(messages: list[dict[str, Any]]) -> str:
        text: str = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return text

    return Vocabulary(
        lambda text: list(tokenizer(text).input_ids), chat if tokenizer.chat_template else None, size,
        _without(special, min(size, len(tokenizer))),
    )  # fmt: skip


def _without(special: set[Any], size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The ids below `size` that are not special."""
    return np.setdiff1d(np.arange(size), [i for i in special if isinstance(i, int)])


def cost(hf: PreTrainedModel) -> dict[str, int] | None:
    """What a forward pass must read and multiply: bytes of all weights but a lookup table, weights that every token meets
    and those that only a sampled one does (the head), and multiplications of attention a query and key. None for
    mixtures of experts, which read what the tokens choose."""
    text = hf.config.get_text_config()
    if any(getattr(text, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return None
    embedding, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    if embedding is None or head is None:
        return None
    tied = head.weight is embedding.weight
    total = sum(weight.numel() for weight in hf.parameters())
    inner = total - embedding.weight.numel() - (0 if tied else head.weight.numel())
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return {
        "weight_bytes": (inner + head.weight.numel()) * hf.dtype.itemsize, "token_weights": inner, "sample_weights": head.weight.numel(),
        "attention_products": 2 * text.num_hidden_layers * text.num_attention_heads * head_dim,
    }  # fmt: skip


NO_MATTER = {  # keys of a configuration that say nothing about what a model computes
    "_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache", "return_dict",
    "output_attentions", "output_hidden_states", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "id2label", "label2id",
}  # fmt: skip


def digest(hf: PreTrainedModel) -> str:
    """SHA-256 over every weight's name, type, shape and CRC-32, and the whole configuration where it differs from what its class
    says by itself, less names, versions and token ids."""
    lines = [json.dumps(_mattering(hf.config.to_diff_dict()), sort_keys=True, default=str)]
    for name, weight in sorted(hf.state_dict().items()):
        raw = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        lines.append(f"{name} {weight.dtype} {tuple(weight.shape)} {zlib.crc32(raw):08x}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _mattering(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {str(key): _mattering(value) for key, value in part.items() if key not in NO_MATTER}
