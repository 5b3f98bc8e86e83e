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
            raise UserError(f"{self.url}/{path}: {error}") from error

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """The events of an answer, each as it comes."""
        for line in self._lines(path, {**body, "stream": True}, whole=False):
            if not line.startswith(DATA) or line.removeprefix(DATA).strip() == DONE:
                continue
            try:
                yield json.loads(line.removeprefix(DATA))
            except ValueError as error:
                raise UserError(f"{self.url}/{path}: {error}") from error

    def _lines(self, path: str, body: dict[str, Any] | None, whole: bool) -> Iterator[bytes]:
        headers = {"Content-Type": "application/json"}
        if os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {os.environ[KEY_VARIABLE]}"
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(f"{self.url}/{path}", data, headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                if whole:
                    yield reply.read()
                else:
                    yield from reply
        except urllib.error.HTTPError as error:
            said = " ".join(error.read(300).decode(errors="replace").split())
            raise UserError(f"{self.url}/{path}: {error.code} {error.reason}: {said}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:  # refused, timed out, half an answer
            raise UserError(f"{self.url}/{path}: {getattr(error, 'reason', error)}") from error
