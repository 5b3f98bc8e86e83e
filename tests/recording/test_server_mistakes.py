"""`cbbench workload record --from-server`: whatever a server may say instead of an answer is one line, and no traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.recording.test_server import ROWS, record
from tests.support.commands import command, write_lines
from tests.support.servers import Fake, completion, fake

__all__ = ["fake"]  # the fixture


@pytest.mark.parametrize(
    "reply",
    [[], 7, None, {}, {"choices": []}, {"choices": [None]}, {"choices": {}}, {"choices": [{}]}, {"choices": [{"message": None}]},
     {"error": "no"}, {"choices": [{"text": "a"}], "usage": [1]}],
    ids=str,
)  # fmt: skip
def test_json_of_another_shape_is_no_completion(fake: Fake, tmp_path: Path, reply: Any) -> None:
    fake.answer = lambda *_: reply
    assert record(fake, tmp_path).mistake.startswith(f"{fake.url}/completions: the answer to request 'text' is no completion: ")


@pytest.mark.parametrize("count", ["12", -1, 2.5, True, [1]], ids=str)
def test_a_count_that_is_none_is_no_completion(fake: Fake, tmp_path: Path, count: Any) -> None:
    fake.answer = lambda path, body: completion(path, body) | {"usage": {"completion_tokens": count}}
    assert "the answer to request 'text' is no completion" in record(fake, tmp_path, rows=ROWS[:1]).mistake


@pytest.mark.parametrize("reply", ["", "<html>busy</html>", b"\xff\xfe"])
def test_what_is_no_json_is_said_to_be_none(fake: Fake, tmp_path: Path, reply: Any) -> None:
    fake.answer = lambda *_: reply
    assert record(fake, tmp_path).mistake.startswith(f"{fake.url}/completions: ")


def test_an_answer_that_breaks_off_is_one_line(fake: Fake, tmp_path: Path) -> None:
    fake.answer = lambda *_: b"CUT"
    assert record(fake, tmp_path).mistake.startswith(f"{fake.url}/completions: ")


@pytest.mark.parametrize(
    ("code", "reason"), [(400, "Bad Request"), (401, "Unauthorized"), (429, "Too Many Requests"), (500, "Internal Server Error")]
)
def test_an_error_is_said_with_its_code_and_the_beginning_of_the_servers_words(fake: Fake, tmp_path: Path, code: int, reason: str) -> None:
    fake.answer = lambda *_: (code, " too\n\tlong" + "x" * 900)
    message = record(fake, tmp_path).mistake
    assert message.startswith(f"{fake.url}/completions: {code} {reason}: too longxxx") and len(message) < 400


@pytest.mark.parametrize("models", [{"data": []}, {}, [], None, {"data": [{}]}, {"data": {"id": "a"}}], ids=str)
def test_a_server_that_lists_no_model_needs_one_named(fake: Fake, tmp_path: Path, models: Any) -> None:
    fake.models = models
    assert record(fake, tmp_path).mistake == f"{fake.url}/models lists no model; name one with --server-model"
    assert fake.asked == [] and {path.name for path in tmp_path.iterdir()} == {"p.jsonl", "tiny.json"}


def test_a_server_without_a_list_of_models_is_named_with_its_code(fake: Fake, tmp_path: Path) -> None:
    fake.models = (404, "nothing here")
    assert record(fake, tmp_path).mistake == f"{fake.url}/models: 404 Not Found: nothing here"


def test_no_server_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    said = record(Fake(url="http://127.0.0.1:9/v1"), tmp_path).mistake
    assert said.startswith("http://127.0.0.1:9/v1/models: ") and "refused" in said


@pytest.mark.parametrize(
    "url", ["localhost:8000", "", "ftp://localhost/v1", "http://", "http://[::1", "http://localhost:port/v1", "http://a b/v1"]
)
def test_a_url_that_is_none_is_one_line(tmp_path: Path, url: str) -> None:
    assert record(Fake(url=url), tmp_path).mistake.startswith((f"--from-server {url}: should be a URL", f"{url.rstrip('/')}/models: "))


def test_a_prompt_of_hashed_tokens_needs_a_vocabulary_that_can_be_read(fake: Fake, tmp_path: Path) -> None:
    write_lines(tmp_path / "p.jsonl", [{"id": "a", "prompt_tokens": 5, "max_new_tokens": 2}])
    words = ("-o", tmp_path / "w.yaml", "--from-server", fake.url, "--model", "random:gone.json")
    assert "gone.json" in command("workload", "record", tmp_path / "p.jsonl", *words).mistake and fake.asked == []


@pytest.mark.parametrize(
    ("reason", "tokens", "ignore_eos", "said"),
    [
        ("abort", 3, False, 'finish_reason "abort" after 3 of 8 tokens'),
        (None, 3, False, "it ended without a finish_reason after 3 of 8 tokens"),
        ("length", 3, False, 'finish_reason "length" after 3 of 8 tokens'),
        ("stop", 3, True, 'finish_reason "stop" after 3 of 8 tokens, and it was asked to ignore an end (ignore_eos)'),
        ("length", 24, True, "24 tokens, 8 were asked for"),
    ],
)
def test_an_answer_that_is_not_whole_is_not_recorded(
    fake: Fake, tmp_path: Path, reason: str | None, tokens: int, ignore_eos: bool, said: str
) -> None:
    fake.answer = lambda *_: {"choices": [{"text": "a", "finish_reason": reason}], "usage": {"completion_tokens": tokens}}
    rows = [{**ROWS[0], "ignore_eos": ignore_eos}]
    assert record(fake, tmp_path, rows=rows).mistake == f"{fake.url}/completions: the answer to request 'text' is not whole: {said}"
    assert not (tmp_path / "w.jsonl").exists()


def test_a_server_that_has_moved_is_not_followed(fake: Fake, tmp_path: Path) -> None:
    fake.redirect = "http://elsewhere.invalid/v1"
    said = f"{fake.url}/models: 302 Found: it has moved to http://elsewhere.invalid/v1/models; give the new URL with --from-server"
    assert record(fake, tmp_path).mistake == said and len(fake.visits) == 1
