"""AIPerf's single_turn, multi_turn and mooncake_trace files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from cbbench.importers._aiperf import INPUTS, conversation, trace, turn
from cbbench.importers._chat import said
from cbbench.importers._guidellm import marked
from cbbench.importers.base import Head, JsonImporter, Read, TraceRow

OTHERS = {"chat_id", "prompt", "output_tokens", "conversations", "conversation", "input_tokens", "model", "usage", "max_tokens", "body"}


class Aiperf(JsonImporter):
    """text|texts or turns, or input_length|text_input|messages|payload (blocks of 512); timestamp, delay in ms; sessions.

    Cost: turns of multi_turn rows, and input_length or text_input rows of a session, are only what is new: the answer
    before is made up. Complete are single_turn rows, payloads, messages unless message_mode is delta, and rows with
    context_mode message_array_with_responses. Several texts become lines of one prompt. Tools are ignored.
    Use when: a file was written for `aiperf profile --input-file`, or by `aiperf synthesize agentic-code`.
    """

    keys = ()
    block_tokens = 512
    has_continuations = True
    source = "the user's own file in the format of ai-dynamo/aiperf"
    _turns: dict[str, int]  # session -> its turns so far

    @classmethod
    def claims(cls, head: Head) -> bool:
        """`messages` and `input_length` alone are not enough: logs and other traces have them, in other units of time."""
        record, keys = head.record or {}, head.keys
        if keys & OTHERS or marked(keys):
            return False
        if keys & {"input_length", "messages"}:
            ours = {"message_mode", "delay", "output_length"} if "messages" in keys else {"session_id"}
            return bool(keys & ours) or ("delay" in keys and "timestamp" not in keys)
        if "turns" in keys:
            return isinstance(record["turns"], list) and bool(record["turns"]) and isinstance(record["turns"][0], dict)
        return isinstance(record.get("payload"), dict) or bool(keys & {"text_input", "text", "texts"})

    def read(self, file: BinaryIO) -> Read:
        self._turns = {}
        return super().read(file)

    def rows(self, line: int, data: dict[str, Any]) -> Iterator[TraceRow]:
        session = data.get("session_id") or None
        if session is not None:
            session = said("session_id", str(session) if type(session) is int else session)
        before = self._turns.get(session or "", 0)
        if "turns" in data:
            made = conversation(line, data["turns"], hoist=not before)
            session = session or f"line {line}"
        else:
            made = [trace(line, data) if any(data.get(name) is not None for name in INPUTS) else turn(line, data)]
        for number, row in enumerate(made, before):
            row.session = session
            if session is not None:
                row.key, row.parent = f"{session}/{number}", f"{session}/{number - 1}" if number else None
            if row.parent is None:  # nothing that it could continue or wait for
                row.continues, row.think_s = False, 0.0
        if session is not None:
            self._turns[session] = before + len(made)
        yield from made
