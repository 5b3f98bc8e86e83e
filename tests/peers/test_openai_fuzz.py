"""A good answer that is cut, delayed, split or garbled at any byte is the whole right answer or a failed request: no traceback, no
hang."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.clock import RealClock
from cbbench.peers.base import UNKNOWN, Answer, Setting
from cbbench.peers.openai import OpenAi
from cbbench.request import Request
from tests.support.engines import tiny
from tests.support.servers import Fake, Raw, Stream, serving

IDS = [17, 23, 42, 57]
ASKED = Request("a", (5, 6), len(IDS), ignore_eos=True)
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
MANY = settings(max_examples=150, deadline=None)


def reply(tells_ids: bool) -> bytes:
    """As it goes over the wire."""
    reasons = [None] * (len(IDS) - 1) + ["length"]
    events = [
        {"choices": [{"index": 0, "text": f" é{token}", "finish_reason": reason, **({"token_ids": [token]} if tells_ids else {})}]}
        for token, reason in zip(IDS, reasons, strict=True)
    ]
    parts = [f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode() for event in events]
    parts += [b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\n' % len(IDS), DONE]
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])


WHOLE = {tells_ids: reply(tells_ids) for tells_ids in (True, False)}
RIGHT = {True: IDS, False: [UNKNOWN] * len(IDS)}
anywhere = st.integers(0, min(len(whole) for whole in WHOLE.values()) - 1)


@pytest.fixture(scope="module")
def peer() -> Iterator[tuple[OpenAi, Fake]]:
    """One that has been started on a good server, and gives up after half a second of silence."""
    server = serving(Fake(answer=lambda *_: Stream([{"choices": [{"text": "x", "finish_reason": "length"}]}])))
    fake = next(server)
    made = OpenAi(Setting(1, "float32", "cpu", 1, tiny, eos_ids=frozenset({2})), OpenAi.Options(url=fake.url, timeout_s=0.5))
    made.start([])
    yield made, fake
    made.stop()
    next(server, None)


def ask(peer: tuple[OpenAi, Fake], *pieces: bytes) -> Answer:
    """One line, whatever came."""
    peer[1].answer = lambda *_: Raw(pieces)
    (answer,) = peer[0].run([ASKED], RealClock())
    assert answer.failed is None or (answer.failed.startswith(peer[1].url) and answer.failed.isprintable()), answer.failed
    assert len(answer.output_ids) <= len(IDS) and (answer.token_times_s is None or len(answer.token_times_s) == len(answer.output_ids))
    return answer


@pytest.mark.parametrize("tells_ids", [True, False])
def test_the_good_answer_is_right(peer: tuple[OpenAi, Fake], tells_ids: bool) -> None:
    """Or nothing below says anything."""
    answer = ask(peer, WHOLE[tells_ids])
    assert (answer.failed, answer.output_ids, len(answer.token_times_s or [])) == (None, RIGHT[tells_ids], len(IDS))


@MANY
@given(tells_ids=st.booleans(), at=anywhere)
def test_cut_it_is_whole_or_failed(peer: tuple[OpenAi, Fake], tells_ids: bool, at: int) -> None:
    answer = ask(peer, WHOLE[tells_ids][:at])
    is_whole = at >= WHOLE[tells_ids].index(DONE) + len(DONE)
    assert (answer.failed is None) == is_whole and (not is_whole or answer.output_ids == RIGHT[tells_ids])
    assert answer.output_ids == RIGHT[tells_ids][: len(answer.output_ids)]


@MANY
@given(tells_ids=st.booleans(), places=st.lists(anywhere, max_size=12))
def test_split_and_delayed_it_is_whole(peer: tuple[OpenAi, Fake], tells_ids: bool, places: list[int]) -> None:
    whole = WHOLE[tells_ids]
    ends = [*sorted(places), len(whole)]

    def pieces() -> Iterator[bytes]:
        for first, last in zip([0, *ends], ends, strict=False):
            yield whole[first:last]
            time.sleep(0.0005)  # so that a piece is not sent along with the next

    peer[1].answer = lambda *_: Raw(pieces())
    (answer,) = peer[0].run([ASKED], RealClock())
    assert (answer.failed, answer.output_ids) == (None, RIGHT[tells_ids])


@MANY
@given(tells_ids=st.booleans(), at=anywhere, junk=st.binary(min_size=1, max_size=6), inserted=st.booleans())
def test_garbled_it_has_as_many_tokens_as_were_asked_for_or_is_failed(
    peer: tuple[OpenAi, Fake], tells_ids: bool, at: int, junk: bytes, inserted: bool
) -> None:
    """Another digit in an id is another token: the check of the tokens finds that, no client can."""
    whole = WHOLE[tells_ids]
    answer = ask(peer, whole[:at] + junk + whole[at if inserted else at + len(junk) :])
    assert answer.failed is not None or len(answer.output_ids) == len(IDS)


@MANY
@given(raw=st.binary(max_size=200), status=st.sampled_from([b"", HEAD, b"HTTP/1.1 503 Busy\r\n\r\n", b"HTTP/1.1 302 Found\r\nLocation: "]))
def test_noise_is_a_failure(peer: tuple[OpenAi, Fake], raw: bytes, status: bytes) -> None:
    assert ask(peer, status + raw).failed is not None


def test_a_server_that_falls_silent_is_given_up(peer: tuple[OpenAi, Fake]) -> None:
    def silent() -> Iterator[bytes]:
        yield WHOLE[True][:250]
        time.sleep(1.0)

    started = time.perf_counter()
    peer[1].answer = lambda *_: Raw(silent())
    (answer,) = peer[0].run([ASKED], RealClock())
    assert answer.failed is not None and answer.failed.endswith("timed out: nothing new for 0.5 s") and time.perf_counter() - started < 5


def test_a_server_that_only_says_that_it_is_alive_is_given_up(peer: tuple[OpenAi, Fake]) -> None:
    def alive() -> Iterator[bytes]:
        yield HEAD
        for _ in range(100):
            yield b"8\r\n: ping\n\n\r\n"
            time.sleep(0.02)

    peer[1].answer = lambda *_: Raw(alive())
    (answer,) = peer[0].run([ASKED], RealClock())
    assert answer.failed is not None and answer.failed.endswith("timed out: nothing new for 0.5 s")
