"""A client of OpenAI-compatible servers: one question, or an answer as it streams.

HTTP and server-sent events are httpx2's; here is what is asked, and one line for whatever may go wrong.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx2

from cbbench.clock import RealClock
from cbbench.errors import UserError
from cbbench.peers._server_url import KEY_VARIABLE, checked_url, is_this_machine

TIMEOUT_S = 600.0  # without a word: the first token of a long prompt may take minutes
CONNECT_TIMEOUT_S = 30.0
MAX_REPLY_BYTES = 2**26
SHOWN_CHARACTERS = 300  # of what a server says
MAX_ERROR_BYTES = 2**14
DONE = "[DONE]"
BUSY_CODES = (408, 425, 429, 502, 503, 504)  # another moment, another answer


class ServerError(UserError):
    """`code`: of a reply that is an error. `may_pass`: the same question may be answered a moment later."""

    def __init__(self, text: str, code: int | None = None, may_pass: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.may_pass = may_pass or code in BUSY_CODES


class Server:
    """One model of a server; `url` ends where /completions begins, usually in /v1. Whatever goes wrong is a ServerError;
    `flags` are what the user says URL and model with.

    Each question has a connection of its own. A redirect is not followed, so the key goes nowhere else. Proxies are those of
    the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), but a server on this machine is asked directly."""

    def __init__(self, url: str, model: str | None, flags: tuple[str, str], timeout_s: float = TIMEOUT_S) -> None:
        self.flags = flags
        self.timeout_s = timeout_s
        self.url = checked_url(url, flags[0])
        self.key = os.environ.get(KEY_VARIABLE, "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise UserError(f"{KEY_VARIABLE} holds what no key can: something beside plain characters on one line")
        is_here = is_this_machine(httpx2.URL(self.url).host)
        self.client = httpx2.Client(
            headers={"Connection": "close", **({"Authorization": f"Bearer {self.key}"} if self.key else {})},
            timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=not is_here,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if is_here and self.url.startswith("http:")
            else True,  # no TLS there: reading the system's certificates takes 0.2 s
        )
        self.model = model or self._first_model()

    def close(self) -> None:
        self.client.close()

    def _first_model(self) -> str:
        try:
            return str(self.ask("models")["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(f"{self.url}/models lists no model; name one with {self.flags[1]}") from error

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        raw = b""
        with self._reply(path, body) as reply:
            for part in reply.iter_bytes():
                raw += part
                if len(raw) > MAX_REPLY_BYTES:
                    raise self._wrong(path, f"the answer is longer than {MAX_REPLY_BYTES:,} bytes")
        return self._decoded(path, raw)

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """The events of an answer, each as it comes. One that ends before it says so, or with an error, is not whole."""
        with self._reply(path, {**body, "stream": True}) as reply:
            kind = reply.headers.get("Content-Type", "")
            if not kind.lower().startswith("text/event-stream"):
                raise self._wrong(path, f"no stream of events, but {kind or 'something'}: {_beginning(reply)}")
            patience = _Patience(reply, self.timeout_s)
            for event in httpx2.EventSource(patience.reply):
                patience.renew()
                if event.data.strip() == DONE:
                    return
                if event.event == "error":
                    raise self._wrong(path, f"error: {event.data}")
                if event.data:
                    yield self._event(path, event.data)
        raise self._wrong(path, "the answer ended in the middle", may_pass=True)

    def _event(self, path: str, data: str) -> dict[str, Any]:
        event = self._decoded(path, data)
        if not isinstance(event, dict):
            raise self._wrong(path, f"an event is no completion: {data}")
        if event.get("error"):
            raise self._wrong(path, f"error: {_message(event)}")
        return event

    def _decoded(self, path: str, raw: str | bytes) -> Any:
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            said = raw if isinstance(raw, str) else raw.decode(errors="replace")
            raise self._wrong(path, f"no JSON ({error}): {said[:SHOWN_CHARACTERS]}") from error

    @contextmanager
    def _reply(self, path: str, body: dict[str, Any] | None) -> Iterator[httpx2.Response]:
        """The reply to a question, its body still to be read; also what goes wrong in reading it becomes one line."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with self.client.stream(
                "GET" if body is None else "POST", f"{self.url}/{path}", content=data, headers={"Content-Type": "application/json"}
            ) as reply:
                self._refuse_error(path, reply)
                yield reply
        except UserError:
            raise
        except httpx2.ConnectTimeout as error:
            raise self._wrong(path, "timed out: no connection") from error
        except httpx2.TimeoutException as error:
            raise self._wrong(path, f"timed out: nothing new for {self.timeout_s:g} s") from error
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError) as error:
            broke = isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.ConnectError)
            raise self._wrong(path, str(error) or type(error).__name__, may_pass=broke) from error

    def _refuse_error(self, path: str, reply: httpx2.Response) -> None:
        status = f"{reply.status_code} {reply.reason_phrase}"
        if reply.has_redirect_location:
            raise self._wrong(path, f"{status}: it has moved to {reply.headers['Location']}; give the new URL with {self.flags[0]}")
        if reply.status_code != 200:
            raise self._wrong(path, f"{status}: {_own_words(_beginning(reply))}", code=reply.status_code)

    def _wrong(self, path: str, what: str, code: int | None = None, may_pass: bool = False) -> ServerError:
        """One line that steers no terminal, without the key."""
        said = what.replace(self.key, "...") if self.key else what
        line = " ".join("".join(c if c.isprintable() else " " for c in said).split())
        return ServerError(f"{self.url}/{path}: {line[:SHOWN_CHARACTERS]}", code, may_pass)


class _Patience(httpx2.SyncByteStream):
    """A reply that ends where no event came for too long, though the server goes on saying that it is alive."""

    def __init__(self, reply: httpx2.Response, limit_s: float) -> None:
        self._parts = reply.iter_raw()
        self._limit_s = limit_s
        self.reply = httpx2.Response(reply.status_code, headers=reply.headers, stream=self, request=reply.request)
        self.renew()

    def renew(self) -> None:
        self._silence = RealClock()

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            yield part
            if self._silence.now() > self._limit_s:
                raise httpx2.ReadTimeout("no event")


def _beginning(reply: httpx2.Response) -> str:
    """Of a reply that is no answer; it may break off, too."""
    raw = b""
    with suppress(httpx2.HTTPError, httpx2.StreamError):
        for part in reply.iter_bytes():
            raw += part
            if len(raw) >= MAX_ERROR_BYTES:
                break
    return raw.decode(errors="replace")


def _own_words(text: str) -> str:
    """What an error says to a person, where it is JSON that has such a place."""
    try:
        return _message(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _message(said: Any) -> str:
    """`{"error": {"message": ...}}`, `{"error": ...}`, `{"message": ...}`, `{"detail": ...}`; else all of it."""
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(key):
            return _message(said[key])
    return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
