"""SGLang's custom, ShareGPT and token-trace files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cbbench.importers._chat import decoded, length, said, spoken, token_ids
from cbbench.importers._guidellm import marked
from cbbench.importers.base import Head, JsonImporter, TraceRow, microseconds, whole


class Sglang(JsonImporter):
    """conversations of {from|role, value|content}: turn 0 is the prompt, turn 1's tokens are the output; or ids and ts (s).

    Cost: the turns behind the second are not used, and turn 0 is the prompt whoever speaks it, as SGLang and vLLM have
    it; both also shuffle and leave out what is under 2 or 4 tokens, which is not done here. Only token traces have times.
    Use when: a ShareGPT dump or a file for `sglang.bench_serving` (--dataset-name custom, sharegpt, token-trace) is at hand.
    """

    keys = ()
    source = "the user's own file in the format of sgl-project/sglang; ShareGPT texts are not for redistribution"

    @classmethod
    def claims(cls, head: Head) -> bool:
        record = head.record or {}
        if marked(head.keys) or head.keys & {"messages", "usage"}:
            return False
        if isinstance(record.get("conversations", record.get("conversation")), list):
            return True
        return isinstance(record.get("input_tokens"), list) or head.keys >= {"num_input_tokens", "num_output_tokens"}

    def rows(self, line: int, data: dict[str, Any]) -> Iterator[TraceRow]:
        name = "conversations" if "conversations" in data else "conversation"
        if name in data:
            yield _dialogue(line, data, name)
        elif data.keys() & {"input_tokens", "num_input_tokens"}:
            yield _tokens(line, data)
        else:
            raise ValueError("lacks conversations, conversation or input_tokens")


def _dialogue(line: int, data: dict[str, Any], name: str) -> TraceRow:
    turns = data[name]
    if not isinstance(turns, list):
        raise ValueError(f"{name} should be a list of turns, is {str(turns)[:40]!r}")
    if len(turns) < 2:
        raise ValueError(f"{name} has {len(turns)} of the two turns that make a request")
    (prompt, drop), (answer, _) = (_turn(f"{name}[{index}]", turns[index]) for index in range(2))
    if data.get("image") or data.get("video"):
        drop = "has images" if data.get("image") else "has video"
    if not drop:
        said(f"{name}[0]", prompt)
    return TraceRow(line, prompt=prompt, answer=said(f"{name}[1]", answer), drop=drop)


def _turn(name: str, turn: Any) -> tuple[str, str | None]:
    """A turn's text. Some dumps hold a turn as a text with the JSON of one."""
    if isinstance(turn, str):
        turn = decoded(name, turn)
    if not isinstance(turn, dict):
        raise ValueError(f"{name} should be a turn, is {str(turn)[:40]!r}")
    return spoken(name, turn["value"] if turn.get("content") is None and "value" in turn else turn.get("content"))


def _tokens(line: int, data: dict[str, Any]) -> TraceRow:
    ids = data.get("input_tokens")
    row = TraceRow(line, length("num_input_tokens", data.get("num_input_tokens")))
    if ids is not None:
        row.prompt_ids = token_ids("input_tokens", ids)
        if row.prompt_tokens not in (None, len(row.prompt_ids)):
            raise ValueError(f"num_input_tokens is {row.prompt_tokens}, input_tokens holds {len(row.prompt_ids)}")
        row.prompt_tokens = len(row.prompt_ids)
    if row.prompt_tokens is None:
        raise ValueError("has neither input_tokens nor num_input_tokens")
    output = data.get("output_tokens")
    row.output_tokens = length("num_output_tokens", data.get("num_output_tokens"))
    if row.output_tokens is None and output is not None:
        row.output_tokens = len(output) if isinstance(output, list) else whole("output_tokens", output)
    if data.get("ts") is not None:
        row.time_us = microseconds("ts", data["ts"], 1e6)
    return row
