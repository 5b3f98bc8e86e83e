"""A client of OpenAI-compatible servers: one question, or an answer as it streams."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from cbbench.errors import UserError

TIMEOUT_S = 600
KEY_VARIABLE = "OPENAI_API_KEY"
DATA, DONE = b"data:", b"[DONE]"  # of server-sent events


class Server:
    """One model of a server; `url` ends where /completions begins, usually in /v1. Whatever goes wrong is a UserError;
    `flags` are what the user says URL and model with."""

    def __init__(self, url: str, model: str | None, flags: tuple[str, str]) -> None:
        self.model_flag = flags[1]
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{flags[0]} {url}: should be a URL like http://localhost:8000/v1")
        self.url = url.rstrip("/")
        self.key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise UserError(f"{KEY_VARIABLE} holds what no key can: something beside plain characters on one line")
        self.model = model or self._first_model()

    def _first_model(self) -> str:
        try:
            return str(self.ask("models")["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(f"{self.url}/models lists no model; name one with {self.model_flag}") from error

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        (reply,) = self._lines(path, body, whole=True)
        try:
            return json.loads(reply)
        except ValueError as error:
            raise self._wrong(path, error) from error

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of an answer, each as it comes. One that ends before it says so, or with an error, is not whole."""
        for line in self._lines(path, {**body, "stream": True}, whole=False):
            said = line.removeprefix(DATA).strip()
            if not line.startswith(DATA):
                continue
            if said == DONE:
                return
            try:
                event = json.loads(said)
            except ValueError as error:
                raise self._wrong(path, error) from error
            if not isinstance(event, dict) or event.get("error"):
                raise self._wrong(path, said[:300].decode(errors="replace"))
            yield event
        raise self._wrong(path, "the answer ended in the middle")

    def _lines(self, path: str, body: dict[str, Any] | None, whole: bool) -> Iterator[bytes]:
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"})
            if self.key:
                request.add_unredirected_header("Authorization", f"Bearer {self.key}")  # for this server alone
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                if whole:
                    yield reply.read()
                else:
                    yield from reply
        except urllib.error.HTTPError as error:
            said = " ".join(error.read(300).decode(errors="replace").split())
            raise self._wrong(path, f"{error.code} {error.reason}: {said}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:  # refused, timed out, half an answer
            raise self._wrong(path, getattr(error, "reason", error)) from error

    def _wrong(self, path: str, what: object) -> UserError:
        """One line, without the key."""
        said = " ".join(str(what).split())
        return UserError(f"{self.url}/{path}: {said.replace(self.key, '...') if self.key else said}")
