"""`cbbench workload record`: prompts of any kind become token ids with the reference tokens of plain greedy generation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import cbbench.cli.workload
import cbbench.model.reference
import cbbench.recording.recorder
from tests.support.commands import SOURCE, Ended, command, read_lines, run_json, write_config, write_lines
from tests.support.engines import as_it_comes, tiny, tiny_as

TEMPLATE = "{% for m in messages %}{{ m.role + ' ' + m.content + ' ' }}{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
HELLO = [{"role": "user", "content": "w7 w8"}]
BRIEF = {"role": "system", "content": "w3"}


def chatty(folder: Path, template: str | None = TEMPLATE) -> Path:
    """A tiny model directory as a hub would give it: w7 is token 7, and a chat template where asked."""
    words = {"assistant": 290, "user": 291, "system": 292}
    text = Tokenizer(models.WordLevel({f"w{i}": i for i in range(290)} | words, "w0"))
    text.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=text, unk_token="w0")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    as_it_comes().hf.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chatty(tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CBBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def record(source: Path, *words: str | Path) -> Ended:
    return command("workload", "record", source, *words)


def recorded(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What stands in a workload: its YAML and its lines."""
    said = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    return said, read_lines(path.parent / said["requests"])


def assert_runs_exact(path: Path, tmp_path: Path, num: int) -> None:
    ended = run_json(path, tmp_path)
    (row,) = ended.rows.values()
    assert (ended.code, row["exact_checked"], row["exact_matched"]) == (0, num, num), ended.err


def test_a_text_file_becomes_a_workload_that_runs_exact(tmp_path: Path, hub: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"w5 w6 w7\r\n\r\nw9 nonsense\r\n")
    ended = record(tmp_path / "p.txt", "-o", tmp_path / "w.yaml", "--model", hub, "--max-new-tokens", "6")
    assert (ended.code, ended.out) == (0, f"{tmp_path / 'w.yaml'}\n"), ended.err
    said, rows = recorded(tmp_path / "w.yaml")
    assert [(row["id"], row["prompt"], row["prompt_ids"]) for row in rows] == [
        ("line-1", "w5 w6 w7", [5, 6, 7]),
        ("line-3", "w9 nonsense", [9, 0]),
    ]
    assert all(1 <= len(row["output_ids"]) <= 6 == row["max_new_tokens"] for row in rows)
    assert (said["model"], said["arrivals"], said["chat_template"]) == (str(hub), "offline", "none")
    assert said["reference"] == {"model": str(hub), "dtype": "float32", "digest": tiny().digest}
    assert_runs_exact(tmp_path / "w.yaml", tmp_path, 2)


@pytest.mark.parametrize(
    ("rows", "words", "ids", "kind"),
    [
        ([{"messages": HELLO}], [], [[291, 7, 8, 290]], "all"),
        ([{"prompt": "w7 w8"}], ["--chat"], [[291, 7, 8, 290]], "all"),
        ([{"prompt": "w7 w8"}, {"messages": [BRIEF, *HELLO]}], [], [[7, 8], [292, 3, 291, 7, 8, 290]], "some"),
        ([{"prompt": "w7"}, {"prompt_ids": [3, 4]}], ["--chat"], [[291, 7, 290], [3, 4]], "some"),
        ([{"prompt": "w7 w8"}], [], [[7, 8]], "none"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_the_chat_template_makes_messages_into_text_and_it_is_said_of_which(
    tmp_path: Path, hub: Path, suffix: str, rows: list[Any], words: list[str], ids: list[Any], kind: str
) -> None:
    source = tmp_path / f"p.{suffix}"
    source.write_text(json.dumps(rows) if suffix == "json" else "\n".join(map(json.dumps, rows)))
    assert record(source, "-o", tmp_path / "w.yaml", "--model", hub, "--max-new-tokens", "4", *words).code == 0
    said, lines = recorded(tmp_path / "w.yaml")
    assert (said["chat_template"], [line["prompt_ids"] for line in lines]) == (kind, ids)
    assert all("messages" not in line and (line.get("prompt") or "").split()[:1] != ["w0"] for line in lines)
    if kind == "all":
        assert lines[0]["prompt"] == "user w7 w8 assistant", "the text that was fed"
    assert_runs_exact(tmp_path / "w.yaml", tmp_path, len(rows))


IN_PLACE = """# what this is
description: mine
model: random:tiny.json   # random weights
arrivals: closed
requests: lines.jsonl
# how prompts are made
prompts: {seed: 3, namespace: mine, block_tokens: 16}
engine: {max_num_seqs: 2}
"""
HASHED = [
    {"id": "a", "prompt_tokens": 40, "blocks": [1, 2, 3], "max_new_tokens": 6, "ignore_eos": True, "meta": {"k": [1]}},
    {"id": "b", "prompt_tokens": 37, "blocks": [1, 2, 4], "max_new_tokens": 4, "after": "a", "think_s": 0.001},
    {"id": "c", "prompt_tokens": 9, "max_new_tokens": 4, "scope": "s", "arrival_s": 0.25},
]


def test_a_workload_recorded_in_place_keeps_all_it_said_and_runs_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    write_lines(tmp_path / "lines.jsonl", HASHED)
    (tmp_path / "w.yaml").write_text(IN_PLACE)
    ended = record(Path("w.yaml"), "--model", "random:tiny.json")
    assert (ended.code, ended.out) == (0, "w.yaml\n"), ended.err
    text = (tmp_path / "w.yaml").read_text()
    assert [line for line in IN_PLACE.splitlines() if line not in text.splitlines()] == ["requests: lines.jsonl"]
    said, rows = recorded(tmp_path / "w.yaml")
    assert (said["requests"], said["reference"]["digest"]) == ("w.jsonl", tiny().digest)
    assert [{key: value for key, value in row.items() if key != "output_ids"} for row in rows] == HASHED, "no prompt_ids were added"
    assert all(row["output_ids"] for row in rows) and read_lines(tmp_path / "lines.jsonl") == HASHED
    assert_runs_exact(tmp_path / "w.yaml", tmp_path, 3)
    assert record(Path("w.yaml"), "--model", "random:tiny.json").code == 0
    assert (tmp_path / "w.yaml").read_text() == text and recorded(tmp_path / "w.yaml")[1] == rows, "once more changes nothing"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_workload_is_recorded_on_its_own_model_in_its_own_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(cbbench.cli.workload, "EMBEDDED", "no-such-model")
    write_config(tmp_path)
    write_lines(tmp_path / "lines.jsonl", SOURCE[:1])
    (tmp_path / "w.yaml").write_text(f"requests: lines.jsonl\nmodel: random:tiny.json\ndtype: {dtype}\n")
    ended = record(tmp_path / "w.yaml")
    assert ended.code == 0, ended.err
    said, _ = recorded(tmp_path / "w.yaml")
    assert said["model"] == "random:tiny.json"
    assert said["reference"] == {"model": "random:tiny.json", "dtype": dtype, "digest": tiny_as(dtype, "cpu").digest}


def test_a_workload_recorded_on_another_model_names_that_one_and_runs_exact(tmp_path: Path) -> None:
    write_lines(tmp_path / "lines.jsonl", SOURCE[:1])
    (tmp_path / "w.yaml").write_text("requests: lines.jsonl\nmodel: random:other.json\n")
    write_config(tmp_path, "other")
    assert record(tmp_path / "w.yaml", "--model", f"{write_config(tmp_path)}@5").code == 0
    assert_runs_exact(tmp_path / "w.yaml", tmp_path, 1)


ROW = "id: {}\n{}  prompt_ids: [{}]\n{}  max_new_tokens: 3\n"
LISTS = {
    "flow": "requests: [{id: a, prompt_ids: [5], max_new_tokens: 3},\n  {id: b, prompt_ids: [6], max_new_tokens: 3}]\n",
    "indented": f"requests:\n  - {ROW.format('a', '  ', 5, '  ')}\n  # the second\n  - {ROW.format('b', '  ', 6, '  ')}",
    "blank line": f"requests:\n- {ROW.format('a', '', 5, '')}\n- {ROW.format('b', '', 6, '')}",
    "comment": f"requests:\n- {ROW.format('a', '', 5, '')}# the second\n- {ROW.format('b', '', 6, '')}",
    "bracket at the margin": "requests: [\n{id: a, prompt_ids: [5], max_new_tokens: 3},\n{id: b, prompt_ids: [6], max_new_tokens: 3}\n]\n",
    "quoted key": '"requests": [{id: a, prompt_ids: [5], max_new_tokens: 3}, {id: b, prompt_ids: [6], max_new_tokens: 3}]\n',
    "byte order mark": "\ufeffrequests: [{id: a, prompt_ids: [5], max_new_tokens: 3}, {id: b, prompt_ids: [6], max_new_tokens: 3}]\n",
    "all in one": "{requests: [{id: a, prompt_ids: [5], max_new_tokens: 3},\n"
    " {id: b, prompt_ids: [6], max_new_tokens: 3}],\n description: mine}",
}


@pytest.mark.parametrize("to", ["w.yaml", "other.yaml"])
@pytest.mark.parametrize("way", LISTS)
def test_requests_in_the_yaml_move_to_the_jsonl_however_they_were_written(tmp_path: Path, way: str, to: str) -> None:
    text = LISTS[way] + ("" if way == "all in one" else "# the end\ndescription: mine\n")
    (tmp_path / "w.yaml").write_text(text, encoding="utf-8")
    ended = record(tmp_path / "w.yaml", "-o", tmp_path / to, "--model", write_config(tmp_path))
    if ended.code and way == "all in one":  # this one may be refused, untouched
        assert ended.mistake and (tmp_path / "w.yaml").read_text(encoding="utf-8") == text
        return
    assert ended.code == 0, ended.err
    assert recorded(tmp_path / to)[0]["description"] == "mine"
    assert way == "all in one" or (tmp_path / to).read_text(encoding="utf-8").count("# the end\ndescription: mine\n") == 1
    ended = run_json(tmp_path / to, tmp_path, "--model", write_config(tmp_path))
    assert ended.code == 0 and ended.rows["continuous+varlen+paged"]["exact_matched"] == 2, ended.err


def test_interrupted_it_goes_on_where_it_was_and_no_old_file_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))
    write_lines(tmp_path / "p.jsonl", SOURCE)
    (tmp_path / "w.yaml").write_text("description: old\nrequests: w.jsonl\n")
    (tmp_path / "w.jsonl").write_text("old\n")
    cached_greedy, greedy, calls = cbbench.recording.recorder.cached_greedy, cbbench.model.reference.greedy, []

    def interrupted(*given: Any) -> Any:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return cached_greedy(*given)

    words = (tmp_path / "p.jsonl", "-o", tmp_path / "w.yaml", "--model", write_config(tmp_path))
    monkeypatch.setattr(cbbench.recording.recorder, "cached_greedy", interrupted)
    ended = record(*words)
    assert (ended.code, ended.out, ended.err) == (130, "", "cbbench: interrupted\n")
    assert (tmp_path / "w.jsonl").read_text() == "old\n" and (tmp_path / "w.yaml").read_text() == "description: old\nrequests: w.jsonl\n"
    monkeypatch.setattr(cbbench.recording.recorder, "cached_greedy", cached_greedy)
    monkeypatch.setattr(cbbench.model.reference, "greedy", lambda model, ids, *rest: calls.append(ids) or greedy(model, ids, *rest))
    assert record(*words).code == 0
    assert calls[2:] == [row["prompt_ids"] for row in SOURCE[2:]], "the first two were kept"
    assert len(recorded(tmp_path / "w.yaml")[1]) == 4 and not list(tmp_path.glob(".w*"))
