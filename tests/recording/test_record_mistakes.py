"""`cbbench workload record`: whatever cannot be recorded is one line that says what, where, and why; nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recording.test_record_prompts import HELLO, chatty
from tests.support.commands import command, write_config

FIVE = ("--max-new-tokens", "5")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer and no chat template."""
    return chatty(tmp_path_factory.mktemp("plain"), None)


def mistake(tmp_path: Path, name: str, content: Any, *words: str | Path) -> str:
    """Of recording that file; checked to have written nothing."""
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    said = command("workload", "record", path, *words).mistake
    assert {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before
    return said


def test_where_to_write_must_be_said_and_be_possible(tmp_path: Path) -> None:
    assert mistake(tmp_path, "p.txt", "hello", *FIVE) == f"record {tmp_path / 'p.txt'}: say where to with -o NAME.yaml"
    wrong = tmp_path / "w.jsonl"
    assert mistake(tmp_path, "p.txt", "hello", "-o", wrong, *FIVE) == f"-o {wrong}: should be NAME.yaml"
    gone = tmp_path / "gone" / "w.yaml"
    assert mistake(tmp_path, "p.txt", "hello", "-o", gone, *FIVE) == f"-o {gone}: there is no folder {gone.parent}"


@pytest.mark.parametrize(
    ("name", "content", "words", "said"),
    [
        ("p.txt", "hello", (), ":1: max_new_tokens: Field required"),
        ("p.json", "not json", FIVE, ": not valid JSON: "),
        ("p.json", {"prompt": "hello"}, FIVE, ": should be a list of requests"),
        ("p.jsonl", {"prompt_ids": [7], "after": "x"}, FIVE, ":1: request 'line-1' comes after 'x', which no earlier line has"),
        ("p.jsonl", {"prompt_ids": []}, FIVE, ":1: request 'line-1': the prompt has no tokens"),
        ("p.jsonl", {"id": "long", "prompt_ids": [7] * 636}, FIVE + FIVE[:1] + ("6",), ":1: request 'long' needs 641 positions"),
        ("p.jsonl", {"prompt_ids": [300]}, FIVE, ":1: request 'line-1': token id 300 is outside the model's vocabulary of 300"),
    ],
)
def test_a_request_that_cannot_be_recorded_is_named(tmp_path: Path, name: str, content: Any, words: tuple[str, ...], said: str) -> None:
    config = write_config(tmp_path)
    assert mistake(tmp_path, name, content, "-o", tmp_path / "w.yaml", "--model", config, *words).startswith(f"{tmp_path / name}{said}")


def test_a_text_needs_a_tokenizer_and_messages_a_template(tmp_path: Path, plain: Path) -> None:
    words = ("-o", tmp_path / "w.yaml", *FIVE, "--model")
    place = f"{tmp_path / 'p.json'}: entry 1: request 'line-1'"
    text, talk = [{"prompt": "w7"}], [{"messages": HELLO}]
    assert (
        mistake(tmp_path, "p.json", text, *words, write_config(tmp_path))
        == f"{place} has text but the model has no tokenizer; give prompt_ids"
    )
    needs = f"{place}: messages need a chat template, the model has none; give prompt or prompt_ids"
    assert mistake(tmp_path, "p.json", talk, *words, write_config(tmp_path)) == needs
    assert mistake(tmp_path, "p.json", talk, *words, plain) == needs
    assert mistake(tmp_path, "p.json", text, *words, plain, "--chat") == needs


def test_messages_that_the_template_cannot_read_are_named(tmp_path: Path) -> None:
    strict = chatty(tmp_path / "hub", "{% if messages[0].role != 'user' %}{{ raise_exception('starts with\nuser') }}{% endif %}")
    words = ("-o", tmp_path / "w.yaml", "--model", strict, *FIVE)
    talk = [{"messages": [{"role": "system", "content": "w3"}]}]
    assert "request 'line-1': messages do not fit the chat template: starts with" in mistake(tmp_path, "p.json", talk, *words)


@pytest.mark.parametrize("words", [("--chat",), FIVE])
def test_a_flag_that_a_workload_does_not_follow_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    text = "requests: [{id: a, prompt_ids: [1], max_new_tokens: 1}]\n"
    assert words[0] in mistake(tmp_path, "w.yaml", text, "--model", write_config(tmp_path), *words)


def test_a_server_model_without_a_server_is_refused(tmp_path: Path) -> None:
    words = ("-o", tmp_path / "w.yaml", "--model", write_config(tmp_path), "--server-model", "x")
    assert "--server-model" in mistake(tmp_path, "p.json", [{"prompt_ids": [7], "max_new_tokens": 1}], *words)
