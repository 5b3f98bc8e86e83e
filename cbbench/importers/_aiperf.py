"""One entry of AIPerf's files: a turn, a conversation of turns, or a line of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cbbench.importers._chat import MEDIA, cap, fill, said
from cbbench.importers.base import TraceRow, block_ids, covered, microseconds, whole

INPUTS = ("input_length", "text_input", "messages", "payload")
COMPLETE, DELTAS = "message_array_with_responses", "deltas_without_responses"  # context modes: the whole prompt, or its end


def conversation(line: int, turns: Any, hoist: bool) -> list[TraceRow]:
    """multi_turn. A bare system turn in front is no request but goes in front of the first one."""
    if not isinstance(turns, list) or not turns or not all(isinstance(entry, dict) for entry in turns):
        raise ValueError(f"turns should be a list of turns, is {str(turns)[:40]!r}")
    made = [turn(line, entry) for entry in turns]
    bare = turns[0].get("role") == "system" and all(turns[0].get(name) is None for name in ("timestamp", "delay", "output_length", "extra"))
    if any(row.messages for row in made):
        for row in made:
            row.messages, row.prompt = row.messages or [{"role": "user", "content": row.prompt}], None
    if hoist and bare and len(made) > 1 and not made[0].drop:
        made[1].messages = [*(made[0].messages or []), *(made[1].messages or [])]
        del made[0]
    for row in made:
        row.continues = True
    return made


def turn(line: int, data: dict[str, Any]) -> TraceRow:
    """single_turn: a request that is complete, or the next part of its conversation."""
    row = _schedule(TraceRow(line), data)
    if data.get("timestamp") and data.get("delay"):
        raise ValueError("timestamp and delay exclude one another")
    row.drop = next((why for kind, why in MEDIA.items() if any(data.get(f"{kind}{end}") for end in ("", "s", "_uuids"))), None)
    texts = list(_texts(data))
    if not texts and not row.drop:
        raise ValueError("has neither turns, text, texts nor " + ", ".join(INPUTS))
    role = data.get("role")
    if role in (None, "user"):
        row.prompt = "\n".join(texts) or None
    else:
        row.messages = [{"role": said("role", role), "content": "\n".join(texts)}]
    return row


def _texts(data: dict[str, Any]) -> Iterator[str]:
    one, many = data.get("text"), data.get("texts")
    if one and many:
        raise ValueError("text and texts exclude one another")
    if one is not None:
        yield said("text", one)
    if not isinstance(many, list | None):
        raise ValueError(f"texts should be a list, is {str(many)[:40]!r}")
    for entry in many or []:
        contents = entry.get("contents") if isinstance(entry, dict) else [entry]
        if not isinstance(contents, list):
            raise ValueError(f"texts should hold lists of contents, holds {str(contents)[:40]!r}")
        yield from (said("texts", content) for content in contents)


def trace(line: int, data: dict[str, Any]) -> TraceRow:
    """mooncake_trace."""
    modes = [name for name in INPUTS if data.get(name) is not None]
    mode, mixed = data.get("message_mode"), data.get("context_mode")
    if len(modes) > 1:
        raise ValueError(f"{' and '.join(modes)} exclude one another")
    if mode not in (None, "history") and (mode != "delta" or modes != ["messages"]):
        raise ValueError(f"message_mode {str(mode)[:40]!r} does not go with {modes[0]}")
    whole_rows = modes[0] in ("messages", "payload")
    if mixed not in (None, COMPLETE) and (mixed != DELTAS or whole_rows):
        raise ValueError(f"context_mode {str(mixed)[:40]!r} of {modes[0]} cannot be read")
    if data.get("hash_ids") is not None and modes != ["input_length"]:
        raise ValueError(f"hash_ids go with input_length, not with {modes[0]}")
    row = _schedule(TraceRow(line), data)
    row.continues = mode == "delta" if whole_rows else mixed != COMPLETE
    value = data[modes[0]]
    if modes == ["input_length"]:
        row.prompt_tokens = whole("input_length", value)
        if data.get("hash_ids"):
            row.blocks = covered("hash_ids", block_ids("hash_ids", data["hash_ids"]), row.prompt_tokens, 512)
    elif modes == ["text_input"]:
        row.prompt = said("text_input", value)
    else:
        _requested(row, modes[0], {"messages": value} if modes == ["messages"] else value)
    return row


def _requested(row: TraceRow, name: str, body: Any) -> None:
    if not isinstance(body, dict):
        raise ValueError(f"{name} should be a request's body, is {str(body)[:40]!r}")
    fill(row, body)
    if row.prompt is None and row.prompt_ids is None and row.messages is None and not row.drop:
        raise ValueError(f"{name} holds no text")
    if row.output_tokens is None:
        row.output_tokens = cap(body)


def _schedule(row: TraceRow, data: dict[str, Any]) -> TraceRow:
    """The row with timestamp, delay and output_length."""
    if data.get("timestamp") is not None:
        row.time_us = microseconds("timestamp", data["timestamp"], 1000)
    if data.get("delay") is not None:
        row.think_s = microseconds("delay", data["delay"], 1000) / 1e6
        if row.think_s < 0:
            raise ValueError(f"delay should not be negative, is {str(data['delay'])[:40]!r}")
    if data.get("output_length") is not None:
        row.output_tokens = whole("output_length", data["output_length"])
    return row
