"""The peer `openai` where a server breaks, lies still or is not there: one request or one row fails, in one line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers.test_openai import ARM, Outputs, answers, outputs, run_peer, saved
from tests.support.commands import command, run_folder, write_config, write_workload
from tests.support.engines import requests, tiny
from tests.support.servers import Completions, Fake, Stream, fake

__all__ = ["fake", "outputs"]  # the fixtures


def test_an_answer_that_shows_nothing_and_counts_nothing_is_no_finished_request(fake: Fake) -> None:
    made = requests(tiny(), "5/7", ignore_eos=True)
    fake.answer = lambda *_: Stream([{"choices": [{"text": "", "finish_reason": "stop"}]}])
    (answer,) = answers(fake, made)
    assert answer.failed and "\n" not in answer.failed


HALF = {"choices": [{"text": "a", "token_ids": [1]}]}
BROKEN: dict[str, Any] = {
    "cut": Stream([HALF], is_done=False, is_cut=True),
    "ended early": Stream([HALF], is_done=False),
    "error event": Stream([HALF, {"error": {"message": "out of memory"}}]),
    "no json": Stream([HALF, b"data: {\n\n"]),
    "no event": Stream([7]),
    "no choice": Stream([{"choices": [None]}]),
    "no count": Stream([{"choices": [{"text": "a"}], "usage": {"completion_tokens": "three"}}]),
    "no ids": Stream([{"choices": [{"token_ids": 5}]}]),
    "500": (500, "out of\nmemory"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_request_whose_answer_breaks_is_failed_in_one_line_and_the_others_are_exact(
    recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs, how: str
) -> None:
    good = Completions(outputs)
    fake.answer = lambda path, body: BROKEN[how] if len(body["prompt"]) == 25 else good(path, body)
    ended = run_peer(recorded, tmp_path, fake)
    row = ended.rows["openai"]
    found = [row[key] for key in ("requests_completed", "requests_failed", "exact_matched", "exact_wrong")]
    assert (ended.code, found) == (3, [3, 1, 3, 0]), ended.err
    (failed,) = (line for line in saved(tmp_path)[1] if line["state"] == "failed")
    assert failed["id"] == "long" and failed["reason"].startswith(f"{fake.url}/completions: ") and "\n" not in failed["reason"]


def test_the_key_goes_to_the_server_and_into_no_file(
    recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    good = Completions(outputs)
    fake.answer = lambda path, body: (401, "you are not sk-secret") if len(body["prompt"]) == 25 else good(path, body)
    ended = run_peer(recorded, tmp_path, fake)
    assert {key for _, key in fake.visits} == {"Bearer sk-secret"} and ended.rows["openai"]["requests_failed"] == 1
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5 and not [text for text in [*files, ended.out, ended.err] if "sk-secret" in text]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--peer openai: say where the server is: --set peer.url=http://localhost:8000/v1"),
        (("--set", "peer.url="), "--peer openai: say where the server is: --set peer.url=http://localhost:8000/v1"),
        (("--set", "peer.url=localhost:8000"), "--set peer.url localhost:8000: should be a URL like http://localhost:8000/v1"),
        (("--set", "peer.url=8000"), "--set peer.url: url: should be a valid string, got 8000"),
        (("--set", "peer.url=http://127.0.0.1:9/v1", "--set", "peer.model=7"), "--set peer.model: model: should be a valid string, got 7"),
        (
            ("--set", "peer.url=http://127.0.0.1:9/v1", "--set", "peer.modell=7"),
            "--set peer.modell: no chosen peer has this option; they have",
        ),
    ],
)
def test_what_is_no_server_is_said_in_one_line_before_anything_is_run(
    recorded: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert command("run", recorded, "--peer", "openai", *words, "--out", tmp_path / "r").mistake.startswith(said)
    assert not [*tmp_path.iterdir()]


def test_a_server_that_is_gone_or_has_no_models_is_a_failed_row_and_the_arms_have_run(recorded: Path, tmp_path: Path, fake: Fake) -> None:
    fake.models = (404, "no such page")
    url, fake.url = fake.url, "http://127.0.0.1:9/v1"
    for folder, address, said in (("a", url, "404 Not Found: no such page"), ("b", fake.url, "refused")):
        fake.url = address
        ended = run_peer(recorded, tmp_path / folder, fake)
        cell, lines = saved(tmp_path / folder)
        assert ended.code == 3 and ended.rows[ARM]["exact_matched"] == 4 and lines == []
        assert cell["failed"].startswith(f"{address}/models: ") and said in cell["failed"]


def test_an_interrupt_ends_the_run_without_asking_for_what_is_still_to_come(
    recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs
) -> None:
    model = Completions(outputs)
    interrupted = threading.Event()

    def events(body: dict[str, Any]) -> Iterator[Any]:
        if body["max_tokens"] > 1 and not interrupted.is_set():
            interrupted.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            threading.Event().wait(0.3)  # until the main thread has seen it
        yield from model("", body).events

    fake.answer = lambda path, body: Stream(events(body))
    ended = run_peer(recorded, tmp_path, fake, "--max-num-seqs", "1")
    assert ended.code == 130 and 2 <= len(fake.asked) < 1 + 4, "the probe, and what was under way"
    assert not (run_folder(tmp_path / "results") / "openai" / "1").exists()


def test_a_closed_loop_is_refused_with_peers(tmp_path: Path, fake: Fake) -> None:
    rows = [{"id": "a", "prompt_ids": [5], "max_new_tokens": 2}, {"id": "b", "prompt_ids": [6], "max_new_tokens": 2, "after": "a"}]
    path = write_workload(tmp_path, f"requests: w.jsonl\narrivals: closed\nmodel: {write_config(tmp_path)}\n", rows)
    ended = command("run", path, "--peer", "openai", "--set", f"peer.url={fake.url}", "--out", tmp_path / "r")
    assert ended.mistake == "--peer: in a closed loop a request comes after another's end, and no peer can be told so"
    assert fake.visits == [] and not (tmp_path / "r").exists()
