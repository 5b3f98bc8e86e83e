"""Where a recording's prompts come from: each kind of file gives the rows that stand in it, with their places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.recording.sources import Source, read_source
from tests.support.commands import refusal

HELLO = [{"role": "user", "content": "hello"}]


def read(path: Path, content: str | bytes | Any, chat: bool = False, max_new_tokens: int | None = 5) -> Source:
    """The source that a file with this content is; what is neither text nor bytes is written as JSON."""
    path.write_bytes(content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode())
    return read_source(path, chat, None if path.suffix == ".yaml" else max_new_tokens)


def prompts(source: Source) -> dict[str, str | None]:
    return {row.id: row.prompt for row in source.rows.rows}


def test_a_text_file_is_a_prompt_a_line_and_its_number_the_id(tmp_path: Path) -> None:
    source = read(tmp_path / "p.txt", "\ufeff first\r\n\r\n \t \r\nsecond\u2028line\x85 \r\n\nlast")
    assert prompts(source) == {"line-1": " first", "line-4": "second\u2028line\x85 ", "line-6": "last"}
    assert [row.max_new_tokens for row in source.rows.rows] == [5] * 3
    assert (source.rows.where(1), source.yaml_text, source.chat_template) == (f"{tmp_path / 'p.txt'}:4", None, "none")


def test_a_line_of_a_text_file_ends_at_a_newline_and_nowhere_else(tmp_path: Path) -> None:
    assert prompts(read(tmp_path / "p.txt", "a\rb\nc")) == {"line-1": "a\rb", "line-2": "c"}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), min_size=1).filter(
        lambda ls: any(map(str.strip, ls))
    )
)
def test_any_line_of_text_is_kept_as_it_stands(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    expected = {f"line-{number}": line for number, line in enumerate(lines, 1) if line.strip()}
    for newline in ("\n", "\r\n"):
        assert prompts(read(path, newline.join(lines).encode("utf-8-sig"))) == expected


def test_json_is_a_list_of_requests(tmp_path: Path) -> None:
    source = read(
        tmp_path / "p.json", b"\xef\xbb\xbf" + json.dumps([{"prompt": "a"}, {"id": "x", "prompt_ids": [3], "max_new_tokens": 2}]).encode()
    )
    assert [(row.id, row.prompt, row.prompt_ids, row.max_new_tokens) for row in source.rows.rows] == [
        ("line-1", "a", None, 5),
        ("x", None, [3], 2),
    ]
    assert source.rows.where(1) == f"{tmp_path / 'p.json'}: entry 2"


def test_json_lines_are_requests_and_what_they_say_wins(tmp_path: Path) -> None:
    rows = [{"messages": HELLO, "ignore_eos": True}, {"id": "x", "prompt": "b", "max_new_tokens": 9, "meta": {"k": 1}, "arrival_s": 2.5}]
    source = read(tmp_path / "p.jsonl", "\n".join(["", *map(json.dumps, rows)]))
    one, two = source.rows.rows
    assert (one.id, one.messages, one.max_new_tokens, one.ignore_eos) == ("line-2", HELLO, 5, True)
    assert (two.id, two.prompt, two.max_new_tokens, two.meta, two.arrival_s) == ("x", "b", 9, {"k": 1}, 2.5)


def test_chat_makes_each_plain_prompt_a_users_message_and_leaves_the_rest(tmp_path: Path) -> None:
    system = [{"role": "system", "content": "be short"}, *HELLO]
    rows = [{"prompt": "hello"}, {"messages": system}, {"prompt_ids": [1, 2]}]
    source = read(tmp_path / "p.json", rows, chat=True)
    assert [(row.prompt, row.messages, row.prompt_ids) for row in source.rows.rows] == [
        (None, HELLO, None),
        (None, system, None),
        (None, None, [1, 2]),
    ]
    assert [row.messages for row in read(tmp_path / "p.txt", "hello", chat=True).rows.rows] == [HELLO]


@pytest.mark.parametrize(
    ("rows", "chat", "kind"),
    [
        ([{"messages": HELLO}, {"messages": HELLO}], False, "all"),
        ([{"messages": HELLO}, {"prompt": "a"}], False, "some"),
        ([{"prompt": "a"}, {"prompt_ids": [1]}], False, "none"),
        ([{"messages": HELLO}, {"prompt": "a"}], True, "all"),
        ([{"prompt_ids": [1]}, {"prompt": "a"}], True, "some"),
    ],
)
def test_it_is_said_which_prompts_a_template_made(tmp_path: Path, rows: list[Any], chat: bool, kind: str) -> None:
    assert read(tmp_path / "p.json", rows, chat).chat_template == kind


def test_a_workload_is_a_source_with_its_recipe_and_text_and_what_it_said_of_templates(tmp_path: Path) -> None:
    text = "# kept\nrequests:\n  - {id: h, prompt_tokens: 40, blocks: [7, 8, 9], max_new_tokens: 3}\nprompts: {seed: 4, block_tokens: 16}\n"
    source = read(tmp_path / "w.yaml", text)
    assert (source.yaml_text, source.recipe.seed, source.recipe.block_tokens, source.chat_template) == (text, 4, 16, "none")
    assert [(row.id, row.prompt_tokens, list(row.blocks or ())) for row in source.rows.rows] == [("h", 40, [7, 8, 9])]
    assert read(tmp_path / "w.yaml", f"{text}chat_template: all\n").chat_template == "all", "its text may have been made long ago"


@pytest.mark.parametrize(
    ("name", "content", "place", "said"),
    [
        ("p.txt", "\n\n", "", "no requests in it"),
        ("p.txt", b"caf\xe9\n", "", "cannot be read"),
        ("p.json", "[]", "", "no requests in it"),
        ("p.json", "[1", "", "not valid JSON"),
        ("p.json", "[" * 100_000, "", "not valid JSON"),
        ("p.json", {"prompt": "a"}, "", "should be a list of requests; one request a line is .jsonl"),
        ("p.json", [{"prompt": "a"}, "b"], " entry 2:", "should be a mapping"),
        ("p.json", [{"prompt": "a", "max_tokens": 2}], " entry 1:", "did you mean max_new_tokens?"),
        ("p.json", [{"prompt": "a", "max_new_tokens": 0}], " entry 1:", "max_new_tokens"),
        ("p.json", [{"id": "x"}], " entry 1:", "has neither prompt"),
        ("p.json", [{"messages": "hello"}], " entry 1:", "messages"),
        ("p.json", [{"id": "line-2", "prompt": "a"}, {"prompt": "b"}], " entry 2:", "'line-2' was given before"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt"', "2:", "not valid JSON"),
        ("p.jsonl", '{"prompt": "a"}\n\n["b"]', "3:", "should be a mapping"),
        ("w.yaml", "requests: nowhere.jsonl\n", "1:1:", "no such file"),
        ("w.yaml", "- a\n", "1:1:", "a workload is a mapping"),
    ],
)  # fmt: skip
def test_what_is_no_source_is_refused_with_its_place(tmp_path: Path, name: str, content: Any, place: str, said: str) -> None:
    message = refusal(lambda: read(tmp_path / name, content))
    assert message.startswith(f"{tmp_path / name}:{place}") and said in message


def test_a_key_given_twice_is_refused_in_json_as_in_json_lines(tmp_path: Path) -> None:
    twice = '{"prompt": "a", "prompt": "b"}'
    assert "given twice" in refusal(lambda: read(tmp_path / "p.jsonl", twice))
    assert "given twice" in refusal(lambda: read(tmp_path / "p.json", f"[{twice}]"))


def test_a_line_without_a_length_needs_one_from_the_command(tmp_path: Path) -> None:
    message = refusal(lambda: read(tmp_path / "p.txt", "\nhello", max_new_tokens=None))
    assert message == f"{tmp_path / 'p.txt'}:2: max_new_tokens: Field required"


@pytest.mark.parametrize("name", ["gone.txt", "gone.json", "gone.jsonl", "gone.yaml", "gone"])
def test_a_source_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    assert refusal(lambda: read_source(tmp_path / name, False, 5)).startswith(f"{tmp_path / name}: ")
