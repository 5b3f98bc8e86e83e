"""Alibaba's Qwen-Bailian usage traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cbbench.importers.base import Head, JsonImporter, TraceRow, block_ids, covered, microseconds, whole


class Bailian(JsonImporter):
    """timestamp (s), input_length, output_length, hash_ids of 16-token blocks, chat_id and its parent: chats and prefixes.

    Cost: every row is a whole request with its history, so nothing may be put before it. A cut lacks parents of rows that
    it holds; a turn need not repeat all of the answer before it, nor share its last block.
    Use when: turns of chats that share fine blocks matter (qwen_*_blksz_16.jsonl). Rows of type image and file are kept:
    their lengths are tokens.
    """

    keys = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")
    block_tokens = 16
    is_prefix_tree = False  # whether an id names a block's content alone is not said
    source = "alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0"

    @classmethod
    def claims(cls, head: Head) -> bool:
        texts = {"prompt", "conversations", "text", "text_input", "turns", "messages", "payload", "session_id"}
        return super().claims(head) and not head.keys & texts

    def rows(self, line: int, data: dict[str, Any]) -> Iterator[TraceRow]:
        chat, parent = chat_id("chat_id", data["chat_id"]), chat_id("parent_chat_id", data["parent_chat_id"])
        if chat is None or chat == parent:
            raise ValueError(f"chat_id {data['chat_id']} is its own parent" if chat else "chat_id should name the request, is -1")
        prompt_tokens = whole("input_length", data["input_length"])
        blocks = covered("hash_ids", block_ids("hash_ids", data["hash_ids"]), prompt_tokens, 16)
        output_tokens = whole("output_length", data["output_length"])
        time_us = microseconds("timestamp", data["timestamp"], 1_000_000)
        yield TraceRow(line, prompt_tokens, output_tokens, time_us, blocks=blocks, key=chat, parent=parent)


def chat_id(name: str, value: Any) -> str | None:
    """The id as text; -1 is none."""
    if type(value) is not int or value < -1:
        raise ValueError(f"{name} should be a whole number, is {str(value)[:40]!r}")
    return None if value == -1 else str(value)
