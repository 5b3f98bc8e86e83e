"""Text workload files of vLLM, SGLang, GuideLLM, AIPerf and access logs are read as those tools read them; all rows hand-made."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench import plugins
from cbbench.importers.base import Head, Importer, Malformed, TraceRow

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


@pytest.mark.parametrize(
    "row",
    [{"text": "a\nb"}, {"texts": ["a", "b"]}, {"texts": [{"name": "f", "contents": ["a"]}, {"name": "g", "contents": ["b"]}]}],
)
def test_aiperf_text_and_texts_are_one_prompt(row: dict[str, Any]) -> None:
    found = one("aiperf", row | {"timestamp": 1500, "output_length": 7})
    assert (found.prompt, found.time_us, found.output_tokens, found.session, found.key) == ("a\nb", 1_500_000, 7, None, None)


def test_aiperf_single_turns_of_a_session_wait_for_one_another_and_are_complete() -> None:
    first, other, second = good(
        "aiperf",
        {"session_id": "s", "text": "a", "delay": 9},
        {"session_id": "t", "text": "b"},
        {"session_id": "s", "text": "c", "delay": 1500},
    )
    assert (second.session, second.parent, second.think_s, second.continues) == ("s", first.key, 1.5, False)
    assert first.think_s == 0 and first.parent is None and other.parent is None and len({first.key, other.key, second.key}) == 3


@pytest.mark.parametrize(
    ("row", "drop"),
    [
        ({"text": "a", "image": "a.png"}, "has images"),
        ({"texts": ["a"], "images": ["a.png"]}, "has images"),
        ({"image_uuids": ["u"]}, "has images"),
        ({"text": "a", "audios": ["a.wav"]}, "has audio"),
        ({"text": "a", "video": "a.mp4"}, "has video"),
        ({"messages": [{"role": "user", "content": [IMAGE]}], "output_length": 1}, "has images"),
    ],
)
def test_aiperf_media_are_dropped(row: dict[str, Any], drop: str) -> None:
    assert one("aiperf", row).drop == drop


def test_aiperf_multi_turn_rows_continue_turn_by_turn_and_row_by_row() -> None:
    turns = [{"text": "a", "output_length": 4}, {"text": "b", "delay": 2000}]
    first, second, third, alone = good(
        "aiperf", {"session_id": "s", "turns": turns}, {"session_id": "s", "turns": [{"text": "c"}]}, {"turns": [{"text": "d"}]}
    )
    assert [row.prompt for row in (first, second, third)] == ["a", "b", "c"] and second.think_s == 2 and first.output_tokens == 4
    assert [row.parent for row in (first, second, third, alone)] == [None, first.key, second.key, None]
    assert [row.continues for row in (first, second, third, alone)] == [False, True, True, False]


def test_aiperf_a_bare_system_turn_in_front_is_no_request_of_its_own() -> None:
    system = {"role": "system", "text": "be kind"}
    first, second = good("aiperf", {"turns": [system, {"text": "a"}, {"text": "b"}]})
    assert first.messages == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a"}]
    assert second.messages == [{"role": "user", "content": "b"}] and second.continues and second.parent == first.key
    assert len(good("aiperf", {"turns": [system | {"delay": 5}, {"text": "a"}]})) == 2, "it has a time, so it is sent"
    assert len(good("aiperf", {"turns": [system]})) == 1


def test_aiperf_input_length_rows_of_a_session_are_what_is_new_and_their_blocks_too() -> None:
    first, second = good(
        "aiperf",
        {"session_id": "s", "input_length": 1536, "output_length": 320, "hash_ids": [0, 1, 2], "timestamp": 0.0, "group_id": 4},
        {"session_id": "s", "input_length": 768, "output_length": 180, "hash_ids": [1000, 1001], "delay": 2450.3},
    )
    assert (first.prompt_tokens, first.blocks, first.time_us, first.continues) == (1536, [0, 1, 2], 0, False)
    assert (second.prompt_tokens, second.blocks, second.time_us, second.think_s) == (768, [1000, 1001], None, 2.4503)
    assert second.continues and second.parent == first.key


@pytest.mark.parametrize(
    ("row", "continues"),
    [
        ({"text_input": "a"}, True),
        ({"input_length": 9}, True),
        ({"input_length": 9, "context_mode": "deltas_without_responses"}, True),
        ({"input_length": 9, "context_mode": "message_array_with_responses"}, False),
        ({"messages": [HELLO]}, False),
        ({"messages": [HELLO], "message_mode": "history"}, False),
        ({"messages": [HELLO], "message_mode": "delta"}, True),
        ({"payload": {"prompt": "a"}}, False),
    ],
)
def test_aiperf_later_rows_of_a_session_are_deltas_or_complete_by_their_kind(row: dict[str, Any], continues: bool) -> None:
    first, second = good("aiperf", row | {"session_id": "s"}, row | {"session_id": "s"})
    assert (first.continues, second.continues, second.parent) == (False, continues, first.key)


def test_aiperf_payloads_are_request_bodies() -> None:
    row = one("aiperf", {"payload": {"prompt": "a", "max_tokens": 50}, "timestamp": 1000})
    assert (row.prompt, row.output_tokens, row.time_us) == ("a", 50, 1_000_000)
    row = one("aiperf", {"payload": {"messages": [HELLO], "max_completion_tokens": 50}, "output_length": 7})
    assert (row.messages, row.output_tokens) == ([HELLO], 7)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": 1}, "has neither turns, text"),
        ({"text": "a", "texts": ["b"]}, "text and texts exclude one another"),
        ({"text": "a", "timestamp": 1, "delay": 2}, "timestamp and delay exclude one another"),
        ({"text": "a", "delay": -1}, "delay should not be negative"),
        ({"text": "a", "session_id": ["s"]}, "session_id should be text"),
        ({"texts": ["a", ""]}, "texts is empty"),
        ({"turns": []}, "turns should be a list of turns"),
        ({"turns": [{"text": "a"}, {"text": 7}]}, "text should be text"),
        ({"input_length": 9, "text_input": "a"}, "input_length and text_input exclude one another"),
        ({"text_input": "a", "hash_ids": [1]}, "hash_ids go with input_length, not with text_input"),
        ({"input_length": 600, "hash_ids": [1]}, "hash_ids has 1 blocks, 600 tokens in blocks of 512 need 2"),
        ({"text_input": "a", "message_mode": "delta"}, "message_mode 'delta' does not go with text_input"),
        ({"messages": [HELLO], "message_mode": 7}, "message_mode '7' does not go with messages"),
        ({"input_length": 9, "context_mode": "deltas_with_responses"}, "cannot be read"),
        ({"messages": []}, "messages holds no text"),
        ({"messages": [{"content": "a"}]}, "messages[0].role should be text"),
        ({"payload": "a"}, "payload should be a request's body"),
    ],
)
def test_aiperf_mistakes_are_named(row: dict[str, Any], said: str) -> None:
    assert said in fault("aiperf", row)


def test_a_conversation_with_a_bad_turn_is_left_out_whole() -> None:
    found = read("aiperf", {"session_id": "s", "turns": [{"text": "a"}, {"text": ""}]}, {"session_id": "s", "turns": [{"text": "b"}]})
    assert [type(row) for row in found] == [Malformed, TraceRow]
    assert isinstance(found[1], TraceRow) and found[1].parent is None


# Access logs

CHAT = {"model": "m", "messages": [HELLO], "max_tokens": 100}
USAGE = {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}


@pytest.mark.parametrize(
    "row",
    [
        CHAT | {"usage": USAGE},
        {"request": CHAT, "response": {"usage": USAGE, "status_code": 200}},
        {"request_body": json.dumps(CHAT), "response_body": json.dumps({"usage": USAGE})},
        {"body": CHAT, "usage": USAGE, "status": "completed"},
        {
            "custom_id": "r",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": CHAT,
            "usage": {"input_tokens": 12, "output_tokens": 8},
        },
        {"request": {"method": "POST", "body": CHAT}, "response": {"status_code": 200, "body": {"usage": USAGE}}, "error": None},
        CHAT | {"prompt_tokens": 12, "completion_tokens": 8},
    ],
    ids=["row", "request and response", "as text", "body", "input_tokens", "bodies in wrappers", "counts in the row"],
)
def test_a_log_row_has_the_text_and_what_the_server_counted(row: dict[str, Any]) -> None:
    found = one("openai_log", row)
    assert (found.messages, found.prompt_tokens, found.output_tokens, found.drop) == ([HELLO], 12, 8, None)


def test_without_usage_the_output_is_what_the_request_allowed() -> None:
    assert one("openai_log", {"custom_id": "r", "body": CHAT}).output_tokens == 100
    assert one("openai_log", CHAT | {"max_completion_tokens": 50}).output_tokens == 50
    assert one("openai_log", CHAT | {"max_tokens": None}).output_tokens is None


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"prompt": "hello"}, "prompt", "hello"),
        ({"prompt": ["hello"]}, "prompt", "hello"),
        ({"prompt": [5, 6]}, "prompt_ids", [5, 6]),
        ({"prompt": [[5, 6]]}, "prompt_ids", [5, 6]),
        ({"input": "hello"}, "messages", [HELLO]),
        ({"input": [HELLO], "instructions": "be kind"}, "messages", [{"role": "system", "content": "be kind"}, HELLO]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]}]},
         "messages", [{"role": "user", "content": "a\nb"}]),
        ({"messages": [HELLO, {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}], "junk": 1}]},
         "messages", [HELLO, {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}]),
    ],
)  # fmt: skip
def test_bodies_of_every_endpoint_are_read(body: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(one("openai_log", {"model": "m"} | body), field) == value


@pytest.mark.parametrize(
    ("row", "drop"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]}, "has images"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "has audio"),
        ({"prompt": ["a", "b"]}, "holds several prompts"),
        ({"input": ["a", "b"]}, "holds several prompts"),
        ({"url": "/v1/embeddings", "body": {"model": "m", "input": "a"}}, "is no generation"),
        (CHAT | {"status_code": 500}, "failed: status 500"),
        (CHAT | {"status": "429"}, "failed: status 429"),
        (CHAT | {"status": 0}, "failed: status 0"),
        (CHAT | {"status": "Cancelled"}, "failed: status cancelled"),
        (CHAT | {"error": {"message": "no"}}, "failed: error"),
        ({"custom_id": "r", "response": {"status_code": 400, "body": {"error": {}}}}, "failed: status 400"),
        ({"custom_id": "r", "response": None, "error": {"code": "expired"}}, "failed: error"),
    ],
)
def test_what_failed_or_cannot_be_replayed_is_dropped_by_name(row: dict[str, Any], drop: str) -> None:
    assert one("openai_log", row).drop == drop


@pytest.mark.parametrize(
    "body", [{}, {"messages": []}, {"prompt": ""}, {"messages": [{"role": "user", "content": None}]}, {"prompt": None}]
)
def test_redacted_bodies_leave_the_lengths(body: dict[str, Any]) -> None:
    row = one("openai_log", {"model": "m", "usage": USAGE, "time": 5} | body)
    assert (row.prompt, row.messages, row.prompt_tokens, row.output_tokens) == (None, None, 12, 8)


@pytest.mark.parametrize("name", ["timestamp", "created", "created_at", "time", "ts", "start_time"])
@pytest.mark.parametrize(
    "stamp",
    [1700000000.25, "1700000000.25", 1700000000250, 1700000000250000, 1700000000250000000, "2023-11-14T22:13:20.25Z",
     "2023-11-14 23:13:20.250000+01:00", "2023-11-14T22:13:20.2500000"],
)  # fmt: skip
def test_log_times_are_seconds_ms_us_ns_or_iso(name: str, stamp: Any) -> None:
    assert one("openai_log", CHAT | {name: stamp}).time_us == 1_700_000_000_250_000


def test_a_time_in_the_row_wins_over_one_in_the_response() -> None:
    assert one("openai_log", {"request": CHAT, "response": {"created": 9}, "timestamp": 5}).time_us == 5_000_000
    assert (
        one("openai_log", {"custom_id": "r", "response": {"status_code": 200, "body": {"created": 9, "usage": USAGE}}}).time_us == 9_000_000
    )
    assert one("openai_log", CHAT).time_us is None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"model": "m"}, "has neither messages, prompt nor usage"),
        ({"body": '{"model": "cut of'}, "body should hold a JSON object"),
        (CHAT | {"usage": 7}, "usage should be an object"),
        (CHAT | {"usage": {"prompt_tokens": -3}}, "prompt_tokens should be a whole number"),
        (CHAT | {"status": True}, "status should be a status"),
        (CHAT | {"status": 10**40}, "status should be a status"),
        (CHAT | {"time": "yesterday"}, "time should be a time"),
        (CHAT | {"time": float("nan")}, "time should be a time"),
        (CHAT | {"time": True}, "time should be a time"),
        (CHAT | {"time": "1e999"}, "time should be a time"),
        ({"messages": {"role": "user"}}, "messages should be a list of messages"),
        ({"messages": ["hello"]}, "messages[0] should be a message"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content should be text or a list of parts"),
        ({"messages": [HELLO | {"tool_calls": ["\ud800"]}]}, "messages[0] is not valid Unicode"),
        ({"prompt": [5, "a"]}, "prompt should be a list of token ids"),
        ({"prompt": {}}, "prompt should be text"),
        ({"input": 7}, "input should be text"),
    ],
)
def test_log_mistakes_are_named(row: dict[str, Any], said: str) -> None:
    assert said in fault("openai_log", row)


# Detection

TIMED = {"timestamp": 0, "input_length": 600, "output_length": 9}
RECORDS: list[tuple[str | None, dict[str, Any]]] = [
    ("vllm_custom", {"prompt": "a"}),
    ("vllm_custom", {"prompt": "a", "output_tokens": 3}),
    ("vllm_custom", {"prompt": "a", "image_files": ["b"]}),
    ("vllm_custom", {"prompt": "a", "timestamp": 3, "response": "b"}),
    ("vllm_custom", {"content": [{"type": "text", "text": "a"}]}),
    ("sglang", SHAREGPT[0]),
    ("sglang", {"conversation_id": "c", "model": "m", "conversation": [HELLO, HELLO], "turn": 1}),
    ("sglang", {"input_tokens": [1], "output_tokens": [2], "ts": 0}),
    ("sglang", {"num_input_tokens": 1, "num_output_tokens": 2, "ts": 0}),
    ("guidellm", {"prompt": "a", "prompt_tokens_count": 1, "output_tokens_count": 2}),
    ("guidellm", {"text": "a", "output_tokens_count": 2}),
    ("guidellm", {"prompt_0": "a", "prompt_1": "b"}),
    ("guidellm", {"Question-0": "a", "model": "m"}),
    ("guidellm", {"prompt": "a", "relative_timestamp": 2}),
    ("guidellm", {"prefix": "", "prompt_0": "a", "prompt_tokens_count_0": 1, "output_tokens_count_0": 2}),
    ("aiperf", {"text": "a"}),
    ("aiperf", {"texts": ["a"], "images": ["b"], "timestamp": 1}),
    ("aiperf", {"session_id": "s", "turns": [{"text": "a"}]}),
    ("aiperf", {"text_input": "a", "output_length": 3}),
    ("aiperf", {"payload": {"messages": [HELLO]}, "timestamp": 1}),
    ("aiperf", {"messages": [HELLO], "output_length": 3, "session_id": "s"}),
    ("aiperf", {"session_id": "s", "messages": [HELLO], "message_mode": "delta"}),
    ("aiperf", {"session_id": "s"} | TIMED | {"hash_ids": [1, 2]}),
    ("aiperf", {"input_length": 150, "output_length": 20, "delay": 2}),
    ("openai_log", CHAT),
    ("openai_log", {"messages": [HELLO], "usage": USAGE, "session_id": "s"}),
    ("openai_log", {"model": "m", "prompt": "a", "output_tokens": 3}),
    ("openai_log", {"prompt": "a", "max_tokens": 3}),
    ("openai_log", {"timestamp": 1, "request": CHAT, "response": {"usage": USAGE}}),
    ("openai_log", {"ts": 1, "request_body": json.dumps(CHAT), "status": 200}),
    ("openai_log", {"custom_id": "r", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}),
    ("openai_log", {"id": "b", "custom_id": "r", "response": {"status_code": 200, "body": {"usage": USAGE}}, "error": None}),
    ("openai_log", {"time": 1, "model": "m", "usage": USAGE}),
    ("mooncake", TIMED | {"hash_ids": [1, 2]}),
    ("timed_trace", TIMED | {"hash_ids": list(range(38))}),
    ("bailian", TIMED | {"hash_ids": list(range(38)), "chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1}),
    (None, {"messages": [HELLO]}),
    (None, {"messages": [HELLO], "timestamp": 3}),
    (None, {"input_length": 3, "output_length": 4}),
    (None, {"prompt": "a", "system_prompt": "b"}),
    (None, {"turns": ["a", "b"], "category": "writing"}),
    (None, {"id": 7}),
    (None, {}),
]
COLUMNS = [
    ("guidellm", "id,Prompt,output_tokens_count"),
    ("guidellm", "prompt_0,output_tokens_count_0,prompt_1"),
    ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens"),
    (None, "prompt,output"),
    (None, "prompt_tokens_count,output_tokens_count"),
]


@pytest.mark.parametrize(("name", "head"), [(name, Head(record=record)) for name, record in RECORDS]
                         + [(name, Head(columns=frozenset(header.split(",")))) for name, header in COLUMNS])  # fmt: skip
def test_at_most_one_importer_claims_a_file_and_the_right_one(name: str | None, head: Head) -> None:
    claiming = [found for found in plugins.names("importer") if importer(found).claims(head)]
    assert claiming == ([] if name is None else [name])


# Whatever a row holds

VALID: dict[str, list[dict[str, Any]]] = {
    "vllm_custom": [
        {"prompt": "a", "output_tokens": 3, "image_files": [], "audio_files": []},
        {"content": [{"type": "text", "text": "a"}, IMAGE], "output_tokens": 3},
    ],
    "sglang": [
        {"conversations": [{"from": "human", "value": "a"}, {"role": "gpt", "content": "b"}], "image": ""},
        {"conversation": ['{"value": "a"}', {"value": "b"}]},
        {"input_tokens": [1, 2], "num_input_tokens": 2, "output_tokens": [3], "num_output_tokens": 1, "ts": 0.5},
    ],
    "guidellm": [
        {"system": "s", "prompt_0": "a", "prompt_1": "b", "prompt_tokens_count_0": 1, "output_tokens_count_1": 2,
         "relative_timestamp": 1, "requeue_delay_0": 1, "images_1": None, "conversation_turns": None},
    ],
    "aiperf": [
        {"texts": [{"name": "f", "contents": ["a"]}, "b"], "image": None, "timestamp": 1, "delay": 0, "role": "user", "session_id": "s"},
        {"session_id": "s", "turns": [{"role": "system", "text": "a"}, {"text": "b", "delay": 5, "output_length": 3, "audio": None}]},
        {"session_id": "s", "input_length": 600, "hash_ids": [1, 2], "output_length": 3, "timestamp": 1, "context_mode": None},
        {"session_id": "s", "messages": [HELLO], "message_mode": "delta", "delay": 5},
        {"payload": {"prompt": ["a"], "max_tokens": 3}},
    ],
    "openai_log": [
        CHAT | {"usage": USAGE, "timestamp": 1, "status": 200, "error": None},
        {"request": {"method": "POST", "url": "u", "body": {"input": [HELLO], "instructions": "i"}},
         "response": {"status_code": 200, "body": {"usage": USAGE, "created": 5}}},
        {"request_body": json.dumps(CHAT), "response_body": "{}", "ts": "2024-01-01T00:00:00Z"},
        {"model": "m", "prompt": [[1, 2]], "max_completion_tokens": 4, "start_time": 1},
        {"model": "m", "messages": [HELLO, {"role": "r", "content": [{"type": "text", "text": "a"}, IMAGE], "tool_calls": [{"id": 1}]}]},
    ],
}  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.sampled_from(["", "-1", "\ud800", "{", "nan", "1e999", "system", 10**400, -(10**20), float("nan"), float("inf"), "9" * 5000])
)  # fmt: skip
KEYS = st.sampled_from(["value", "content", "role", "type", "text", "contents", "body", "messages", "prompt", "usage", "a"])
JUNK = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to everything inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, part in inner for place in places(part, (*here, key)))]


def put(row: Any, place: tuple[Any, ...], junk: Any) -> Any:
    if not place:
        return junk
    row = copy.deepcopy(row)
    part = row
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = junk
    return row


@pytest.mark.parametrize("name", VALID)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_whatever_stands_in_a_row_it_is_a_row_or_a_named_mistake(name: str, data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(VALID[name]))
    broken = put(row, data.draw(st.sampled_from(places(row))), data.draw(JUNK))
    found = read(name, row, broken, row)
    assert found[0] == good(name, row)[0] and all(
        (isinstance(entry, Malformed) and entry.reason) or isinstance(entry, TraceRow) for entry in found
    )
    assert {entry.line for entry in found} == {1, 2, 3}, "every row says what became of it"
    head = Head(record=broken if isinstance(broken, dict) else None)
    assert all(type(importer(other).claims(head)) is bool for other in VALID)
    for entry in found:
        if isinstance(entry, TraceRow):
            for told in (entry.prompt, entry.answer, entry.session, entry.drop, json.dumps(entry.messages, ensure_ascii=False)):
                assert told is None or told.encode() is not None
            assert entry.drop or any(part is not None for part in (entry.prompt, entry.messages, entry.prompt_ids, entry.prompt_tokens))


@pytest.mark.parametrize("name", VALID)
def test_nesting_of_any_depth_is_a_named_mistake(name: str) -> None:
    for row in VALID[name]:
        text = json.dumps(row | {"note": "DEEP"}).replace('"DEEP"', "[" * 100_000 + "]" * 100_000).encode()
        assert [type(found) for found in read(name, text)] == [Malformed], "no reader of JSON goes so deep"
        for place in places(row)[1:]:
            for depth in (900, 960, 985, 990, 995):  # JSON that reads, and that Python cannot quote
                text = json.dumps(put(row, place, "DEEP")).replace('"DEEP"', "[" * depth + "]" * depth).encode()
                assert all(isinstance(found, TraceRow | Malformed) for found in read(name, text))
