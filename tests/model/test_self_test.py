"""What is tried at load: a model is served right, or refused by name; what is prepared computes the same, or is not prepared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cbbench.errors import UserError
from cbbench.model import fused_layers, self_test
from cbbench.model import load as loading
from cbbench.model.load import prepare_layers
from cbbench.model.model import digest
from cbbench.model.reference import cached_greedy
from cbbench.request import Request
from tests.support.engines import CONFIGS, LLAMA_LIKE, assert_exact, plain, requests, run, tiny, tiny_as

ROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 32}
PHI3 = {**LLAMA_LIKE, "model_type": "phi3", "rope_parameters": {**ROPE, "rope_theta": 10000.0}, "original_max_position_embeddings": 32}


@pytest.fixture(autouse=True)
def architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIGS, "phi3", PHI3)
    monkeypatch.setitem(CONFIGS, "granite", {**LLAMA_LIKE, "model_type": "granite"})
    glm4 = {"model_type": "glm4", "head_dim": 16, "partial_rotary_factor": 0.5, "pad_token_id": 0}
    monkeypatch.setitem(CONFIGS, "glm4", {**LLAMA_LIKE, **glm4})


def test_a_prompt_is_longer_than_twice_every_switch() -> None:
    model = tiny("mistral", sliding_window=16)
    assert self_test.switches(model.hf.config)["sliding_window"] == 16
    assert [len(ids) for ids in model.tried.prompts] == [36, 5]


@pytest.mark.parametrize("arm", [("continuous", "varlen", "paged"), ("static", "padded", "cat"), ("chunked", "serial", "preallocated")])
def test_layers_that_turn_a_part_of_each_head_are_exact_and_keep_their_own_way(arm: tuple[str, str, str]) -> None:
    """The shortened layer read cosines and sines behind their end."""
    model = tiny("glm4")
    assert model.prepared is not None and model.prepared["layers"] == 0
    assert_exact(run(model, requests(model, "5/9@0 20/12@0 1/4@0"), *arm, options={"scheduler.max_num_batched_tokens": 7}))


@pytest.mark.parametrize("arm", [("continuous", "varlen", "paged"), ("static", "padded", "cat"), ("chunked", "serial", "preallocated")])
def test_longrope_is_served_up_to_its_switch_and_refused_beyond(arm: tuple[str, str, str]) -> None:
    """Beyond it a long request would change what the short ones beside it get."""
    model = tiny("phi3")
    assert model.max_positions == 32
    made = requests(model, "5/9@0 20/12@0 3/28@0")
    beyond = Request("beyond", (5,) * 30, 20)
    engine = run(model, [*made, beyond], *arm, options={"scheduler.max_num_batched_tokens": 7})
    assert_exact(engine, refused={"beyond"})
    assert "32" in str(engine.sequences[-1].reason)


def test_a_window_that_is_ignored_is_seen_in_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test itself: the same model, served without its window."""
    model = plain(tiny("mistral", sliding_window=8))
    assert self_test.differs(model.hf, model.spec, model.tried) is None
    from cbbench.model import attention_interface

    real = attention_interface.LayerCall
    monkeypatch.setattr(attention_interface, "LayerCall", lambda layer, scale, window: real(layer, scale, None))
    off = self_test.differs(model.hf, model.spec, model.tried)
    assert off is not None and off > 0.05


def test_a_length_that_is_too_long_to_try_is_refused_unless_it_is_known_or_never_reached() -> None:
    base = tiny()
    hf: Any = plain(base).hf
    nothing: set[int | None] = {None}
    cases: list[tuple[str, int, set[int | None], bool]] = [
        ("attention_chunk_size", 4096, nothing, False),
        ("attention_chunk_size", 100_000, nothing, True),
        ("keep_window_size", 2000, nothing, False),
        ("sliding_window", 4096, {4096, None}, True),
        ("sliding_window", 4096, nothing, False),
    ]
    for key, value, windows, is_served in cases:
        before = hf.config.max_position_embeddings
        setattr(hf.config, key, value)
        hf.config.max_position_embeddings = 8192
        try:
            if is_served:
                self_test.as_it_comes(hf, windows)
            else:
                with pytest.raises(UserError, match=f"changes at {key} {value}, too long a length to try"):
                    self_test.as_it_comes(hf, windows)
        finally:
            delattr(hf.config, key)
            hf.config.max_position_embeddings = before


def test_layers_that_would_compute_something_else_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole model is tried once more after it was prepared."""
    fuse = fused_layers.fuse

    def broken(hf: Any) -> dict[str, int]:
        counts = fuse(hf)
        hf.lm_head.run.bias[:] += torch.arange(len(hf.lm_head.run.bias)).numpy()
        return counts

    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    model = loading.load(f"random:{tmp_path / 'config.json'}", prepare=False)
    monkeypatch.setattr(fused_layers, "fuse", broken)
    asked = Request("r", (5, 6, 7), 12, 0.0, True)
    made = [replace(asked, output_ids=cached_greedy(model, asked))]
    prepare_layers(model)
    assert model.prepared is None and "off by" in str(model.unprepared)
    assert_exact(run(model, made))


def test_references_are_never_asked_of_prepared_layers() -> None:
    with pytest.raises(AssertionError, match="before its layers are prepared"):
        cached_greedy(tiny(), Request("r", (5, 6), 3))


def test_the_digest_is_of_the_whole_configuration_and_of_nothing_that_does_not_matter() -> None:
    hf: Any = plain(tiny("granite")).hf
    before = digest(hf)
    for key, value in (("residual_multiplier", 0.5), ("attention_multiplier", 0.7), ("logits_scaling", 3.0), ("rms_norm_eps", 1e-3)):
        old = getattr(hf.config, key)
        setattr(hf.config, key, value)
        assert digest(hf) != before, key
        setattr(hf.config, key, old)
    assert digest(hf) == before
    for key, value in (("eos_token_id", 7), ("architectures", ["X"]), ("use_cache", False), ("_name_or_path", "elsewhere")):
        old = getattr(hf.config, key, None)
        setattr(hf.config, key, value)
        assert digest(hf) == before, key
        setattr(hf.config, key, old)


def test_half_precision_is_tried_too() -> None:
    model = tiny_as("bfloat16", "cpu")
    found = self_test.served(model.hf, model.spec, model.tried.prompts)
    assert self_test.difference(found, model.tried, torch.bfloat16) < 0.1
    assert self_test.difference([one.flip(-1) for one in found], model.tried, torch.bfloat16) > 0.3
