"""A server that misbehaves in each way that one was seen to: that request fails in its own words, and the others are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cbbench.clock import RealClock
from cbbench.errors import UserError
from cbbench.peers import openai
from cbbench.peers.base import Answer, Setting
from cbbench.peers.openai import OpenAi
from cbbench.request import Request
from tests.peers.test_openai import Outputs, answers, known, outputs, run_peer, saved
from tests.support.engines import requests, tiny
from tests.support.servers import Completions, Fake, Raw, Stream, completion, fake

__all__ = ["fake", "outputs"]  # the fixtures


def told(*ids: int, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": "x", "token_ids": [*ids], "finish_reason": reason}]}


def usage(number: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": number}}


TEXT = {"choices": [{"text": "two tokens"}]}
LAST_TEXT = {"choices": [{"text": "two tokens", "finish_reason": "length"}]}
FAULTS: dict[str, tuple[Any, str]] = {  # to a request for 5 forced tokens
    "abort": (Stream([told(1), told(2), told(reason="abort"), usage(2)]), 'finish_reason "abort" after 2 of 5 tokens'),
    "error without its key": (
        Stream([told(1), {"object": "error", "message": "out of memory"}]), 'an event is no completion: {"object": "error", "message"',
    ),
    "error by its name": (Stream([told(1), b"event: error\ndata: out of memory\n\n"]), "error: out of memory"),
    "short": (Stream([told(1), told(2), told(3, reason="length"), usage(3)]), 'finish_reason "length" after 3 of 5 tokens'),
    "long": (Stream([told(token) for token in range(3, 20)]), "more tokens than the 5 that were asked for"),
    "long and counted": (Stream([*[TEXT] * 4, LAST_TEXT, usage(15)]), "15 tokens, 5 were asked for"),
    "two an event and no count": (Stream([TEXT, TEXT, LAST_TEXT]), "it tells neither token ids nor usage, and 3 events with text"),
    "no reason": (Stream([told(token) for token in range(3, 8)]), "it ended without a finish_reason after 5 of 5 tokens"),
    "500 that breaks off": (
        Raw([b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 900\r\n\r\nout of mem"]), "500 Internal Server Error: out of mem",
    ),
    "500 without a body": (Raw([b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 900\r\n\r\n"]), "500 Internal Server Error:"),
    "closed": (Raw([]), "Server disconnected"),
    "reset": (Raw([], is_reset=True), "[Errno 104] Connection reset by peer"),
    "reset within": (
        Raw([b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 900\r\n\r\ndata: "], is_reset=True),
        "",  # how much of it was read before, nobody can say
    ),
    "503": ((503, "busy"), "503 Service Unavailable: busy"),
    "429": ((429, "slow down"), "429 Too Many Requests: slow down"),
    "no stream": ({"choices": [{"text": "all at once"}]}, "no stream of events, but something: "),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_one_failed_request_and_two_good_answers_are_kept(fake: Fake, fault: str) -> None:
    made = requests(tiny(), "3/7 4/5 5/7", ignore_eos=True)
    reply, said = FAULTS[fault]
    good = Completions(known(made))
    fake.answer = lambda path, body: reply if len(body["prompt"]) == 4 else good(path, body)
    first, bad, last = answers(fake, made)
    assert (tuple(first.output_ids), tuple(last.output_ids)) == (made[0].output_ids, made[2].output_ids)
    assert (first.failed, last.failed) == (None, None)
    assert bad.failed is not None and bad.failed.startswith(f"{fake.url}/completions: {said}"), bad.failed
    assert "\n" not in bad.failed and "Traceback" not in bad.failed


def test_what_came_of_a_failed_answer_is_in_its_record_and_in_no_throughput(
    recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs
) -> None:
    good = Completions(outputs)
    half = Stream([told(31), told(32), told(reason="abort"), usage(2)])
    fake.answer = lambda path, body: half if len(body["prompt"]) == 25 else good(path, body)
    ended = run_peer(recorded, tmp_path, fake)
    row, whole = ended.rows["openai"], 7 + 1 + 12
    assert (ended.code, row["requests_failed"], row["requests_completed"]) == (3, 1, 3)
    assert row["output_tokens"] == whole and row["output_tok_per_s"] == pytest.approx(whole / row["duration_s"])
    (line,) = (line for line in saved(tmp_path)[1] if line["state"] == "failed")
    assert line["output_ids"] == [31, 32] and len(line["token_times_s"]) == 2
    assert f'openai: request long failed: {fake.url}/completions: finish_reason "abort" after 2 of 5 tokens' in ended.err


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short ones before a busy server is asked again."""
    monkeypatch.setattr(openai, "PAUSES_S", (0.01, 0.01))
    yield


@pytest.mark.parametrize("passing", [(503, "loading"), (429, "slow down"), Raw([]), Stream([], is_done=False)], ids=str)
def test_a_server_that_is_busy_for_a_moment_is_still_asked_for_its_token_ids(fake: Fake, pauses: None, passing: Any) -> None:
    made = requests(tiny(), "3/4 4/4", ignore_eos=True)
    good, left = Completions(known(made)), iter([passing])
    fake.answer = lambda path, body: next(left, None) or good(path, body)
    assert [tuple(answer.output_ids) for answer in answers(fake, made)] == [request.output_ids for request in made]
    assert all(body["return_token_ids"] for _, body, _ in fake.asked)


def test_a_server_that_stays_busy_is_one_line_after_some_tries(fake: Fake, pauses: None) -> None:
    fake.answer = lambda *_: (503, "loading")
    with pytest.raises(openai.ServerError, match="503 Service Unavailable: loading"):
        answers(fake, requests(tiny(), "3/4"))
    assert len(fake.asked) == 3


@pytest.mark.parametrize(("unknown", "kept"), [("cache_salt", "return_token_ids"), ("return_token_ids", "cache_salt")])
def test_a_word_that_a_server_refuses_is_left_out_and_the_other_is_kept(fake: Fake, unknown: str, kept: str) -> None:
    made = requests(tiny(), "3/4", ignore_eos=True)
    good = Completions(known(made))
    fake.answer = lambda path, body: (422, "unknown") if unknown in body else good(path, body)
    (answer,) = answers(fake, made)
    assert answer.failed is None and kept in fake.asked[-1][1] and unknown not in fake.asked[-1][1]


def rounds(fake: Fake, made: list[Request], number: int) -> tuple[OpenAi, list[Answer]]:
    """So many runs of one peer, and the last one's answers."""
    peer = OpenAi(Setting(4, "float32", "cpu", 1, tiny), OpenAi.Options(url=fake.url))
    peer.start(made)
    for _ in range(number):
        found = peer.run(made, RealClock())
    peer.stop()
    return peer, found


def test_each_round_is_cold_by_a_salt_of_its_own(fake: Fake) -> None:
    made = requests(tiny(), "3/4 4/4", ignore_eos=True)
    fake.answer = Completions(known(made))
    peer, _ = rounds(fake, made, 3)
    salts = [body["cache_salt"] for _, body, _ in fake.asked[1:]]
    assert salts[::2] == salts[1::2] and len({*salts}) == 3 and peer.notes == ()


@pytest.mark.parametrize(
    ("cached", "note"),
    [
        (None, openai.NOT_TOLD),
        (0, None),
        (2, "4 prompt tokens came from its server's prefix cache, which may hold prompts of earlier rounds"),
    ],
)
def test_what_could_not_be_made_cold_is_said(fake: Fake, cached: int | None, note: str | None) -> None:
    made = requests(tiny(), "3/1 4/1", ignore_eos=True)
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    fake.answer = lambda *_: Stream(
        [{"choices": [{"text": "x", "finish_reason": "length"}]}, {"choices": [], "usage": {"completion_tokens": 1, **details}}]
    )
    assert rounds(fake, made, 1)[0].notes == ((note,) if note else ())


def test_a_note_stands_below_the_table(recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs) -> None:
    fake.answer = Completions(outputs, tells_ids=False)
    run_peer(recorded, tmp_path, fake)
    (summary,) = tmp_path.glob("results/*/summary.md")
    assert f"openai: {openai.NOT_TOLD}" in summary.read_text()


def test_a_server_that_takes_text_alone_is_told_from_one_that_takes_nothing(fake: Fake) -> None:
    """llama-cpp-python's server is such a one."""
    refuses_ids = (500, {"error": {"message": "Input should be a valid string"}})
    fake.answer = lambda path, body: completion(path, body | {"max_tokens": 3}) if isinstance(body["prompt"], str) else refuses_ids
    with pytest.raises(UserError, match=r"/completions takes text, but no prompt of token ids, which every request here is$"):
        answers(fake, requests(tiny(), "3/4"))
    fake.answer = lambda *_: refuses_ids
    with pytest.raises(openai.ServerError, match=r"/completions: 500 Internal Server Error: Input should be a valid string$"):
        answers(fake, requests(tiny(), "3/4"))
