"""The trace that vLLM's `timed_trace` and GuideLLM's trace datasets read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from cbbench.importers.base import Head, JsonImporter, TraceRow, block_ids, covered, microseconds, whole
from cbbench.strategy import StrictOptions

OTHERS = frozenset(["prompt", "conversations", "text", "text_input", "turns", "messages", "payload", "delay", "session_id", "chat_id"])


class TimedTrace(JsonImporter):
    """timestamp (s), input_length, output_length, perhaps hash_ids (of 16-token blocks): what vLLM and GuideLLM replay.

    Cost: the file does not say its unit of time; a trace in ms needs seconds_per_unit: 0.001. Blocks of another size are
    refused row by row, never shortened, until block_tokens is right. Without hash_ids no prefix is shared.
    Use when: a trace was written for those tools, or has these fields under other names.
    """

    class Options(StrictOptions):
        timestamp: str = Field("timestamp", min_length=1, description="the field with the time of arrival")
        input_length: str = Field("input_length", min_length=1, description="the field with the prompt's tokens")
        output_length: str = Field("output_length", min_length=1, description="the field with the output's tokens")
        hash_ids: str = Field("hash_ids", min_length=1, description="the field with the ids of the prompt's blocks")
        seconds_per_unit: float = Field(1.0, gt=0, description="what 1 means in the time field; 0.001 for Mooncake's")
        block_tokens: int = Field(16, ge=1, description="tokens a block; 512 for Mooncake's")

    options: Options
    keys = ()  # under names of the user's choice, so `rows` looks

    def __init__(self, options: StrictOptions | None = None) -> None:
        super().__init__(options)
        self.block_tokens = self.options.block_tokens

    @classmethod
    def claims(cls, head: Head) -> bool:
        """These keys, no text and no session; with whole blocks of 512 the file is `mooncake`'s, which is in ms."""
        if not head.keys >= {"timestamp", "input_length", "output_length"} or head.keys & OTHERS:
            return False
        try:
            next(cls(cls.Options(seconds_per_unit=0.001, block_tokens=512)).rows(1, head.record or {}))
        except ValueError:
            return True
        return "hash_ids" not in head.keys

    def rows(self, line: int, data: dict[str, Any]) -> Iterator[TraceRow]:
        names = self.options
        lacking = [name for name in (names.timestamp, names.input_length, names.output_length) if name not in data]
        if lacking:
            raise ValueError(f"lacks {', '.join(lacking)}")
        time_us = microseconds(names.timestamp, data[names.timestamp], names.seconds_per_unit * 1_000_000)
        row = TraceRow(line, whole(names.input_length, data[names.input_length]), time_us=time_us)
        row.output_tokens = whole(names.output_length, data[names.output_length])
        if names.hash_ids in data:
            ids = block_ids(names.hash_ids, data[names.hash_ids])
            row.blocks = covered(names.hash_ids, ids, row.prompt_tokens or 0, names.block_tokens)
        yield row
