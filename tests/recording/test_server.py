"""`cbbench workload record --from-server`: what an OpenAI-compatible server is asked, what is kept of its answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import Ended, command, run_json, write_config, write_lines
from tests.support.servers import Fake, completion, fake

__all__ = ["fake"]  # the fixture

HELLO = [{"role": "system", "content": "short"}, {"role": "user", "content": "hi"}]
ROWS = [
    {"id": "text", "prompt": "once", "max_new_tokens": 8, "meta": {"k": 1}, "arrival_s": 0.5},
    {"id": "chat", "messages": HELLO, "max_new_tokens": 9, "ignore_eos": True},
    {"id": "ids", "prompt_ids": [5, 6, 7], "max_new_tokens": 4},
    {"id": "more", "prompt": "upon", "max_new_tokens": 3},
]


def record(fake: Fake, folder: Path, *words: str, rows: list[dict[str, Any]] = ROWS) -> Ended:
    source = write_lines(folder / "p.jsonl", rows)
    where = ("-o", folder / "w.yaml", "--from-server", fake.url, "--model", write_config(folder))
    return command("workload", "record", source, *where, *words)


def written(folder: Path) -> list[dict[str, Any]]:
    """The lines of w.jsonl without how long each answer took."""
    rows = [json.loads(line) for line in (folder / "w.jsonl").read_text(encoding="utf-8").split("\n") if line]
    for row in rows:
        assert row["meta"]["server"].pop("e2e_s") >= 0
    return rows


def test_each_answer_is_kept_beside_its_request_and_its_length_is_forced(fake: Fake, tmp_path: Path) -> None:
    ended = record(fake, tmp_path)
    assert (ended.code, ended.out) == (0, f"{tmp_path / 'w.yaml'}\n"), ended.err
    rows = {row["id"]: row for row in written(tmp_path)}
    kept = {"requested_tokens": 8, "text": " once\u2028", "finish_reason": "stop", "prompt_tokens": 3, "completion_tokens": 6}
    assert rows["text"] == {**ROWS[0], "max_new_tokens": 6, "ignore_eos": True, "meta": {"k": 1, "server": kept}}
    assert (rows["chat"]["messages"], rows["chat"]["meta"]["server"]["text"]) == (HELLO, "hello")
    assert [(row["max_new_tokens"], row["ignore_eos"]) for row in rows.values()] == [(6, True), (9, True), (2, True), (1, True)]
    said = yaml.safe_load((tmp_path / "w.yaml").read_text())
    assert (said["requests"], said["chat_template"]) == ("w.jsonl", "some")
    assert said["source"] == {"server": fake.url, "model": "first", "answers": 4}
    assert "reference" not in said and not any("output_ids" in row for row in rows.values()), "it is no reference for exactness"
    assert not list(tmp_path.glob(".w*"))


def test_the_server_is_asked_for_greedy_tokens_and_given_each_prompt_as_it_stands(fake: Fake, tmp_path: Path) -> None:
    assert record(fake, tmp_path).code == 0
    greedy = {"model": "first", "temperature": 0}
    assert fake.asked == [
        ("/v1/completions", {**greedy, "max_tokens": 8, "prompt": "once"}, None),
        ("/v1/chat/completions", {**greedy, "max_tokens": 9, "messages": HELLO, "ignore_eos": True}, None),
        ("/v1/completions", {**greedy, "max_tokens": 4, "prompt": [5, 6, 7]}, None),
        ("/v1/completions", {**greedy, "max_tokens": 3, "prompt": "upon"}, None),
    ]


def test_the_model_and_the_key_are_the_users(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    fake.models, fake.url = {"data": []}, f"{fake.url}/"
    ended = record(fake, tmp_path, "--server-model", "mine", rows=ROWS[:1])
    assert ended.code == 0, ended.err
    assert (fake.asked[0][0], fake.asked[0][1]["model"], fake.asked[0][2]) == ("/v1/completions", "mine", "Bearer sk-secret")
    assert "sk-secret" not in ended.err + "".join(path.read_text() for path in tmp_path.iterdir())


def test_hashed_prompts_are_sent_as_ids_and_stay_hashed(fake: Fake, tmp_path: Path) -> None:
    hashed = [{"id": "a", "prompt_tokens": 24, "blocks": [1, 2], "max_new_tokens": 5}, {"id": "b", "prompt_tokens": 9, "max_new_tokens": 4}]
    write_lines(tmp_path / "w.jsonl", hashed)
    (tmp_path / "w.yaml").write_text("# mine\nrequests: w.jsonl\nprompts: {block_tokens: 16, seed: 2}\n")
    ended = command("workload", "record", tmp_path / "w.yaml", "--from-server", fake.url, "--model", write_config(tmp_path))
    assert ended.code == 0, ended.err
    assert [len(body["prompt"]) for _, body, _ in fake.asked] == [24, 9]
    rows = written(tmp_path)
    assert [(row["prompt_tokens"], row.get("blocks"), row["max_new_tokens"]) for row in rows] == [(24, [1, 2], 3), (9, None, 2)]
    assert not any("prompt_ids" in row for row in rows) and (tmp_path / "w.yaml").read_text().startswith("# mine\n")
    assert run_json(tmp_path / "w.yaml", tmp_path, "--model", "none").rows["continuous+varlen+paged"]["output_tokens"] == 3 + 2


def test_without_usage_the_length_that_was_asked_for_stays(fake: Fake, tmp_path: Path) -> None:
    for usage in ({}, {"usage": None}, {"usage": {"completion_tokens": 0}}):
        fake.answer = lambda path, body, usage=usage: {"choices": completion(path, body)["choices"], **usage}
        assert record(fake, tmp_path, rows=ROWS[:1]).code == 0
        (row,) = written(tmp_path)
        assert (row["max_new_tokens"], "ignore_eos" in row, row["meta"]["server"]["text"]) == (8, False, " once\u2028")


def failing_at(number: int, reply: Any) -> Callable[[str, dict[str, Any]], Any]:
    """Answers that many requests before this reply."""
    left = iter(range(number))
    return lambda path, body: reply if next(left, None) is None else completion(path, body)


@pytest.mark.parametrize("torn", ["", '["half', "\n\n["])
def test_interrupted_only_the_rest_is_asked_for_and_the_file_is_the_same(fake: Fake, tmp_path: Path, torn: str) -> None:
    assert record(fake, tmp_path).code == 0
    whole, text = written(tmp_path), (tmp_path / "w.yaml").read_text()
    (tmp_path / "w.jsonl").write_text("old\n")
    fake.asked, fake.answer = [], failing_at(2, (500, '{"error":\n "out of memory"}'))
    assert record(fake, tmp_path).mistake == f"{fake.url}/completions: 500 Internal Server Error: out of memory"
    assert len(fake.asked) == 3 and (tmp_path / "w.jsonl").read_text() == "old\n", "nothing half-done replaces a file"
    with (tmp_path / ".w.answers").open("a") as kept:
        kept.write(torn)
    fake.asked, fake.answer = [], completion
    assert record(fake, tmp_path).code == 0
    assert [body["prompt"] for _, body, _ in fake.asked] == [[5, 6, 7], "upon"]
    assert written(tmp_path) == whole and (tmp_path / "w.yaml").read_text() == text
    assert record(fake, tmp_path).code == 0 and len(fake.asked) == 2 + 4, "what is whole is not kept for another recording"


def test_answers_of_another_model_or_to_another_question_are_asked_for_again(fake: Fake, tmp_path: Path) -> None:
    fake.answer = failing_at(2, (503, "busy"))
    assert record(fake, tmp_path).code == 2
    fake.asked, fake.answer = [], completion
    changed = [{**ROWS[0], "max_new_tokens": 7}, *ROWS[1:]]
    assert record(fake, tmp_path, rows=changed).code == 0
    assert [body["max_tokens"] for _, body, _ in fake.asked] == [7, 4, 3], "the second answer still counts"


def test_a_text_that_ends_in_half_a_character_is_kept(fake: Fake, tmp_path: Path) -> None:
    fake.answer = lambda path, body: completion(path, body) | {"choices": [{"text": "so \ud83d", "finish_reason": "stop"}]}
    assert record(fake, tmp_path, rows=ROWS[:1]).code == 0
    assert written(tmp_path)[0]["meta"]["server"]["text"] == "so \ud83d"
