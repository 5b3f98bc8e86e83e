"""Is a model served right? At load its own attention is held against ours, past everything that its configuration switches at.

Two prompts go through the model once as it comes, each alone, and once as we serve: packed in two passes over a cache. Logits that
differ by more than rounding refuse the model by name: it asks for something that our attention does not know, ignores the positions
that it is given, or keeps a state that nobody carries on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from cbbench import plugins
from cbbench.attention.base import Attention
from cbbench.errors import UserError
from cbbench.kvcache.base import KVCache, KVSpec
from cbbench.model import attention_interface
from cbbench.plan import Plan, Row
from cbbench.request import Request, Sequence

LONGEST_TRIED = 1024  # a window, a chunk: the longer of the prompts has twice as many tokens
SWITCHING = ("window", "chunk", "keep", "topk", "local", "stride")  # in names of configuration keys: attention changes there
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.1}  # of the largest logit; what is wrong is off by 0.3 or more
SHORT = 5  # tokens of the other prompt
NEW_TOKENS = 8  # that the model generates by itself


@dataclass(frozen=True)
class Tried:
    """The prompts, and for each the logits of every position, as the model gives them alone with its own attention."""

    prompts: list[list[int]]
    logits: list[torch.Tensor]


def switches(config: Any) -> dict[str, int]:
    """Lengths at which the attention of a model changes, by the key that says so."""
    found = {}
    for key, value in config.to_dict().items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 0 and any(word in key.lower() for word in SWITCHING):
            found[key] = value
    return found


def last_position(config: Any) -> int | None:
    """Where rotary positions begin to depend on the longest sequence of a call (LongRoPE, dynamic NTK): one request would then
    change another's tokens, so no request is served beyond. None where they never do."""
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    by_layer = [part for part in rope.values() if isinstance(part, dict)] or [rope]
    limits = []
    for part in by_layer:
        if part.get("rope_type", part.get("type")) in ("longrope", "dynamic"):
            original = part.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
            limits.append(int(original or text.max_position_embeddings))
    return min(limits, default=None)


def as_it_comes(hf: PreTrainedModel, windows: set[int | None]) -> Tried:
    """The model's own answer. Raises UserError where its attention changes at a length that is too long to try, in a way that is
    not known to be served."""
    config = hf.config.get_text_config()
    limit = min((n for n in (getattr(config, "max_position_embeddings", None), last_position(config)) if n), default=None)
    known = switches(config)
    for key, value in known.items():
        # a window that the layers hand to attention is honoured; one that stands in a mask alone would be lost
        has_none = {*(getattr(config, "layer_types", None) or ["?"])} == {"full_attention"}
        is_window = key == "sliding_window" and windows <= {value, None} and (value in windows or has_none)
        if value > LONGEST_TRIED and not is_window and (limit is None or value < limit):
            raise UserError(f"{type(hf).__name__} cannot be served: its attention changes at {key} {value}, too long a length to try")
    longest = max((value for value in known.values() if value <= LONGEST_TRIED), default=8)
    num_tokens = min(2 * longest + 4, limit or math.inf)
    generator = torch.Generator().manual_seed(0)
    lengths = (int(num_tokens), int(min(SHORT, num_tokens)))
    prompts = [torch.randint(3, config.vocab_size, (length,), generator=generator).tolist() for length in lengths]
    _check_generation(hf, prompts[0][: max(len(prompts[0]) - NEW_TOKENS, 1)])
    return Tried(prompts, [_alone(hf, ids) for ids in prompts])


@torch.inference_mode()
def _alone(hf: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = hf(input_ids=torch.tensor([ids], device=hf.device), use_cache=False).logits[0].float()
    return logits


@torch.inference_mode()
def _check_generation(hf: PreTrainedModel, prompt: list[int]) -> None:
    """References are made by the model's own generation, which has a cache. Raises UserError where its tokens are not the best by
    the logits that the model gives without one: then there is no one truth to hold an arm to."""
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None)
    ids = torch.tensor([prompt], device=hf.device)
    generated: Any = hf.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    tokens = generated[0].tolist()
    logits = _alone(hf, tokens[:-1])[len(prompt) - 1 :]
    chosen = logits.gather(1, torch.tensor(tokens[len(prompt) :], device=hf.device)[:, None])[:, 0]
    off = float((logits.amax(-1) - chosen).max() / logits.abs().max().clamp_min(1e-30))
    if off > TOLERANCE[hf.dtype]:
        raise UserError(
            f"{type(hf).__name__} cannot be served: its own generation takes tokens that are not the best by its logits without a cache "
            f"(by {off:.2g} of the largest)"
        )


def served(hf: PreTrainedModel, spec: KVSpec, prompts: list[list[int]]) -> list[torch.Tensor]:
    """The logits of the same positions as we serve: both prompts packed, cut in two, over a cache."""
    attention_cls: Any = plugins.find("attn", "serial")
    cache_cls: Any = plugins.find("kv", "cat")
    attention: Attention = attention_cls(attention_cls.Options())
    cache: KVCache = cache_cls(spec, sum(map(len, prompts)), max(map(len, prompts)), cache_cls.Options())
    cache.allocate(hf.dtype, hf.device)
    sequences = [Sequence(Request(str(i), tuple(ids), 1), i) for i, ids in enumerate(prompts)]
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    with attention_interface.serving(hf), torch.inference_mode():
        for part in range(2):
            cuts = [(len(ids) // 2 + 1, len(ids)) for ids in prompts]
            rows = [Row(s, 0 if part == 0 else cut[0], cut[0] if part == 0 else cut[1] - cut[0])
                    for s, cut in zip(sequences, cuts, strict=True)]  # fmt: skip
            rows = [row for row in rows if row.num_new]
            for row in rows:
                cache.reserve(row.sequence, row.stop)
            (forward_pass,) = attention.lay_out(Plan(rows))
            kv = cache.view(rows)
            attention.prepare(forward_pass, kv, hf.device)
            step = attention_interface.Step(forward_pass, kv, attention, None)
            ids = torch.tensor([[token for row in rows for token in row.sequence.tokens(row.start, row.stop)]], device=hf.device)
            positions = torch.tensor([[p for row in rows for p in range(row.start, row.stop)]], device=hf.device)
            logits = hf(input_ids=ids, position_ids=positions, use_cache=False, cbbench=step).logits[0].float()
            for row, of_row in zip(rows, logits.split([row.num_new for row in rows]), strict=True):
                found[row.sequence.index].append(of_row)
                cache.advance(row)
    return [torch.cat(parts) for parts in found]


def difference(found: list[torch.Tensor], tried: Tried, dtype: torch.dtype) -> float:
    """How far logits are off, as a share of the largest, at the worst position. In half precision rounding may choose another
    expert at some position, so there it is the position in the middle of a prompt's last quarter."""
    worst = 0.0
    for got, expected in zip(found, tried.logits, strict=True):
        off = (got - expected).abs().amax(-1) / expected.abs().max().clamp_min(1e-30)
        if not torch.isfinite(off).all():
            return math.inf
        worst = max(worst, float(off.max() if dtype is torch.float32 else off[-max(len(off) // 4, 1) :].median()))
    return worst


def differs(hf: PreTrainedModel, spec: KVSpec, tried: Tried) -> float | None:
    """How far the model as we serve it is off, where that is more than rounding; None where it is served right."""
    off = difference(served(hf, spec, tried.prompts), tried, hf.dtype)
    return off if off > TOLERANCE[hf.dtype] else None


def check(hf: PreTrainedModel, spec: KVSpec, windows: set[int | None]) -> Tried:
    """Raises UserError, naming the architecture and the difference, for a model that would be served wrong."""
    name = type(hf).__name__
    tried = as_it_comes(hf, windows)
    try:
        off = differs(hf, spec, tried)
    except Exception as error:  # foreign code, given what it may not expect
        raise UserError(f"{name} cannot be served: it fails on packed sequences ({type(error).__name__}: {error})") from error
    if off is not None:
        raise UserError(
            f"{name} cannot be served: through our attention its logits are off by {off:.2g} of the largest "
            f"({TOLERANCE[hf.dtype]:g} would be rounding)"
        )
    return tried
