"""The truth every arm is held to: plain greedy `generate`, one prompt at a time, no padding, no shared batch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from cbbench.atomic import replacing
from cbbench.folders import cache_dir
from cbbench.model.model import Model
from cbbench.request import Request

TIE_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}  # top-2 logit gap that rounding can cross


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one request's tokens compare: `exact`, `tie`, `wrong` or `unverified`."""

    outcome: str
    position: int | None = None  # of the first difference, in the output
    expected: int | None = None
    got: int | None = None
    gap: float | None = None  # how far apart the logits of the expected token and of the one that came are
    rank: int | None = None  # of the one that came, by its logit there: 1 is the best


@torch.inference_mode()
def greedy(model: Model, prompt_ids: list[int], max_new_tokens: int, ignore_eos: bool) -> list[int]:
    """Output ids, the end-of-sequence token included where it came. With `ignore_eos` it is a token like any other
    (`min_new_tokens` would suppress it and change the output)."""
    config = GenerationConfig(
        max_new_tokens=max_new_tokens, do_sample=False, num_beams=1, pad_token_id=0,
        eos_token_id=None if ignore_eos or not model.eos_ids else sorted(model.eos_ids),
    )  # fmt: skip
    ids = torch.tensor([prompt_ids], device=model.device)
    output: Any = model.hf.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    new: list[int] = output[0, len(prompt_ids) :].tolist()
    return new


def cached_greedy(model: Model, request: Request) -> tuple[int, ...]:
    """The same, kept in the user's cache directory by the digests of model and request, so it is paid once. Asked of the model as
    it loads: what is measured must not be what it is held to."""
    assert not model.prepared, "references come from the model before its layers are prepared"
    asked = json.dumps([list(request.prompt_ids), request.max_new_tokens, request.ignore_eos, sorted(model.eos_ids)])
    place = cache_dir() / "references" / model.digest / f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"
    if place.is_file():
        return tuple(json.loads(place.read_text()))
    if not request.prompt_ids or request.max_kv_tokens > (model.max_positions or request.max_kv_tokens):
        return ()  # the engine will refuse it
    output = greedy(model, list(request.prompt_ids), request.max_new_tokens, request.ignore_eos)
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as half:
        half.write_text(json.dumps(output))
    return tuple(output)


@torch.inference_mode()
def gaps(model: Model, prompt_ids: list[int], output_ids: list[int]) -> list[float]:
    """The distance between the two best logits at each output position, in one forward pass."""
    ids = torch.tensor([[*prompt_ids, *output_ids[:-1]]], device=model.device)
    logits = model.hf(input_ids=ids, use_cache=False, logits_to_keep=len(output_ids)).logits[0].float()
    best = logits.topk(2).values
    difference: list[float] = (best[:, 0] - best[:, 1]).tolist()
    return difference


@torch.inference_mode()
def judge(model: Model, request: Request, got: list[int]) -> Verdict:
    """Compares with the recorded reference. A first difference is a `tie` where the token that came is, by its logit, nearly as
    good as the expected one."""
    if request.output_ids is None:
        return Verdict("unverified")
    expected = list(request.output_ids)
    if got == expected:
        return Verdict("exact")
    pairs = zip(got, expected, strict=False)
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(got), len(expected)))
    if position >= len(expected) or position >= len(got):
        return Verdict("wrong", position, _at(expected, position), _at(got, position))
    ids = torch.tensor([[*request.prompt_ids, *expected[:position]]], device=model.device)
    logits = model.hf(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1].float()
    gap = float((logits[expected[position]] - logits[got[position]]).abs())
    outcome = "tie" if gap < TIE_TOLERANCE[model.dtype] else "wrong"
    return Verdict(outcome, position, expected[position], got[position], gap, int((logits > logits[got[position]]).sum()) + 1)


def _at(ids: list[int], position: int) -> int | None:
    return ids[position] if position < len(ids) else None
