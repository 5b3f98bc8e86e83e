"""The text formats are told apart by their keys, and whatever stands in a row is a row or a named mistake."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench import plugins
from cbbench.importers.base import Head, Malformed, TraceRow
from tests.importers.test_importers_requests import CHAT, USAGE
from tests.importers.test_importers_text import HELLO, IMAGE, SHAREGPT, good, importer, read

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
