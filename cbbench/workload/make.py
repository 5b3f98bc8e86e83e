"""`cbbench workload make`: a workload drawn from distributions of lengths, arrivals and shared prefixes. Seeded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cbbench.errors import UserError
from cbbench.request import Request
from cbbench.workload.arrivals import Arrivals
from cbbench.workload.distributions import Distribution, Lengths
from cbbench.workload.prompts import PromptRecipe
from cbbench.workload.rows import RequestRow
from cbbench.workload.sharing import TAIL, PrefixTree
from cbbench.workload.writer import update_yaml, write_rows


@dataclass(frozen=True)
class Prefixes:
    """`share` of the requests begin with one of `num` prefixes of `tokens`. A prompt's length counts its prefix; a
    shorter prompt is the beginning of one."""

    share: float = 0.0
    tokens: int = 0
    num: int = 1


@dataclass(frozen=True)
class Wanted:
    num_requests: int
    prompt: Distribution | None  # None: as in `like`
    output: Distribution | None
    like: list[Request] | None  # lengths drawn in pairs from these
    arrivals: Arrivals
    prefixes: Prefixes
    seed: int


def make(wanted: Wanted, target: Path, model: str, how: dict[str, Any]) -> None:
    """Writes TARGET (.yaml, of which all but the made part stays) and the .jsonl beside it; `how` is kept in it."""
    rng = np.random.default_rng(wanted.seed)
    prompt, output = _lengths(wanted, rng)
    prefixes = wanted.prefixes
    shared = rng.random(wanted.num_requests) < prefixes.share
    which = rng.integers(0, prefixes.num, wanted.num_requests)
    recipe = PromptRecipe(seed=wanted.seed, namespace="made", block_tokens=prefixes.tokens or None)
    write_rows(target, _rows(recipe, prompt.tolist(), output.tolist(), [int(p) if s else None for p, s in zip(which, shared, strict=True)]))
    blocks = {
        "model": model, "reference": None, "requests": target.with_suffix(".jsonl").name, "arrivals": wanted.arrivals.describe(),
        "prompts": recipe.model_dump(exclude_none=True), "source": {"made": how},
    }  # fmt: skip
    update_yaml(target, {"description": f"{wanted.num_requests} requests, made"}, blocks)


def _lengths(wanted: Wanted, rng: np.random.Generator) -> tuple[Lengths, Lengths]:
    num = wanted.num_requests
    pairs = None
    if wanted.like is not None:
        pairs = np.array([(len(r.prompt_ids), r.max_new_tokens) for r in wanted.like if len(r.prompt_ids)], np.int64)
        pairs = pairs[rng.integers(0, len(pairs), num)]
    drawn = [d.draw(rng, num) if d is not None else None for d in (wanted.prompt, wanted.output)]
    prompt, output = (own if own is not None else pairs[:, axis] if pairs is not None else None for axis, own in enumerate(drawn))
    if prompt is None or output is None:
        raise UserError("make needs --prompt-tokens and --output-tokens, or --like WORKLOAD for what is left out")
    return prompt, output


def _rows(recipe: PromptRecipe, prompt: list[int], output: list[int], prefix: list[int | None]) -> Iterator[RequestRow]:
    tree = PrefixTree(recipe)
    for index, (prompt_tokens, output_tokens, block) in enumerate(zip(prompt, output, prefix, strict=True)):
        blocks = None
        if block is not None and recipe.block_tokens:
            blocks = tree.place("", [block, TAIL + index] if prompt_tokens > recipe.block_tokens else [block])
        yield RequestRow(id=str(index), prompt_tokens=prompt_tokens, blocks=blocks, max_new_tokens=output_tokens, ignore_eos=True)
