"""Which architectures are served: exactly, or not at all and by name. The six of the parity matrix are elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from cbbench.errors import UserError
from tests.support.engines import COMMON, CONFIGS, LLAMA_LIKE, assert_exact, requests, run, tiny

EXPERTS = {"num_experts_per_tok": 2}
LEARNED = dict(COMMON, hidden_size=64, num_attention_heads=4, max_position_embeddings=640)
SERVED: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**LLAMA_LIKE, **EXPERTS, "num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16},
    "mixtral": {**LLAMA_LIKE, **EXPERTS, "num_local_experts": 4},
    "gemma3_text": {**LLAMA_LIKE, "head_dim": 16, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "cohere2": {**LLAMA_LIKE, "head_dim": 16, "sliding_window": 8},
    "granite": LLAMA_LIKE,
    "phi3": LLAMA_LIKE,
    "smollm3": LLAMA_LIKE,
    "gpt_neox": {**LEARNED, "intermediate_size": 96},
    "opt": {**LEARNED, "ffn_dim": 96, "word_embed_proj_dim": 64},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gemma2": ({**LLAMA_LIKE, "head_dim": 16}, "Gemma2ForCausalLM cannot be served: its layers ask for softcap"),
    "gpt_oss": (
        {**LLAMA_LIKE, **EXPERTS, "num_local_experts": 4, "head_dim": 16},
        "GptOssForCausalLM cannot be served: its layers ask for",
    ),
    "stablelm": (LLAMA_LIKE, "StableLmForCausalLM cannot be served: it does not take our attention"),
    "falcon": ({**COMMON, "hidden_size": 64, "num_attention_heads": 4}, "FalconForCausalLM cannot be served: 0 of its 2 layers"),
}
ARMS = [("continuous", "varlen", "paged"), ("static", "padded", "cat"), ("chunked", "serial", "preallocated")]


@pytest.mark.parametrize("architecture", SERVED)
def test_a_served_architecture_is_exact(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIGS, architecture, {**SERVED[architecture], "model_type": architecture})
    model = tiny(architecture)
    asked = requests(model, "1/4 17/9 5/30 30/3 8/1")
    for arm in ARMS:
        engine = run(model, asked, *arm, options={"scheduler.max_num_batched_tokens": 7})
        assert_exact(engine)
    assert len({token for sequence in engine.sequences for token in sequence.output_ids}) > 4, "not one token over and over"


@pytest.mark.parametrize("architecture", REFUSED)
def test_an_architecture_that_would_be_wrong_is_refused_by_name(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, said = REFUSED[architecture]
    monkeypatch.setitem(CONFIGS, architecture, {**config, "model_type": architecture})
    with pytest.raises(UserError) as caught:
        tiny(architecture)
    assert said in str(caught.value)
