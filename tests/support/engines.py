"""Tiny models, requests written as p/g@t, and one call that runs an arm under every check. Shared by the tests.

p/g@t: prompt tokens / max_new_tokens / arrival second.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cbbench import plugins
from cbbench.clock import Clock, RealClock, VirtualClock
from cbbench.engine.executor import ModelExecutor, VirtualExecutor
from cbbench.engine.loop import Engine
from cbbench.kvcache.base import KVSpec
from cbbench.model.load import load
from cbbench.model.model import Model
from cbbench.model.reference import greedy
from cbbench.request import Request, State

# Large initial weights make the logits differ clearly, so that equal tokens mean something.
COMMON = {"vocab_size": 300, "num_hidden_layers": 2, "initializer_range": 0.4, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
LLAMA_LIKE = dict(COMMON, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=640)
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": dict(LLAMA_LIKE, model_type="llama"),
    "qwen2": dict(LLAMA_LIKE, model_type="qwen2"),
    "qwen3": dict(LLAMA_LIKE, model_type="qwen3", head_dim=24),
    "mistral": dict(LLAMA_LIKE, model_type="mistral", sliding_window=None),
    "olmo2": dict(LLAMA_LIKE, model_type="olmo2"),
    "gpt2": dict(COMMON, model_type="gpt2", n_embd=64, n_layer=2, n_head=4, n_positions=640),
}


SCHEDULERS, ATTENTIONS, CACHES = (plugins.names(kind) for kind in ("scheduler", "attn", "kv"))
ALL = [(s, a, k) for s in SCHEDULERS for a in ATTENTIONS for k in CACHES]
every_pairing = pytest.mark.parametrize(("scheduler", "attn", "kv"), ALL)


PLAIN: dict[int, Model] = {}  # by the id of the prepared one, which `_tiny` keeps


@cache
def _tiny(text: str, dtype: str, device: str, prepare: bool = True) -> Model:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(text)
        if not prepare:
            return load(f"random:{path}", dtype, device, prepare=False)
        made = load(f"random:{path}", dtype, device)
        PLAIN[id(made)] = _tiny(text, dtype, device, False)
        return made


def tiny(architecture: str = "llama", **changes: Any) -> Model:
    """A random model of a few thousand weights; the same object for the same arguments."""
    return tiny_as("float32", "cpu", architecture, **changes)


def tiny_as(dtype: str, device: str, architecture: str = "llama", **changes: Any) -> Model:
    return _tiny(json.dumps(CONFIGS[architecture] | changes, sort_keys=True), dtype, device)


def as_it_comes(architecture: str = "llama") -> Model:
    """The weights of `tiny()`, with nothing fused or packed: to be saved."""
    return plain(tiny(architecture))


def plain(model: Model) -> Model:
    """The same weights as they load: where references come from."""
    return PLAIN.get(id(model), model)


def requests(model: Model, spec: str, seed: int = 0, ignore_eos: bool = False) -> list[Request]:
    """`"3/8@0 5/8@0"` -> requests with random prompts and their reference tokens."""
    rng = random.Random(f"{seed} {spec}")
    made = []
    for index, word in enumerate(spec.split()):
        lengths, _, arrival = word.partition("@")
        num_prompt, num_new = (int(x) for x in lengths.split("/"))
        prompt = [rng.randrange(3, model.hf.config.vocab_size) for _ in range(num_prompt)]
        made.append(with_reference(model, Request(f"r{index}", tuple(prompt), num_new, float(arrival or 0), ignore_eos)))
    return made


REFERENCES: dict[Any, tuple[int, ...]] = {}  # each is generated once a test run


def with_reference(model: Model, request: Request) -> Request:
    asked = (list(request.prompt_ids), request.max_new_tokens, request.ignore_eos)
    key = str((model.digest, model.device, sorted(model.eos_ids), *asked))
    if key not in REFERENCES:
        REFERENCES[key] = tuple(greedy(plain(model), *asked)) if request.prompt_ids else ()
    return replace(request, output_ids=REFERENCES[key])


def default_budget(requests: list[Request], max_num_seqs: int) -> int:
    """Room for a full batch of the longest request, in whole blocks of 16."""
    return max_num_seqs * -(-max((r.max_kv_tokens for r in requests), default=1) // 16) * 16


def run(model: Model, requests: list[Request], *arm: str, **limits: Any) -> Engine:
    """Runs the engine of `build`, which takes the same arguments, to its end."""
    engine = build(model, requests, *arm, **limits)
    with model.serving():
        engine.run(requests)
    return engine


def build(model: Model, requests: list[Request], *arm: str, clock: Clock | None = None, poison: bool = True, **limits: Any) -> Engine:
    """One arm, checked after every step, on a pool filled with NaN and with permuted block ids.

    `arm` and `limits` as in `strategies`.
    """
    made = strategies(model.spec, requests, *arm, **limits)
    engine = Engine(made["scheduler"], made["kv"], ModelExecutor(model, made["attn"], made["kv"]), clock or RealClock(), check=True)
    if poison and hasattr(engine.cache, "pool"):
        engine.cache.pool.keys.fill_(torch.nan)
        engine.cache.pool.values.fill_(torch.nan)
    if poison and hasattr(engine.cache, "free_blocks"):
        random.Random(0).shuffle(engine.cache.free_blocks)
    return engine


SPEC = KVSpec(num_layers=2, num_kv_heads=2, head_dim=16, itemsize=4)


def run_virtual(requests: list[Request], *arm: str, step_s: float = 1.0, spec: KVSpec = SPEC, **limits: Any) -> Engine:
    """The same without a model: every step costs `step_s` on a virtual clock."""
    made = strategies(spec, requests, *arm, **limits)
    engine = Engine(made["scheduler"], made["kv"], VirtualExecutor(made["attn"], made["kv"], step_s, 0.0), VirtualClock(), check=True)
    engine.run(requests)
    return engine


def strategies(
    spec: KVSpec,
    requests: list[Request],
    scheduler: str = "continuous",
    attn: str = "varlen",
    kv: str = "paged",
    max_num_seqs: int = 4,
    budget_tokens: int | None = None,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The three of an arm. `options` has keys like `kv.block_size`; those of another strategy's options are not passed on."""
    classes = {kind: plugins.find(kind, name) for kind, name in {"scheduler": scheduler, "attn": attn, "kv": kv}.items()}
    chosen = {}
    for kind, cls in classes.items():
        given = {key.partition(".")[2]: value for key, value in (options or {}).items() if key.startswith(f"{kind}.")}
        chosen[kind] = cls.Options(**{key: value for key, value in given.items() if key in cls.Options.model_fields})
    longest = max((r.max_kv_tokens for r in requests), default=1)
    budget = default_budget(requests, max_num_seqs) if budget_tokens is None else budget_tokens
    return {
        "scheduler": classes["scheduler"](max_num_seqs, chosen["scheduler"]),
        "attn": classes["attn"](chosen["attn"]),
        "kv": classes["kv"](spec, budget, longest, chosen["kv"]),
    }


def assert_exact(engine: Engine, refused: Collection[str] = (), cancelled: Collection[str] = ()) -> None:
    """Every request that ran has the reference's tokens and ended with a reason, and the pool is completely free.
    Those named `refused` and `cancelled`, and no others, are that; a cancelled one keeps the tokens it had."""
    assert {s.request.id for s in engine.sequences if s.state is State.REFUSED} == set(refused)
    for sequence in engine.sequences:
        if sequence.state is State.REFUSED:
            continue
        if sequence.request.id in cancelled:
            assert sequence.state is State.CANCELLED and sequence.request.output_ids is not None
            assert tuple(sequence.output_ids) == sequence.request.output_ids[: len(sequence.output_ids)]
            continue
        assert sequence.state is State.FINISHED and sequence.reason in ("eos", "length"), sequence
        assert tuple(sequence.output_ids) == sequence.request.output_ids, sequence.request.id
    assert engine.cache.free_tokens() == engine.cache.capacity_tokens()
    assert not engine.cache.written


def num_preemptions(engine: Engine) -> int:
    return sum(sequence.num_preemptions for sequence in engine.sequences)


def step_kinds(engine: Engine) -> set[str]:
    """What kinds of steps took place: prefill, decode, and mixed where one step had both."""
    kinds = set()
    for step in engine.steps:
        found = {passed[0] for passed in step.passes}
        kinds.add("mixed" if len(found) > 1 else found.pop())
    return kinds
