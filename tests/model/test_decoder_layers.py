"""Decoder layers with a short way through: taken where it computes the same, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

from cbbench.attention.base import ForwardPass
from cbbench.model import attention_interface
from cbbench.model.decoder_layers import FusedDecoderLayer
from cbbench.model.model import Model
from cbbench.plan import Row
from cbbench.request import Request
from tests.support.engines import CONFIGS, assert_exact, requests, run, tiny

SHORT = ["llama", "qwen2", "qwen3", "mistral"]


@pytest.mark.parametrize("architecture", CONFIGS)
def test_layers_of_the_llama_form_are_replaced(architecture: str) -> None:
    model = tiny(architecture)
    replaced = [module for module in model.hf.modules() if isinstance(module, FusedDecoderLayer)]
    assert model.prepared is not None
    assert len(replaced) == model.prepared["layers"] == (2 if architecture in SHORT else 0)


@pytest.mark.parametrize("architecture", SHORT)
def test_the_short_way_serves_and_the_long_one_answers_the_reference(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, long_ways = tiny(architecture), 0

    def counted(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal long_ways
            long_ways += 1
            return forward(*args, **kwargs)

        return call

    made = requests(model, "5/9@0 30/7@0 1/4@0")
    for short in model.hf.model.layers:
        monkeypatch.setattr(short.layer, "forward", counted(short.layer.forward))
    assert_exact(run(model, made, "continuous", "varlen", "paged", max_num_seqs=3))
    assert_exact(run(model, made, "static", "padded", "cat", max_num_seqs=3))
    assert long_ways == 0
    model.hf(torch.tensor([[5, 9, 200]]), use_cache=False)
    assert long_ways == 2


def halved_residual(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x, **kwargs: forward(x, **kwargs) - x / 2)


def pairs_turned_side_by_side(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other layout of rotary positions: even dims against odd ones."""
    monkeypatch.setattr(modeling_llama, "rotate_half", lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2))


def a_bound_on_large_values(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x, **kwargs: forward(x, **kwargs).clamp(-20, 20))


def another_epsilon(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer.post_attention_layernorm, "variance_epsilon", 0.5)


def more_than_a_tensor(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x, **kwargs: (forward(x, **kwargs), None))


def an_argument_more(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "forward", lambda x, routing, **kwargs: x)


def nothing(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pass


CHANGES = [halved_residual, pairs_turned_side_by_side, a_bound_on_large_values, another_epsilon, more_than_a_tensor, an_argument_more]


@pytest.mark.parametrize("change", [nothing, *CHANGES], ids=lambda change: change.__name__)
def test_a_layer_that_computes_something_else_stays(change: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    layer = model.hf.model.layers[0].layer
    change(layer, monkeypatch)
    angles = torch.rand(1, 6, layer.self_attn.head_dim // 2, generator=torch.Generator().manual_seed(0)).repeat(1, 1, 2) * 6
    asked = {"position_embeddings": (angles.cos(), angles.sin()), "attention_mask": None}
    with attention_interface.serving(model.hf), torch.inference_mode():
        assert (FusedDecoderLayer.of(layer, asked) is None) == (change is not nothing)


def logits_of(model: Model, made: list[Request], *arm: str, **limits: Any) -> dict[tuple[str, int], torch.Tensor]:
    """What every sampled token was chosen from, by request and position."""
    found: dict[tuple[str, int], torch.Tensor] = {}
    rows: list[Row] = []

    def forward(forward_pass: ForwardPass, *rest: Any) -> list[int]:
        rows[:] = [row for row in forward_pass.rows if row.samples]
        return Model.forward(model, forward_pass, *rest)

    def greedy(ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor, step: attention_interface.Step) -> torch.Tensor:
        logits = model.hf(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep, cbbench=step).logits
        found.update({(row.sequence.request.id, row.stop): line.clone() for row, line in zip(rows, logits[0], strict=True)})
        return logits.argmax(-1)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(model, "forward", forward)
        patched.setattr(model, "greedy", greedy)
        assert_exact(run(model, made, *arm, **limits))
    return found


@pytest.mark.parametrize("architecture", SHORT)
def test_logits_are_the_same_bits_alone_in_a_batch_and_in_chunks(architecture: str) -> None:
    model = tiny(architecture)
    made = requests(model, "5/9@0 70/7@0 1/12@0 33/5@0 17/8@0")
    alone = logits_of(model, made, "static", "varlen", "preallocated", max_num_seqs=1)
    batch = logits_of(model, made, "continuous", "varlen", "paged", max_num_seqs=5)
    chunks = logits_of(model, made, "chunked", "varlen", "cat", max_num_seqs=3, options={"scheduler.max_num_batched_tokens": 7})
    assert len(alone) >= 30 and alone.keys() == batch.keys() == chunks.keys()
    assert all(torch.equal(alone[key], batch[key]) and torch.equal(alone[key], chunks[key]) for key in alone)
