"""The folder in which peers of another interpreter find the model: the same weights, written once, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cbbench.model.load import load
from cbbench.peers._child import model_folder
from tests.support.commands import write_config
from tests.support.engines import LLAMA_LIKE, as_it_comes


@pytest.mark.parametrize("changed", [{}, {"tie_word_embeddings": True}], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_model_is_written_once_and_is_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], dtype: str
) -> None:
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))
    model = load(write_config(tmp_path, **LLAMA_LIKE, model_type="llama", **changed), dtype, prepare=False)
    calls: list[Any] = []

    def give() -> Any:
        calls.append(1)
        return model

    folder = model_folder(model.digest, give)
    assert model_folder(model.digest, give) == folder and len(calls) == 1
    again, ids = load(str(folder), dtype, prepare=False), torch.tensor([[5, 9, 200, 31]])
    assert again.digest == model.digest and again.eos_ids == model.eos_ids
    with torch.inference_mode():
        assert torch.equal(again.hf(ids).logits, model.hf(ids).logits)
    tied = again.hf.get_output_embeddings().weight is again.hf.get_input_embeddings().weight
    assert tied is bool(changed) and not [*folder.parent.glob(".*")]


def test_a_folder_that_was_not_finished_is_not_taken_for_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))
    model = as_it_comes()

    class Torn:
        class hf:
            @staticmethod
            def save_pretrained(folder: Path) -> None:
                model.hf.save_pretrained(folder)
                (folder / "model.safetensors").write_bytes(b"half")
                (folder / "generation_config.json").write_text("{")
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_folder(model.digest, Torn)
    folder = model_folder(model.digest, lambda: model)
    assert load(str(folder), prepare=False).digest == model.digest and not [*folder.parent.glob(".*")]


def test_of_two_that_write_the_model_at_once_both_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))

    def give(another: Callable[[], Any] = as_it_comes) -> Any:
        model_folder("d", another)  # somebody else is faster
        return as_it_comes()

    folder = model_folder("d", give)
    assert load(str(folder), prepare=False).digest == as_it_comes().digest and [path.name for path in folder.parent.iterdir()] == ["hf"]
