"""AIPerf's files and OpenAI-style access logs read as requests; what cannot be replayed is dropped by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cbbench.importers.base import Malformed, TraceRow
from tests.importers.test_importers_text import HELLO, IMAGE, fault, good, one, read


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
