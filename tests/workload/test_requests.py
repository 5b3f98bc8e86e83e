"""The requests of a workload are read whole or refused with one line that has the place and the name of what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cbbench.workload.file import Workload, read_workload, resolve
from cbbench.workload.rows import Vocabulary
from tests.support.commands import GOOD, Write, refusal, write_workload
from tests.support.engines import assert_exact, run, tiny, with_reference


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(yaml text, jsonl lines as text or as rows) -> the .yaml's path."""
    return lambda *given, **named: write_workload(tmp_path, *given, **named)


def row(**changes: Any) -> str:
    return json.dumps({key: value for key, value in (GOOD | changes).items() if value is not None})


@pytest.mark.parametrize("line", ["[" * 100_000, f'{{"max_new_tokens": {"9" * 5000}}}'], ids=["nested too deep", "5000 digits"])
def test_a_json_line_that_no_reader_survives_is_refused_too(write: Write, line: str) -> None:
    path = write(lines=line)
    assert refusal(lambda: read_workload(path)).startswith(f"{path.with_suffix('.jsonl')}:1:")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (row(max_new_tokens=0), ["max_new_tokens", "greater than or equal to 1", "got 0"]),
        (row(max_new_tokens=-1), ["max_new_tokens", "greater than or equal to 1", "got -1"]),
        (row(max_new_tokens=1.5), ["max_new_tokens", "integer", "1.5"]),
        (row(max_new_tokens="8"), ["max_new_tokens", "integer", "'8'"]),
        (row(max_new_tokens=True), ["max_new_tokens", "integer", "True"]),
        (row(max_new_tokens=None), ["max_new_tokens", "required"]),
        (row(arrival_s=-1), ["arrival_s", "greater than or equal to 0", "-1"]),
        (row(arrival_s=float("nan")), ["arrival_s", "finite", "nan"]),
        (row(arrival_s=float("inf")), ["arrival_s", "finite", "inf"]),
        (row(arrival_s="1"), ["arrival_s", "number", "'1'"]),
        (row(id=""), ["id", "at least 1 character"]),
        (row(id=7), ["id", "string", "7"]),
        (row(id=None), ["id", "required"]),
        (row(prompt_ids=[1, -2]), ["prompt_ids.1", "greater than or equal to 0", "-2"]),
        (row(prompt_ids=[1, 2.5]), ["prompt_ids.1", "integer", "2.5"]),
        (row(prompt_ids="1 2"), ["prompt_ids", "list", "'1 2'"]),
        (row(prompt_ids=None), ["'a'", "neither prompt, messages, prompt_ids nor prompt_tokens"]),
        (row(output_ids=[-1]), ["output_ids.0", "-1"]),
        (row(ignore_eos=1), ["ignore_eos", "boolean", "1"]),
        (row(max_tokens=3), ["unknown key 'max_tokens'", "did you mean max_new_tokens?"]),
        (row(zzz=3), ["unknown key 'zzz'", "known keys", "arrival_s"]),
        ("[1, 2]", ["[1, 2]"]),
        ('{"id": "a"', ["not valid JSON"]),
        ("id: a", ["not valid JSON"]),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(write: Write, line: str, said: list[str]) -> None:
    path = write(lines=f"{row(id='first')}\n\n{line}\n")
    message = refusal(lambda: read_workload(path))
    assert message.startswith(f"{path.with_suffix('.jsonl')}:3:"), message
    assert [words for words in said if words not in message] == [], message


def test_77_an_id_given_twice_is_refused_with_both_lines(write: Write) -> None:
    path = write(lines=f"{row()}\n{row(id='b')}\n\n{row()}\n")
    jsonl = path.with_suffix(".jsonl")
    assert refusal(lambda: read_workload(path)) == f"{jsonl}:4: id 'a' was given before, at {jsonl}:1"


def test_an_empty_file_of_requests_is_refused(write: Write) -> None:
    path = write(lines="\n\n")
    assert refusal(lambda: read_workload(path)) == f"{path}:1:1: the workload has no requests"


def read(path: Path) -> tuple[Workload, list[Any]]:
    workload = read_workload(path)
    return workload, resolve(workload, None)


def test_blank_lines_and_crlf_change_nothing(write: Write) -> None:
    plain = read(write(lines=f"{row()}\n{row(id='b')}\n"))[1]
    odd = read(write("requests: w.jsonl\r\nmodel: x\r\n", f"\r\n{row()}\r\n   \r\n\n{row(id='b')}"))
    assert odd[1] == plain and odd[0].file.model == "x"
    assert [odd[0].rows.where(index).rpartition(":")[2] for index in range(2)] == ["2", "5"]


@pytest.mark.parametrize("odd", ["\u2028", "\u0085"])
def test_a_line_ends_at_a_newline_and_nowhere_else(write: Write, odd: str) -> None:
    """JSON may hold U+2028 as it stands, and `workload record` writes it so: it ends no line of the file."""
    line = json.dumps({"id": "a", "prompt": f"x{odd}y", "prompt_ids": [1], "max_new_tokens": 1}, ensure_ascii=False)
    path = write(lines=line)
    assert resolve(read_workload(path), None)[0].prompt == f"x{odd}y"


def test_76_an_empty_prompt_is_refused_alone_and_the_rest_is_exact(write: Write) -> None:
    model = tiny()
    path = write(
        lines=[GOOD, {"id": "none", "prompt_ids": [], "max_new_tokens": 4}, {"id": "b", "prompt_ids": [9, 8], "max_new_tokens": 6}]
    )
    engine = run(model, [with_reference(model, r) for r in read(path)[1]])
    assert_exact(engine, refused=["none"])
    assert engine.sequences[1].reason == "the prompt has no tokens"


def test_30_79_a_request_longer_than_the_model_is_refused_alone_with_both_numbers(write: Write) -> None:
    model = tiny("gpt2", n_positions=64)
    long = {"id": "long", "prompt_ids": [5] * 60, "max_new_tokens": 10}
    fits = {"id": "fits", "prompt_ids": [5] * 60, "max_new_tokens": 5}
    requests = read(write(lines=[GOOD, long, fits]))[1]
    engine = run(model, [with_reference(model, r) if r.id != "long" else r for r in requests])
    assert_exact(engine, refused=["long"])
    assert engine.sequences[1].reason == "needs 69 positions, the model has 64"


def test_text_without_a_tokenizer_and_ids_outside_the_vocabulary_are_refused_by_name(write: Write) -> None:
    path = write(lines=[GOOD, {"id": "t", "prompt": "hello", "max_new_tokens": 1}])
    place = f"{path.with_suffix('.jsonl')}:2: request 't'"
    assert refusal(lambda: resolve(read_workload(path), None)) == f"{place} has text but the model has no tokenizer; give prompt_ids"
    told = refusal(lambda: resolve(read_workload(path), Vocabulary(lambda text: [len(text), 300], size=300)))
    assert told == f"{place}: token id 300 is outside the model's vocabulary of 300"


def test_68_a_text_prompt_is_counted_as_the_ids_that_are_fed(write: Write) -> None:
    text = {"id": "t", "prompt": "hey", "max_new_tokens": 1}
    path = write(lines=[text])
    (request,) = resolve(read_workload(path), Vocabulary(lambda text: [1, *map(ord, text)]))
    assert request.prompt_ids == (1, 104, 101, 121) and request.prompt == "hey"
    path = write(lines=[text | {"prompt_ids": [1, 2]}])
    assert resolve(read_workload(path), Vocabulary(lambda text: [9]))[0].prompt_ids == (1, 2), "ids win over the text that they spell"
