"""Mooncake's traces (FAST 2025) and its arXiv-era one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cbbench.importers.base import Head, JsonImporter, TraceRow, block_ids, covered, microseconds, whole

OTHERS = {"chat_id", "session_id", "prompt", "conversations", "text", "text_input", "turns", "messages", "payload", "delay"}


class Mooncake(JsonImporter):
    """timestamp (ms), input_length, output_length, hash_ids of 512-token blocks: arrivals, lengths and shared prefixes.

    Cost: `conversation` stamps arrivals on a 3 s grid, so a literal replay is a burst every 3 s (--spread-ticks); a cut
    out of the middle shares less than the whole.
    Use when: prefix sharing of chats and agents matters (conversation, synthetic, toolagent, mooncake_trace .jsonl).
    """

    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    block_tokens = 512
    source = "kvcache-ai/Mooncake, Apache-2.0; cite Mooncake (FAST 2025)"

    @classmethod
    def claims(cls, head: Head) -> bool:
        """These keys and blocks of 512; the same keys with other blocks are `timed_trace`, with sessions `aiperf`."""
        if not super().claims(head) or head.keys & OTHERS:
            return False
        try:
            return next(cls().rows(1, head.record or {})) is not None
        except ValueError:
            return False

    def rows(self, line: int, data: dict[str, Any]) -> Iterator[TraceRow]:
        prompt_tokens = whole("input_length", data["input_length"])
        blocks = covered("hash_ids", block_ids("hash_ids", data["hash_ids"]), prompt_tokens, 512)
        output_tokens = whole("output_length", data["output_length"])
        yield TraceRow(line, prompt_tokens, output_tokens, microseconds("timestamp", data["timestamp"], 1000), blocks=blocks)
