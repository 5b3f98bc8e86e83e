"""Access logs of OpenAI-style servers and gateways, and the batch API's files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cbbench.importers._chat import cap, decoded, fill, length
from cbbench.importers._guidellm import marked
from cbbench.importers.base import Head, JsonImporter, TraceRow, microseconds, stamp_us

REQUEST = ("request", "body", "request_body")
RESPONSE = ("response", "response_body")
TIMES = ("timestamp", "created", "created_at", "time", "ts", "start_time")
PROMPTS = {"messages", "prompt", "input"}
BODY = {"model", "usage", "max_tokens", "max_completion_tokens"}
OTHERS = {"text_input", "payload", "input_length", "turns", "chat_id", "conversations", "conversation"}
FAILED = {"failed", "error", "cancelled", "canceled", "expired"}


class OpenaiLog(JsonImporter):
    """Bodies {messages|prompt|input, max_tokens} with usage, status and a time: in the row, or in request and response.

    Cost: text wins over usage, and text without its tools is shorter than what the server counted; where a body was
    redacted only the lengths are left. Without usage the output is as long as max_tokens allowed, which is too long. A
    time is unix seconds, or ms, us, ns by its size, or ISO text. Failed, multimodal and many-prompt requests are dropped.
    Use when: your own server's or gateway's log is to be replayed (JSONL), or a batch file (no times).
    """

    keys = ()
    source = "the user's own log"

    @classmethod
    def claims(cls, head: Head) -> bool:
        record, keys = head.record or {}, head.keys
        if keys & OTHERS or marked(keys):
            return False
        try:
            asked, answered = _layers(record, REQUEST), _layers(record, RESPONSE)
        except ValueError:
            return False
        wrapped = any(layer.keys() & PROMPTS for layer in asked) or any(isinstance(layer.get("usage"), dict) for layer in answered)
        plain = bool(keys & PROMPTS and keys & BODY) or isinstance(record.get("usage"), dict)
        return wrapped or plain or keys >= {"prompt_tokens", "completion_tokens"}

    def rows(self, line: int, data: dict[str, Any]) -> Iterator[TraceRow]:
        asked, answered = _layers(data, REQUEST), _layers(data, RESPONSE)
        body = asked[-1] if asked else data
        row = TraceRow(line, time_us=_time_us([data, *asked, *answered]))
        row.drop = _failure([data, *answered]) or _unlike([data, *asked])
        if row.drop is None:
            usage = _usage([data, *answered])
            row.prompt_tokens = _count(usage, "prompt_tokens", "input_tokens")
            row.output_tokens = _count(usage, "completion_tokens", "output_tokens")
            if row.output_tokens is None:
                row.output_tokens = cap(body)
            fill(row, body)
            if row.prompt is None and row.prompt_ids is None and row.messages is None and row.prompt_tokens is None and not row.drop:
                raise ValueError("has neither messages, prompt nor usage")
        yield row


def _layers(data: dict[str, Any], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The object under the first of the names that holds one, and the `body` in it: the batch API's {status_code, body}."""
    outer = _object(data, names)
    inner = _object(outer or {}, ("body",))
    return [layer for layer in (outer, inner) if layer is not None]


def _object(data: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    """An object, or one that stands there as JSON in a text."""
    for name in names:
        value = data.get(name)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = decoded(name, value)
        if isinstance(value, dict):
            return value
    return None


def _first(layers: list[dict[str, Any]], *names: str) -> tuple[str, Any]:
    """The first of the names that says something, and what."""
    return next(((name, layer[name]) for layer in layers for name in names if layer.get(name) is not None), ("", None))


def _count(usage: dict[str, Any], *names: str) -> int | None:
    return length(*_first([usage], *names))


def _usage(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """`usage`, or the row itself, where some gateways write its counts."""
    _, usage = _first(layers, "usage")
    if not isinstance(usage, dict | None):
        raise ValueError(f"usage should be an object, is {str(usage)[:40]!r}")
    return layers[0] if usage is None else usage


def _failure(layers: list[dict[str, Any]]) -> str | None:
    name, status = _first(layers, "status_code", "status")
    if not isinstance(status, str | int | None) or isinstance(status, bool):
        raise ValueError(f"{name} should be a status, is {str(status)[:40]!r}")
    if isinstance(status, int) or (status or "").isdecimal():
        number = int(status or 0)
        if not 0 <= number <= 999:
            raise ValueError(f"{name} should be a status, is {str(status)[:40]!r}")
        if not 100 <= number < 400:
            return f"failed: status {number}"
    if str(status).lower() in FAILED:
        return f"failed: status {str(status).lower()}"
    return "failed: error" if any(layer.get("error") for layer in layers) else None


def _unlike(layers: list[dict[str, Any]]) -> str | None:
    """Why a request that worked is none for generation."""
    _, url = _first(layers, "url", "path", "endpoint")
    return "is no generation" if isinstance(url, str) and url.rstrip("/").endswith(("/embeddings", "/moderations")) else None


def _time_us(layers: list[dict[str, Any]]) -> int | None:
    name, value = _first(layers, *TIMES)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return stamp_us(name, value)
    if value is None:
        return None
    size = abs(value) if isinstance(value, int | float) else 0
    unit_us = next((unit for least, unit in ((1e18, 1e-3), (1e15, 1.0), (1e12, 1e3)) if size > least), 1e6)
    return microseconds(name, value, unit_us)
