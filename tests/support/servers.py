"""An HTTP server on this machine in the place of an OpenAI-compatible one. Shared by the tests of its clients."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


def completion(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """As a server answers: two tokens fewer than it may, and all of them where it is told to ignore an end."""
    text = {"message": {"role": "assistant", "content": "hello"}} if "chat" in path else {"text": f" {body['prompt']}\u2028"}
    forced = body.get("ignore_eos", False)
    usage = {"prompt_tokens": 3, "completion_tokens": body["max_tokens"] - 2 * (not forced), "total_tokens": 99}
    return {"choices": [{**text, "index": 0, "finish_reason": "length" if forced else "stop"}], "usage": usage}


@dataclass(frozen=True)
class Stream:
    """An answer in events: what is no bytes is sent as `data: JSON`. One that is cut ends in the middle of the reply."""

    events: Iterable[Any]
    is_done: bool = True  # says [DONE] at the end
    is_cut: bool = False


@dataclass(frozen=True)
class Raw:
    """What goes over the wire instead of a reply, piece by piece, before the connection is closed, or reset."""

    pieces: Iterable[bytes]
    is_reset: bool = False


@dataclass
class Fake:
    """A server on this machine; `answer` gives its reply, or the raw bytes of one, or (code, text), or a stream."""

    answer: Callable[[str, dict[str, Any]], Any] = completion
    models: Any = field(default_factory=lambda: {"data": [{"id": "first"}, {"id": "second"}]})
    asked: list[tuple[str, Any, str | None]] = field(default_factory=list)  # path, body, authorization
    visits: list[tuple[str, str | None]] = field(default_factory=list)  # path, authorization; also those without a body
    redirect: str = ""  # where all is to be found, if not here
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    made: Fake

    def do_GET(self) -> None:
        self.made.visits.append((self.path, self.headers["Authorization"]))
        self.reply(self.made.models if self.path == "/v1/models" else (404, "no such page"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.made.visits.append((self.path, self.headers["Authorization"]))
        self.made.asked.append((self.path, body, self.headers["Authorization"]))
        given = self.made.answer(self.path, body)
        with suppress(ConnectionError):  # a client that has had enough
            self.raw(given) if isinstance(given, Raw) else self.stream(given) if isinstance(given, Stream) else self.reply(given)

    def reply(self, given: Any) -> None:
        code, content = given if isinstance(given, tuple) else (200, given)
        raw = content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode()
        if self.made.redirect:
            code, raw = 302, b""
        self.send_response(code)
        self.send_header("Content-Length", str(len(raw) + 50 * (code == 200 and raw.startswith(b"CUT"))))
        if self.made.redirect:
            self.send_header("Location", self.made.redirect + self.path.removeprefix("/v1"))
        self.end_headers()
        self.wfile.write(raw)

    def stream(self, given: Stream) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in given.events:
            self.send_chunk(event if isinstance(event, bytes) else b"data: " + json.dumps(event).encode() + b"\n\n")
        if given.is_done:
            self.send_chunk(b"data: [DONE]\n\n")
        if not given.is_cut:
            self.send_chunk(b"")

    def raw(self, given: Raw) -> None:
        for piece in given.pieces:
            self.connection.sendall(piece)
        self.close_connection = True
        if given.is_reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())

    def send_chunk(self, raw: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


def serving(made: Fake) -> Iterator[Fake]:
    """On a free port, until the generator is closed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"made": made}))
    made.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield from serving(Fake())


@dataclass
class Completions:
    """Answers as a server with a model does: the tokens known for a prompt, streamed, and counted at the end."""

    outputs: dict[tuple[int, ...], tuple[int, ...]]
    tells_ids: bool = True  # return_token_ids of vLLM
    takes_any_word: bool = True  # else it refuses a body with a word that it does not know
    tells_usage: bool = True
    tokens_per_event: int = 1
    meeting: threading.Barrier | None = None  # each answer waits for so many others to be under way
    running: int = 0
    most_running: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def __call__(self, path: str, body: dict[str, Any]) -> Any:
        if not self.takes_any_word and {"return_token_ids", "cache_salt"} & {*body}:
            return 400, "return_token_ids: extra fields are not permitted"
        return Stream(self.events(self.outputs.get(tuple(body["prompt"]), (9,))[: body["max_tokens"]], body))

    def events(self, tokens: tuple[int, ...], body: dict[str, Any]) -> Iterator[Any]:
        with self.lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        if self.meeting and len(tokens) > 1:  # not the probe
            self.meeting.wait(20)
        for first in range(0, len(tokens), self.tokens_per_event):
            ids = tokens[first : first + self.tokens_per_event]
            told = {"token_ids": list(ids)} if self.tells_ids and body.get("return_token_ids") else {}
            is_last = first + self.tokens_per_event >= len(tokens)
            reason = None if not is_last else "length" if len(tokens) == body["max_tokens"] else "stop"
            text = "".join(f" {token}" for token in ids)
            yield {"choices": [{"index": 0, "text": text, "finish_reason": reason, **told}]}
        with self.lock:
            self.running -= 1  # before the client can know that it is over
        if self.tells_usage:
            yield {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": len(tokens)}}
