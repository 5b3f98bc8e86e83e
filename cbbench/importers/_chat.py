"""What the formats with text share: texts, token ids, chat messages and the bodies of OpenAI requests.

Each raises ValueError in the words of the file, whatever it is given.
"""

from __future__ import annotations

import json
from typing import Any

from cbbench.importers.base import Message, TraceRow, text, whole

MEDIA = {"image": "has images", "audio": "has audio", "video": "has video", "file": "has files"}
TEXTS = ("text", "input_text", "output_text", "refusal")
CAPS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
CALLS = ("tool_calls", "tool_call_id", "name")  # what else a chat template may print of a message


def valid(name: str, value: Any) -> str:
    """Text that has a UTF-8 form: JSON may hold half of a surrogate pair, a CSV bytes of another encoding."""
    found = text(name, value)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} is not valid Unicode") from None
    return found


def said(name: str, value: Any) -> str:
    """Text that says something."""
    if not (found := valid(name, value)):
        raise ValueError(f"{name} is empty")
    return found


def length(name: str, value: Any) -> int | None:
    """A count of tokens that the file may not know: absent, null, empty or -1."""
    return None if value in (None, "", -1, "-1") else whole(name, value)


def token_ids(name: str, value: Any) -> list[int]:
    if not isinstance(value, list) or not value or not all(type(token) is int and 0 <= token < 1 << 31 for token in value):
        raise ValueError(f"{name} should be a list of token ids, is {str(value)[:40]!r}")
    return value


def decoded(name: str, value: str) -> dict[str, Any]:
    """An object that stands in the file as JSON in a text."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{name} should hold a JSON object, is {value[:40]!r}")
    return found


def spoken(name: str, content: Any) -> tuple[str, str | None]:
    """A message's content as one text, its parts on lines of their own, and why it should be dropped, if so."""
    if content is None or isinstance(content, str):
        return valid(name, content or ""), None
    if not isinstance(content, list):
        raise ValueError(f"{name} should be text or a list of parts, is {str(content)[:40]!r}")
    texts: list[str] = []
    drop = None
    for part in content:
        if not isinstance(part, str | dict):
            raise ValueError(f"{name} should hold parts, holds {str(part)[:40]!r}")
        kind = "text" if isinstance(part, str) else valid(f"{name}.type", part.get("type", "text"))
        if kind in TEXTS:
            texts.append(valid(f"{name}.{kind}", part if isinstance(part, str) else part.get("refusal" if kind == "refusal" else "text")))
        elif found := [why for word, why in MEDIA.items() if word in kind]:
            drop = drop or found[0]
        else:
            raise ValueError(f"{name} has a part of type {kind[:40]!r}")
    return "\n".join(texts), drop


def chat(name: str, value: Any) -> tuple[list[Message], str | None]:
    """Messages whose content is text, and why the request should be dropped, if so."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} should be a list of messages, is {str(value)[:40]!r}")
    messages: list[Message] = []
    drop = None
    for index, message in enumerate(value):
        where = f"{name}[{index}]"
        if not isinstance(message, dict):
            raise ValueError(f"{where} should be a message, is {str(message)[:40]!r}")
        content, why = spoken(f"{where}.content", message.get("content"))
        calls = {key: message[key] for key in CALLS if message.get(key) is not None}
        valid(where, json.dumps(calls, ensure_ascii=False) if calls else "")
        messages.append({"role": said(f"{where}.role", message.get("role")), "content": content, **calls})
        drop = drop or why
    return messages, drop


def fill(row: TraceRow, body: dict[str, Any]) -> TraceRow:
    """The row with the prompt of a request's body; a redacted one, without any text, leaves it as it is."""
    asked, prompt, given = body.get("messages"), body.get("prompt"), body.get("input")
    if asked in (None, []) and prompt in (None, "", []) and given not in (None, "", []):  # the Responses API
        if isinstance(given, list) and isinstance(given[0], str):
            row.drop = "holds several prompts"
            return row
        asked = given if isinstance(given, list) else [{"role": "user", "content": said("input", given)}]
        if body.get("instructions") is not None:
            asked = [{"role": "system", "content": body["instructions"]}, *asked]
    if asked not in (None, []):
        messages, row.drop = chat("messages", asked)
        if any(message["content"] or "tool_calls" in message for message in messages):
            row.messages = messages
    elif prompt not in (None, "", []):
        _complete(row, prompt)
    return row


def _complete(row: TraceRow, prompt: Any) -> None:
    """`prompt` of a completion: text, token ids, or a list of one of these."""
    if isinstance(prompt, list) and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            row.drop = "holds several prompts"
            return
        prompt = prompt[0]
    if isinstance(prompt, list):
        row.prompt_ids = token_ids("prompt", prompt)
    else:
        row.prompt = said("prompt", prompt)


def cap(body: dict[str, Any]) -> int | None:
    """The most tokens that a request's body asks for."""
    return next((length(name, body[name]) for name in CAPS if body.get(name) is not None), None)
