"""`cbbench workload record`: prompts become token ids and reference tokens, once, and the file then runs exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import cbbench.model.reference
import cbbench.recording.recorder
from cbbench.model.load import load
from cbbench.model.reference import greedy
from tests.support.commands import command, read_lines, run_json, write_config, write_lines
from tests.support.engines import LLAMA_LIKE

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
SOURCE: list[dict[str, Any]] = [
    {"id": "text", "prompt": "the cat sat", "max_new_tokens": 6, "meta": {"kind": "plain"}},
    {"id": "chat", "messages": [{"role": "user", "content": "hello cat"}], "max_new_tokens": 5, "arrival_s": 1.5, "ignore_eos": True},
    {"id": "ids", "prompt_ids": [7, 8, 9], "max_new_tokens": 4},
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model saved with a word-level tokenizer that puts a beginning-of-sequence token first."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**LLAMA_LIKE)).save_pretrained(folder)
    words = ["<pad>", "<s>", "</s>", "<unk>", *["the", "cat", "sat", "hello", "user", "assistant", "on", "mat"]]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))
    write_lines(tmp_path / "source.jsonl", SOURCE)
    return tmp_path / "cache"


def record(tmp_path: Path, model: str, *words: str) -> Any:
    return command("workload", "record", tmp_path / "source.jsonl", "-o", tmp_path / "w.yaml", "--model", model, *words)


def test_a_recorded_workload_holds_ids_text_and_the_tokens_of_greedy_generation(model_dir: str, tmp_path: Path) -> None:
    ended = record(tmp_path, model_dir)
    assert (ended.code, ended.out) == (0, f"{tmp_path / 'w.yaml'}\n"), ended.err
    text, chat, ids = read_lines(tmp_path / "w.jsonl")
    assert (text["prompt"], text["prompt_ids"], text["meta"]) == ("the cat sat", [1, 4, 5, 6], {"kind": "plain"})
    assert chat["prompt"] == "user hello cat assistant" and "messages" not in chat
    assert (chat["prompt_ids"], chat["arrival_s"], chat["ignore_eos"]) == ([1, 8, 7, 5, 9], 1.5, True)
    assert (ids["prompt_ids"], "prompt" in ids, "ignore_eos" in ids) == ([7, 8, 9], False, False)
    model = load(model_dir)
    for line in (text, chat, ids):
        assert line["output_ids"] == greedy(model, line["prompt_ids"], line["max_new_tokens"], line.get("ignore_eos", False))
    reference = yaml.safe_load((tmp_path / "w.yaml").read_text())["reference"]
    assert reference == {"model": model_dir, "dtype": "float32", "digest": model.digest}


def test_it_runs_exactly_from_its_file_alone(model_dir: str, tmp_path: Path) -> None:
    record(tmp_path, model_dir)
    ended = run_json(tmp_path / "w.yaml", tmp_path, "--attn", "padded,varlen")
    assert ended.code == 0, ended.err
    assert [(row["exact_checked"], row["exact_matched"]) for row in ended.rows.values()] == [(3, 3)] * 2
    assert "do not apply" not in ended.err


def test_it_runs_from_where_it_lies_also_with_a_model_named_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded from one folder into another: the YAML's model path counts from the YAML."""
    write_config(tmp_path)
    write_lines(tmp_path / "source.jsonl", SOURCE[2:])
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    assert command("workload", "record", "source.jsonl", "-o", "sub/w.yaml", "--model", "random:tiny.json").code == 0
    ended = run_json(Path("sub/w.yaml"), tmp_path)
    assert ended.code == 0, ended.err
    assert [row["exact_matched"] for row in ended.rows.values()] == [1]


def test_interrupted_it_goes_on_where_it_was(model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[int]] = []

    def counted(model: Any, prompt_ids: list[int], *rest: Any) -> list[int]:
        if len(made) == 2 and stop:
            raise KeyboardInterrupt
        made.append(prompt_ids)
        return greedy(model, prompt_ids, *rest)

    monkeypatch.setattr(cbbench.model.reference, "greedy", counted)
    stop = True
    assert record(tmp_path, model_dir).code == 130
    assert len(made) == 2 and not (tmp_path / "w.jsonl").exists(), "no half workload"
    stop = False
    assert record(tmp_path, model_dir).code == 0
    assert made == [[1, 4, 5, 6], [1, 8, 7, 5, 9], [7, 8, 9]], "each was generated once"
    assert record(tmp_path, model_dir).code == 0 and len(made) == 3


def test_another_length_or_model_is_another_reference(model_dir: str, tmp_path: Path, cache: Path) -> None:
    write_lines(tmp_path / "source.jsonl", SOURCE[2:])
    record(tmp_path, model_dir)
    write_lines(tmp_path / "source.jsonl", [SOURCE[2] | {"max_new_tokens": 9}])
    record(tmp_path, model_dir)
    assert len(read_lines(tmp_path / "w.jsonl")[0]["output_ids"]) == 9
    record(tmp_path, write_config(tmp_path) + "@5")
    assert len([*cache.glob("references/*/*.json")]) == 3 and len([*cache.glob("references/*")]) == 2


def test_a_yaml_that_is_there_keeps_its_comments_and_settings(model_dir: str, tmp_path: Path) -> None:
    kept = "# why these prompts\ndescription: mine\nmodel: MODEL\nrequests: w.jsonl\nengine: {kv: cat}  # the baseline\n"
    kept = kept.replace("MODEL", model_dir)
    old = "reference:\n  model: other\n  dtype: float32\n  digest: '0'\n"
    (tmp_path / "w.yaml").write_text(kept + old + "measure: {rounds: 2}\n")
    assert record(tmp_path, model_dir).code == 0
    text = (tmp_path / "w.yaml").read_text()
    assert text.startswith(kept + "reference:\n") and "other" not in text and text.count("reference:") == 1
    assert text.endswith("measure: {rounds: 2}\nchat_template: some\n")
    first = text
    assert record(tmp_path, model_dir).code == 0 and (tmp_path / "w.yaml").read_text() == first, "again is the same file"
    assert [*run_json(tmp_path / "w.yaml", tmp_path).rows] == ["continuous+varlen+cat"]


def test_a_near_tie_is_named_with_request_position_and_gap(model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cbbench.recording.recorder, "gaps", lambda model, prompt, output: [1.0, 2e-4][: len(output)] if len(prompt) == 3 else []
    )
    ended = record(tmp_path, model_dir)
    said = [line for line in ended.err.splitlines() if "warning" in line]
    assert len(said) == 1 and all(words in said[0] for words in ("ids", "output token 1", "0.0002")), ended.err
    assert ended.code == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"id": "x", "messages": "hi", "max_new_tokens": 1}, ["messages: should be a valid list", "'hi'"]),
        ({"id": "x", "prompt_ids": [], "max_new_tokens": 1}, ["'x'", "the prompt has no tokens"]),
        ({"id": "x", "prompt_ids": [1] * 600, "max_new_tokens": 100}, ["'x'", "needs 699 positions", "has 640"]),
        ({"id": "x", "prompt_ids": [999], "max_new_tokens": 1}, ["'x'", "999", "vocabulary of 300"]),
        ({"id": "ids", "prompt_ids": [5], "max_new_tokens": 1}, ["'ids' was given before", "source.jsonl:3"]),
        ({"id": "x", "max_new_tokens": 1}, ["'x'", "neither prompt, messages, prompt_ids nor prompt_tokens"]),
        ({"id": "x", "prompt": "cat"}, ["max_new_tokens"]),
        ([1, 2], ["[1, 2]"]),
    ],
)
def test_a_source_line_that_cannot_be_recorded_is_named_and_nothing_is_written(
    model_dir: str, tmp_path: Path, line: Any, said: list[str]
) -> None:
    write_lines(tmp_path / "source.jsonl", [*SOURCE, line])
    mistake = record(tmp_path, model_dir).mistake
    assert mistake.startswith(f"{tmp_path / 'source.jsonl'}:4:"), mistake
    assert [words for words in said if words not in mistake] == [], mistake
    assert not (tmp_path / "w.yaml").exists() and not (tmp_path / "w.jsonl").exists()


def test_what_a_model_lacks_and_wrong_names_are_said_in_one_line(model_dir: str, tmp_path: Path) -> None:
    no_tokenizer = write_config(tmp_path)
    write_lines(tmp_path / "source.jsonl", SOURCE[:1])
    assert "'text' has text but the model has no tokenizer" in record(tmp_path, no_tokenizer).mistake
    write_lines(tmp_path / "source.jsonl", SOURCE[1:])
    assert "messages need a chat template, the model has none" in record(tmp_path, no_tokenizer).mistake
    write_lines(tmp_path / "source.jsonl", [])
    assert record(tmp_path, model_dir).mistake == f"{tmp_path / 'source.jsonl'}: no requests in it"
    words = ("workload", "record", tmp_path / "source.jsonl", "--model", model_dir, "-o")
    assert "should be NAME.yaml" in command(*words, tmp_path / "w.json").mistake
    assert "no such file" in command("workload", "record", tmp_path / "none.jsonl", "--model", model_dir, "-o", tmp_path / "w.yaml").mistake
    write_lines(tmp_path / "source.jsonl", SOURCE[2:])
    assert str(tmp_path / "nowhere") in command(*words, tmp_path / "nowhere" / "w.yaml").mistake
