"""What the scripts of `openvino` and `vllm` ask of their engines, on stand-ins that have only the calls that these scripts make.

Whether the real ones understand it, a run by hand shows: make peer-openvino, then --peer-python.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cbbench.clock import RealClock
from cbbench.peers._child import ChildPeer
from cbbench.peers.base import Setting
from cbbench.peers.openvino import OpenVino
from cbbench.peers.vllm import Vllm
from cbbench.request import Request
from cbbench.runs.config import build_peers
from tests.support.commands import read_lines
from tests.support.engines import as_it_comes, requests, tiny
from tests.support.fake_engines import FILES

SPEC = "5/9 600/4 6/7"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / "packages" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "packages" / name).write_text(text)
    (tmp_path / "packages" / "optimum" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_NOTES", str(tmp_path / "notes.jsonl"))
    monkeypatch.setenv("FAKE_KNOWN", str(tmp_path / "known.json"))
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    made = requests(tiny(), SPEC, ignore_eos=True)
    (tmp_path / "known.json").write_text(json.dumps({str(list(r.prompt_ids)): r.output_ids for r in made}))
    return tmp_path


def notes(place: Path, key: str) -> list[dict[str, Any]]:
    return [note for note in read_lines(place / "notes.jsonl") if key in note]


def asked() -> tuple[list[Request], frozenset[int]]:
    """The third token of the first is an end of sequence, which counts there alone."""
    first, *rest = requests(tiny(), SPEC, ignore_eos=True)
    assert first.output_ids is not None
    return [replace(first, ignore_eos=False), *rest], frozenset({first.output_ids[2]})


def answers(cls: type[ChildPeer], runs: int = 1, options: dict[str, Any] | None = None, **changed: Any) -> list[tuple[int, ...]]:
    """Of the last of some runs on one engine."""
    made, eos_ids = asked()
    setting = Setting(3, "float32", "cpu", 5, as_it_comes, tiny().digest, eos_ids, tiny().spec.bytes_per_token)
    peer = cls(replace(setting, **changed), cls.Options(**(options or {})))
    try:
        peer.start(made)
        for _ in range(runs):
            peer.forget_prompts()
            found = peer.run(made, RealClock())
    finally:
        peer.stop()
    for answer in found:
        assert answer.failed is None and len(answer.token_times_s or []) == len(answer.output_ids)
    return [tuple(answer.output_ids) for answer in sorted(found, key=lambda answer: answer.index)]


def expected() -> list[tuple[int, ...]]:
    first, *rest = (request.output_ids or () for request in asked()[0])
    return [first[:3], *rest]


@pytest.mark.parametrize("cls", [OpenVino, Vllm])
def test_tokens_come_as_the_engine_makes_them_several_a_step_and_run_after_run_under_new_names(place: Path, cls: type[ChildPeer]) -> None:
    assert answers(cls, runs=2) == expected()
    numbers = [str(note["number"]) for note in notes(place, "number")]
    assert len(numbers) == 6 == len({*numbers})


def test_openvino_runs_the_exported_model_in_the_runs_precision_with_memory_for_a_full_batch(place: Path) -> None:
    for dtype, precision in (("float32", "f32"), ("bfloat16", "bf16"), ("float16", "f16")):
        answers(OpenVino, dtype=dtype)
        note = notes(place, "scheduling")[-1]
        hints = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision, "INFERENCE_NUM_THREADS": 5}
        assert (note["device"], note["hints"], note["model"]) == ("CPU", hints, "whole")
    blocks = note["scheduling"].pop("num_kv_blocks")
    assert note["scheduling"] == {"max_num_seqs": 3, "max_num_batched_tokens": 600, "enable_prefix_caching": False}
    assert blocks >= 3 * -(-(600 + 4) // 32), "blocks of 32 for three of the longest"
    assert notes(place, "exported") == [{"exported": {"export": True, "compile": False, "load_in_8bit": False}, "has_weights": True}], (
        "once, from our weights, and not in 8 bits"
    )


def test_openvino_is_asked_for_greedy_tokens_and_for_an_end_of_sequence_where_it_counts(place: Path) -> None:
    answers(OpenVino)
    eos = sorted(asked()[1])
    ends, *forced = [note["config"] for note in notes(place, "number")]
    assert ends == {
        "max_new_tokens": 9, "do_sample": False, "ignore_eos": False, "stop_token_ids": eos, "include_stop_str_in_output": True,
    }  # fmt: skip
    assert forced == [{"max_new_tokens": n, "do_sample": False, "ignore_eos": True, "stop_token_ids": []} for n in (4, 7)]


def test_an_export_that_did_not_end_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAILS", "1")
    with pytest.raises(RuntimeError, match="openvino: OSError: no space left"):
        answers(OpenVino)
    monkeypatch.delenv("FAKE_FAILS")
    assert answers(OpenVino) == expected()
    assert len(notes(place, "exported")) == 2 and [note["model"] for note in notes(place, "scheduling")] == ["whole"]


def test_a_request_that_openvino_drops_for_want_of_memory_is_no_answer(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its few tokens would be called wrong."""
    monkeypatch.setenv("FAKE_IGNORES", "1")
    with pytest.raises(RuntimeError, match=r"^openvino: .*IGNORED"):
        answers(OpenVino)


def test_vllm_runs_our_weights_in_one_process_with_its_own_defaults(place: Path) -> None:
    answers(Vllm)
    (note,) = notes(place, "llm")
    (folder,) = (place / "cache" / "peers").glob("*/hf")
    assert note["llm"] == {
        "model": str(folder), "skip_tokenizer_init": True, "dtype": "float32", "max_num_seqs": 3, "max_num_batched_tokens": 604,
        "max_model_len": 604, "enforce_eager": False, "enable_prefix_caching": True, "generation_config": "vllm", "disable_log_stats": True,
    }  # fmt: skip
    assert (note["in_process"], note["gib"]) == (True, "1") and [n["threads"] for n in notes(place, "threads")] == [5]


def test_vllm_gets_whole_gib_for_a_full_batch_of_the_longest(place: Path) -> None:
    answers(Vllm, bytes_per_token=1 << 20)
    assert notes(place, "llm")[-1]["gib"] == "2", "3 x 604 MiB"


def test_vllm_is_asked_for_greedy_tokens_and_for_an_end_of_sequence_where_it_counts(place: Path) -> None:
    answers(Vllm)
    eos = sorted(asked()[1])
    same = {"temperature": 0.0, "detokenize": False, "output_kind": "delta"}
    assert [note["config"] for note in notes(place, "number")] == [
        same | {"max_tokens": 9, "ignore_eos": False, "stop_token_ids": eos},
        same | {"max_tokens": 4, "ignore_eos": True, "stop_token_ids": None},
        same | {"max_tokens": 7, "ignore_eos": True, "stop_token_ids": None},
    ]


def test_a_vllm_built_for_another_device_is_no_row_of_this_table(place: Path) -> None:
    with pytest.raises(RuntimeError, match="this vllm is a build for cpu, the run is on cuda"):
        answers(Vllm, device="cuda")


def test_what_is_not_vllms_default_is_an_option_and_stands_in_the_label(place: Path) -> None:
    answers(Vllm, options={"eager": True, "prefix_cache": False})
    (note,) = notes(place, "llm")
    assert (note["llm"]["enforce_eager"], note["llm"]["enable_prefix_caching"]) == (True, False)
    labels = [build_peers("vllm", sets, ["vllm=python"], 3)[0].label for sets in ([], ["peer.eager=true"])]
    assert labels == ["vllm", "vllm(eager=True)"]


def test_vllm_begins_each_round_with_an_empty_prefix_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(Vllm, runs=2)
    order = [next(iter(note.keys() & {"forgot", "number"}), None) for note in read_lines(place / "notes.jsonl")]
    assert [what for what in order if what] == ["forgot", *["number"] * 3] * 2
    monkeypatch.setenv("FAKE_KEEPS", "1")
    with pytest.raises(RuntimeError, match="vllm: RuntimeError: vllm did not empty its prefix cache"):
        answers(Vllm)
