"""Text workload files of vLLM, SGLang and GuideLLM are read as those tools read them; all rows hand-made."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from cbbench import plugins
from cbbench.importers.base import Importer, Malformed, TraceRow

HELLO = {"role": "user", "content": "hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "a.png"}}


def importer(name: str) -> type[Importer]:
    found = plugins.find("importer", name)
    assert issubclass(found, Importer)
    return found


def read(name: str, *rows: Any) -> list[TraceRow | Malformed]:
    """Rows as objects, or as the bytes of the whole file."""
    data = rows[0] if isinstance(rows[0], bytes) else "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    return list(importer(name)().read(io.BytesIO(data)))


def good(name: str, *rows: Any) -> list[TraceRow]:
    found = read(name, *rows)
    assert all(isinstance(row, TraceRow) for row in found), found
    return found  # type: ignore[return-value]


def one(name: str, row: Any) -> TraceRow:
    (found,) = good(name, row)
    return found


def fault(name: str, row: Any) -> str:
    (found,) = read(name, row)
    assert isinstance(found, Malformed), found
    return found.reason


# vLLM


def test_vllm_rows_have_a_prompt_and_perhaps_an_output_length_and_no_time() -> None:
    row = one("vllm_custom", {"prompt": "hello", "output_tokens": 7, "id": "extra"})
    assert (row.prompt, row.output_tokens, row.time_us, row.prompt_tokens) == ("hello", 7, None, None)


@pytest.mark.parametrize("unknown", [-1, -1.0, "-1", None, ""])
def test_vllm_writes_minus_one_where_the_output_length_is_unknown(unknown: Any) -> None:
    assert one("vllm_custom", {"prompt": "hello", "output_tokens": unknown}).output_tokens is None


@pytest.mark.parametrize(
    "row",
    [{"prompt": "look", "image_files": ["a.png"]}, {"content": [{"type": "text", "text": "look"}, IMAGE]}, {"content": [IMAGE]}],
    ids=["files", "parts", "no text"],
)
def test_vllm_rows_with_images_are_dropped_by_name(row: dict[str, Any]) -> None:
    assert one("vllm_custom", row).drop == "has images"


def test_vllm_content_parts_without_an_image_are_a_prompt() -> None:
    row = one("vllm_custom", {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
    assert (row.prompt, row.drop) == ("a\nb", None)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"output_tokens": 3}, "has no prompt"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": 7}, "prompt should be text"),
        ({"prompt": "a", "output_tokens": -2}, "output_tokens should be a whole number"),
        ({"prompt": "a", "output_tokens": 1.5}, "output_tokens should be a whole number"),
        ({"prompt": "a", "output_tokens": float("nan")}, "output_tokens should be a whole number"),
        ({"prompt": "a", "output_tokens": 10**30}, "output_tokens should be a whole number"),
        ({"content": [{"type": "hologram"}]}, "part of type 'hologram'"),
        ({"prompt": "\ud800"}, "prompt is not valid Unicode"),
    ],
)
def test_vllm_mistakes_are_named(row: dict[str, Any], said: str) -> None:
    assert said in fault("vllm_custom", row)


def test_bad_utf8_is_one_bad_row_and_the_next_is_read() -> None:
    bad, fine = read("vllm_custom", b'{"prompt": "a"}\n{"prompt": "\xff"}\n{"prompt": "b"}')[1:]
    assert isinstance(bad, Malformed) and bad.line == 2 and "not readable" in bad.reason
    assert isinstance(fine, TraceRow) and fine.line == 3


# SGLang


@pytest.mark.parametrize("name", ["conversations", "conversation"])
@pytest.mark.parametrize(("who", "what"), [("from", "value"), ("role", "content")])
def test_sglang_takes_turn_0_as_prompt_and_turn_1_as_the_answer_to_count(name: str, who: str, what: str) -> None:
    turns = [{who: "human", what: "hello"}, {who: "gpt", what: "hi there"}, {who: "human", what: "not used"}]
    row = one("sglang", {"id": "x", name: turns})
    assert (row.prompt, row.answer, row.output_tokens, row.messages, row.session) == ("hello", "hi there", None, None, None)


SHAREGPT = [
    {"id": "a", "conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]},
    {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
    {"id": "c", "conversations": ['{"from": "human", "value": "as text"}', {"from": "gpt", "value": "yes"}]},
    {"id": "d", "conversations": ["no json", {"from": "gpt", "value": "yes"}]},
]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_sharegpt_array_is_read_with_string_turns_and_its_short_conversations_are_named(indent: int | None) -> None:
    a, b, c, d = read("sglang", json.dumps(SHAREGPT, indent=indent).encode())
    assert isinstance(a, TraceRow) and (a.line, a.prompt, a.answer) == (1, "hello", "hi")
    assert isinstance(b, Malformed) and b.reason == "conversations has 1 of the two turns that make a request"
    assert isinstance(c, TraceRow) and (c.prompt, c.answer) == ("as text", "yes")
    assert isinstance(d, Malformed) and "conversations[0] should hold a JSON object" in d.reason


def test_a_sglang_row_with_an_image_is_dropped() -> None:
    assert one("sglang", SHAREGPT[0] | {"image": "a.png"}).drop == "has images"


def test_a_token_trace_has_ids_seconds_and_the_number_of_its_output_ids() -> None:
    row = one("sglang", {"input_tokens": [5, 6, 7], "output_tokens": [8, 9], "ts": 1.5})
    assert (row.prompt_ids, row.prompt_tokens, row.output_tokens, row.time_us) == ([5, 6, 7], 3, 2, 1_500_000)
    assert one("sglang", {"input_tokens": [5], "output_tokens": [8, 9], "num_output_tokens": 4}).output_tokens == 4


def test_a_token_trace_without_ids_has_lengths() -> None:
    row = one("sglang", {"num_input_tokens": 30, "num_output_tokens": 4, "ts": 0})
    assert (row.prompt_ids, row.prompt_tokens, row.output_tokens) == (None, 30, 4)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": 1}, "lacks conversations, conversation or input_tokens"),
        ({"conversations": None}, "conversations should be a list"),
        ({"conversations": [{"value": ""}, {"value": "a"}]}, "conversations[0] is empty"),
        ({"conversations": [{"value": "a"}, {"value": None}]}, "conversations[1] is empty"),
        ({"conversations": [{"value": "a"}, 7]}, "conversations[1] should be a turn"),
        ({"conversations": [{"value": "a"}, "[" * 5000]}, "conversations[1] should hold a JSON object"),
        ({"input_tokens": []}, "input_tokens should be a list of token ids"),
        ({"input_tokens": [1, True]}, "input_tokens should be a list of token ids"),
        ({"input_tokens": [1, 2], "num_input_tokens": 3}, "num_input_tokens is 3, input_tokens holds 2"),
        ({"input_tokens": [1], "ts": "soon"}, "ts should be a time"),
    ],
)
def test_sglang_mistakes_are_named(row: dict[str, Any], said: str) -> None:
    assert said in fault("sglang", row)


# GuideLLM


@pytest.mark.parametrize(
    "text", ["prompt", "Instruction", "QUESTION", "inputs", "contexts", "content", "turns", "text", "prompt_0", "Prompts-0"]
)
@pytest.mark.parametrize("count", ["prompt_tokens_count", "Input_Tokens_Counts"])
@pytest.mark.parametrize("output", ["output_tokens_count", "completion_tokens_count_0"])
def test_guidellm_aliases_hold_in_any_case_in_the_plural_and_with_a_turn(text: str, count: str, output: str) -> None:
    row = one("guidellm", {"id": 7, text: "hello", count: 3, output: 5, "relative_timestamp": 1.5})
    assert (row.prompt, row.prompt_tokens, row.output_tokens, row.time_us) == ("hello", 3, 5, 1_500_000)
    assert (row.session, row.key, row.continues) == (None, None, False)


def test_guidellm_csv_and_json_say_the_same() -> None:
    csv = b'\xef\xbb\xbfid,Prompt,output_tokens_count\r\n1,"two\nlines, one cell",9\r\n2,x,\r\n'
    rows = good("guidellm", csv)
    assert [(row.line, row.prompt, row.output_tokens) for row in rows] == [(3, "two\nlines, one cell", 9), (4, "x", None)]
    data = [{"id": 1, "Prompt": "two\nlines, one cell", "output_tokens_count": 9}, {"id": 2, "Prompt": "x", "output_tokens_count": None}]
    for form in (json.dumps(data), json.dumps(data, indent=1), "\n".join(map(json.dumps, data)), "\n\n" + json.dumps(data)):
        assert [(row.prompt, row.output_tokens) for row in good("guidellm", form.encode())] == [
            (row.prompt, row.output_tokens) for row in rows
        ]


@pytest.mark.parametrize("mark", ["_", "-"])
def test_guidellm_numbered_columns_are_turns_that_continue_one_another(mark: str) -> None:
    row = {f"prompt{mark}1": "b", f"prompt{mark}0": "a", f"output_tokens_count{mark}0": 4, f"output_tokens_count{mark}1": 5,
           "prompt_tokens_count_1": 2, "requeue_delay_0": 2.5, "relative_timestamp": 1}  # fmt: skip
    first, second, other = good("guidellm", row, {"prompt_0": "c", "prompt_1": None})
    assert (first.prompt, first.output_tokens, first.time_us, first.parent, first.continues) == ("a", 4, 1_000_000, None, False)
    assert (second.prompt, second.prompt_tokens, second.output_tokens, second.think_s) == ("b", 2, 5, 2.5)
    assert second.continues and second.parent == first.key and second.session == first.session != other.session


def test_guidellm_puts_a_system_prompt_before_the_first_turn_alone() -> None:
    row = {"system_prompt": "be kind", "prompt_0": "a", "prompt_1": "b", "prompt_tokens_count_0": 3}
    first, second = good("guidellm", row)
    assert first.messages == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a"}] and first.prompt is None
    assert first.prompt_tokens is None, "GuideLLM counts the prompt without its system prompt"
    assert second.messages == [{"role": "user", "content": "b"}] and second.continues
    assert one("guidellm", {"prefix": "", "prompt": "a", "prompt_tokens_count": 3}).prompt == "a"


def test_guidellm_takes_the_first_of_several_aliases_as_the_file_has_them() -> None:
    assert one("guidellm", {"question": "q", "context": "c", "output_tokens_count": 1}).prompt == "q"
    assert one("guidellm", {"context": "c", "question": "q", "output_tokens_count": 1}).prompt == "c"


def test_guidellm_media_are_dropped() -> None:
    assert one("guidellm", {"prompt": "a", "images": "a.png"}).drop == "has images"
    assert one("guidellm", {"prompt": "a", "audio": {"audio": 1}, "video": None}).drop == "has audio"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": 1}, "has no text in any column"),
        ({"prompt": None, "output_tokens_count": 1}, "has no text in prompt"),
        ({"prompt_0": "", "prompt_1": "b"}, "prompt_0 is empty, a later turn is not"),
        ({"prompt_0": "a", "output_tokens_count_1": 4}, "output_tokens_count_1 is of turn 1, which has no text"),
        ({"prompt": "a", "prompt_0": "b"}, "prompt and prompt_0 are both turn 0"),
        ({"prompt": ["a"], "output_tokens_count": 1}, "prompt should be text"),
        ({"prompt": "a", "relative_timestamp": -1}, "relative_timestamp should not be negative"),
        ({"prompt": "a", "conversation_turns": "{}"}, "conversation_turns, a graph of turns, cannot be read"),
    ],
)
def test_guidellm_mistakes_are_named(row: dict[str, Any], said: str) -> None:
    assert said in fault("guidellm", row)


def test_a_guidellm_csv_names_its_bad_rows_and_reads_on() -> None:
    rows = read("guidellm", b'prompt,output_tokens_count\na,1\nb,c,2\n\xff,3\n\n"d,4\n')
    assert [row.line for row in rows] == [2, 3, 4, 6] and isinstance(rows[0], TraceRow)
    assert [row.reason for row in rows if isinstance(row, Malformed)][:2] == ["has 3 of 2 columns", "prompt is not valid Unicode"]
    long = b"prompt,output_tokens_count\n" + b"word " * 40_000 + b",1\n"
    assert len(good("guidellm", long)[0].prompt or "") == 200_000
    with pytest.raises(ValueError, match="the header lacks prompt"):
        read("guidellm", b"a,b\n1,2\n")


# AIPerf
