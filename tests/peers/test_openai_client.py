"""The client of OpenAI-compatible servers: what it sends, what it makes of a stream, and one line for whatever goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cbbench.peers import _openai_client
from cbbench.peers._openai_client import Server
from tests.support.commands import refusal
from tests.support.servers import Fake, Stream, fake, serving

__all__ = ["fake"]  # the fixture

FLAGS = ("--url", "--its-model")
EVENT = {"choices": [{"text": "a"}]}


def stream(fake: Fake, *events: Any, **how: bool) -> list[Any]:
    """What comes of an answer with these events."""
    fake.answer = lambda *_: Stream(events, **how)
    return [*Server(fake.url, "m", FLAGS).stream("completions", {"prompt": [1]})]


def broken(fake: Fake, *events: Any, **how: bool) -> str:
    """The one line that says what was wrong with it, without the address before it."""
    message = refusal(lambda: stream(fake, *events, **how))
    assert message.startswith(f"{fake.url}/completions: "), message
    return message.removeprefix(f"{fake.url}/completions: ")


@pytest.fixture
def second() -> Iterator[Fake]:
    """Another server."""
    yield from serving(Fake())


def test_the_model_is_the_named_one_or_the_first_that_the_server_lists(fake: Fake) -> None:
    assert Server(fake.url, "mine", FLAGS).model == "mine" and fake.visits == [], "nothing is asked for what is said"
    assert Server(f"{fake.url}/", None, FLAGS).model == "first" and fake.visits == [("/v1/models", None)]
    fake.models = {"data": []}
    assert refusal(lambda: Server(fake.url, None, FLAGS)) == f"{fake.url}/models lists no model; name one with --its-model"


@pytest.mark.parametrize(
    "url",
    ["localhost:8000/v1", "", "ftp://localhost/v1", "file:///etc/passwd", "http://", "http://a/v1?key=1", "http://a/v1#x", "http://a b/v1"],
)
def test_a_url_of_another_kind_is_refused_in_the_users_words(url: str) -> None:
    assert refusal(lambda: Server(url, "m", FLAGS)) == f"--url {url}: should be a URL like http://localhost:8000/v1"


def test_events_come_one_by_one_each_before_the_next_is_made(fake: Fake) -> None:
    read = threading.Event()

    def events() -> Iterator[Any]:
        yield {"number": 1}
        assert read.wait(20), "the first was held back until the second"
        yield {"number": 2}

    fake.answer = lambda *_: Stream(events())
    coming = Server(fake.url, "m", FLAGS).stream("completions", {"prompt": [1], "max_tokens": 3})
    assert next(coming) == {"number": 1}
    read.set()
    assert [*coming] == [{"number": 2}]
    assert fake.asked == [("/v1/completions", {"prompt": [1], "max_tokens": 3, "stream": True}, None)]


def test_an_event_is_read_however_its_lines_are_written_and_the_rest_of_the_protocol_is_passed_over(fake: Fake) -> None:
    lines = (
        b": keep-alive\n\n",
        b'data:{"a": 1}\n\n',
        b'event: x\r\nid: 7\r\ndata: {"a": 2}\r\n\r\n',
        b"\n",
        b"retry: 3\n",
        {"a": "\u2028é"},
    )
    assert stream(fake, *lines) == [{"a": 1}, {"a": 2}, {"a": "\u2028é"}]
    assert stream(fake) == []
    assert stream(fake, b'data: {"a":\ndata: 1}\n\n') == [{"a": 1}], "data in two lines"


def test_what_follows_the_end_is_no_event(fake: Fake) -> None:
    assert stream(fake, EVENT, b"data: [DONE]\n\n", {"late": 1}) == [EVENT]


@pytest.mark.parametrize("how", [{"is_cut": True, "is_done": False}, {"is_done": False}], ids=str)
def test_an_answer_that_ends_before_it_says_so_is_not_taken_for_a_whole_one(fake: Fake, how: dict[str, bool]) -> None:
    assert broken(fake, EVENT, **how) != ""


@pytest.mark.parametrize("event", [{"error": {"message": "out of memory", "code": 500}}, {"error": "out of memory"}], ids=str)
def test_an_error_in_the_middle_of_a_stream_is_said_in_the_servers_words(fake: Fake, event: Any) -> None:
    assert "out of memory" in broken(fake, EVENT, event)


@pytest.mark.parametrize("raw", [b'data: {"half\n\n', b"data: \xff\xfe\n\n", b"data: 7\n\n", b"data: null\n\n", b'data: ["a"]\n\n'])
def test_what_is_no_event_is_one_line(fake: Fake, raw: bytes) -> None:
    assert broken(fake, EVENT, raw) != ""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "no such model", "code": 404}}, "no such model"),
        ({"error": "no such model"}, "no such model"),
        ({"object": "error", "message": "no such model"}, "no such model"),
        ({"detail": [{"loc": ["body"]}]}, '[{"loc": ["body"]}]'),
        ({"a": 1}, '{"a": 1}'),
        ("no such model", "no such model"),
        ("", ""),
    ],
    ids=str,
)
def test_an_error_in_json_is_said_in_its_words_for_a_person(fake: Fake, body: Any, said: str) -> None:
    fake.models = (404, body)
    assert refusal(lambda: Server(fake.url, None, FLAGS)) == f"{fake.url}/models: 404 Not Found: {said}".strip()


@pytest.mark.parametrize(("code", "reason"), [(400, "Bad Request"), (401, "Unauthorized"), (503, "Service Unavailable")])
def test_a_refusal_has_its_code_and_the_beginning_of_the_servers_words(fake: Fake, code: int, reason: str) -> None:
    fake.answer = lambda *_: (code, "too\n\tlong" + "x" * 900)
    message = refusal(lambda: [*Server(fake.url, "m", FLAGS).stream("completions", {})])
    assert message.startswith(f"{fake.url}/completions: {code} {reason}: too longxxx") and len(message) < 400


def test_a_server_that_says_nothing_for_too_long_is_one_line(fake: Fake) -> None:
    over = threading.Event()

    def events() -> Iterator[Any]:
        yield EVENT
        over.wait(20)

    fake.answer = lambda *_: Stream(events())
    try:
        assert "timed out" in refusal(lambda: [*Server(fake.url, "m", FLAGS, timeout_s=0.05).stream("completions", {})])
    finally:
        over.set()


def test_a_server_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    message = refusal(lambda: [*Server("http://127.0.0.1:9/v1", "m", FLAGS).stream("completions", {})])
    assert message.startswith("http://127.0.0.1:9/v1/completions: ") and "refused" in message


def test_the_key_is_sent_where_there_is_one_and_not_to_another_server(fake: Fake, second: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert Server(fake.url, None, FLAGS).model == "first"
    assert fake.visits == [("/v1/models", "Bearer sk-secret")]
    fake.redirect = second.url
    moved = f"{fake.url}/models: 302 Found: it has moved to {second.url}/models; give the new URL with --url"
    assert refusal(lambda: Server(fake.url, None, FLAGS)) == moved and second.visits == [], "not followed"


@pytest.mark.parametrize("end", ["\n", "\r\n", " "], ids=repr)
def test_a_key_that_was_read_from_a_file_with_its_end_of_line_is_the_key(fake: Fake, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"sk-secret{end}")
    assert Server(fake.url, None, FLAGS).model == "first" and fake.visits == [("/v1/models", "Bearer sk-secret")]


@pytest.mark.parametrize("key", ["sk-secret\nand more", "sk-secret…"])
def test_a_key_that_cannot_be_sent_is_not_shown(fake: Fake, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    message = refusal(lambda: Server(fake.url, None, FLAGS))
    assert "OPENAI_API_KEY" in message and "sk-secret" not in message


def test_a_server_that_repeats_the_key_does_not_make_us_show_it(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    fake.models = (401, "no such key: sk-secret")
    message = refusal(lambda: Server(fake.url, None, FLAGS))
    assert message.startswith(f"{fake.url}/models: 401 Unauthorized: no such key: ") and "sk-secret" not in message


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    message = refusal(lambda: Server("http://me:secret@localhost/v1", "m", FLAGS))
    assert message == "--url: no name or password in the URL; a key is read from OPENAI_API_KEY"


def test_an_answer_that_is_longer_than_memory_should_hold_is_one_line(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_openai_client, "MAX_REPLY_BYTES", 100)
    fake.models = "[" + "1," * 100
    assert refusal(lambda: Server(fake.url, None, FLAGS)) == f"{fake.url}/models: the answer is longer than 100 bytes"


def test_an_event_without_end_is_one_line(fake: Fake) -> None:
    assert "exceeded the" in broken(fake, b"data: " + b"x" * 2**21)


def test_json_that_is_too_deep_is_one_line(fake: Fake) -> None:
    assert broken(fake, b"data: " + b"[" * 100_000 + b"\n\n").startswith("no JSON (")


def test_what_a_server_says_cannot_steer_a_terminal(fake: Fake) -> None:
    fake.models = (500, "red \x1b[31m and\x07 a bell")
    assert refusal(lambda: Server(fake.url, None, FLAGS)) == f"{fake.url}/models: 500 Internal Server Error: red [31m and a bell"


def with_proxy(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in ("NO_PROXY", "no_proxy", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", url)


def test_a_server_on_this_machine_is_asked_directly_whatever_proxy_there_is(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    with_proxy(monkeypatch, "http://127.0.0.1:9")
    assert Server(fake.url, None, FLAGS).model == "first"
    assert Server(fake.url.replace("127.0.0.1", "localhost"), None, FLAGS).model == "first"


def test_another_server_is_asked_through_the_proxy_of_the_environment(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    with_proxy(monkeypatch, fake.url.removesuffix("/v1"))
    assert "404 Not Found" in refusal(lambda: Server("http://far.invalid/v1", None, FLAGS))
    assert [path for path, _ in fake.visits] == ["http://far.invalid/v1/models"]
