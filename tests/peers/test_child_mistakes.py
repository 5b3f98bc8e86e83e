"""Peers in an interpreter of their own: whatever ends them is one line, and they leave nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cbbench.clock import RealClock
from cbbench.peers._child import ChildOptions, ChildPeer
from cbbench.peers.openvino import OpenVino
from cbbench.peers.vllm import Vllm
from cbbench.request import Request
from tests.support.commands import Ended, command, run_folder
from tests.support.engines import requests, tiny
from tests.support.peers import ARM, LABEL, FakeEngine, Written, cell_of, engine, in_order, rows_of, run_fake, started
from tests.support.places import ROOT

__all__ = ["engine"]  # the fixtures

LOG = "peers ended by itself; its last words are in "


def failure(ended: Ended, tmp_path: Path) -> str:
    """Why the peer has no row, said once and in one line; the arm beside it ran."""
    failed: str = cell_of(tmp_path)["failed"]
    assert (ended.code, ended.rows[ARM]["exact_matched"], ended.rows[LABEL]) == (3, 4, {}), ended.err
    assert "\n" not in failed and ended.err.count(failed) == 1
    assert failed in (run_folder(tmp_path / "results") / "summary.md").read_text()
    return failed


@pytest.mark.parametrize("place", ["make", "step"])
def test_what_an_engine_raises_is_a_failed_row_in_its_words_and_its_log_says_where(
    recorded: Path, tmp_path: Path, engine: Written, place: str
) -> None:
    engine(rows_of(recorded), **{place: "raise ValueError('no luck\\nat all')"})
    assert failure(run_fake(recorded, tmp_path), tmp_path) == "RuntimeError: peers: ValueError: no luck"
    assert "engine.py" in (tmp_path / "cache" / "peers" / "peers.log").read_text()
    assert engine.all_gone()


DEATHS = {
    "import": "print('last words', file=sys.stderr); import no_such_module",
    "make": "print('last words', file=sys.stderr); sys.exit(3)",
    "step": "print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "step_": "print('last words'); os.write(1, b'last words'); os._exit(0)",
}


@pytest.mark.parametrize("place", DEATHS)
def test_a_child_that_dies_is_one_line_that_names_its_log(recorded: Path, tmp_path: Path, engine: Written, place: str) -> None:
    engine(rows_of(recorded), **{place: DEATHS[place]})
    failed = failure(run_fake(recorded, tmp_path), tmp_path)
    assert failed.startswith(f"RuntimeError: {LOG}") and "last words" in Path(failed.partition(LOG)[2]).read_text()
    assert place == "import" or engine.all_gone()


def test_a_child_that_dies_between_two_questions_is_that_same_line(
    recorded: Path, tmp_path: Path, engine: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(rows_of(recorded), make="threading.Timer(0.2, os._exit, (5,)).start()")
    start = FakeEngine.start

    def start_and_see_it_dead(peer: FakeEngine, made: list[Request]) -> None:
        start(peer, made)
        os.waitid(os.P_PID, peer.process.pid, os.WEXITED | os.WNOWAIT)  # without taking note of it

    monkeypatch.setattr(FakeEngine, "start", start_and_see_it_dead)
    assert failure(run_fake(recorded, tmp_path), tmp_path).startswith(f"RuntimeError: {LOG}")


def test_ctrl_c_ends_the_run_and_the_child(recorded: Path, tmp_path: Path, engine: Written) -> None:
    engine(rows_of(recorded), step="os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    ended = run_fake(recorded, tmp_path)
    assert ended.code == 130 and engine.notes("added") and engine.all_gone()
    assert not (run_folder(tmp_path / "results") / LABEL / "1").exists()


def test_what_a_child_started_goes_with_it(tmp_path: Path, engine: Written) -> None:
    made = requests(tiny(), "5/3", ignore_eos=True)
    engine(made, make=f"if os.fork() == 0: time.sleep(8); open({str(tmp_path / 'lived')!r}, 'w'); os._exit(0)")
    with started(made) as peer:
        assert in_order(peer.run(made, RealClock())) == [made[0].output_ids]
    assert engine.all_gone() and not (tmp_path / "lived").exists()


def test_a_child_ends_when_nobody_can_ask_it_any_more(engine: Written) -> None:
    made = requests(tiny(), "5/3", ignore_eos=True)
    engine(made)
    with started(made) as peer:
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        peer.process.stdin = None
        assert peer.process.wait(timeout=60) == 0


NO_MODULE = f"--peer vllm: {sys.executable} cannot import no_such_module: make peer-vllm, then --peer-python vllm=.venv-vllm/bin/python"
NOT_CHOSEN = "no peer of that name that runs in an interpreter of its own is chosen"
MISTAKES = [
    ("vllm", ["vllm"], "--peer-python vllm: should be NAME=PATH, like vllm=.venv-vllm/bin/python"),
    ("vllm", ["vllm="], "--peer-python vllm=: should be NAME=PATH, like vllm=.venv-vllm/bin/python"),
    ("vllm", ["vlm=/bin/python"], f"--peer-python vlm=/bin/python: {NOT_CHOSEN}"),
    ("vllm", ["openvino=/bin/python"], f"--peer-python openvino=/bin/python: {NOT_CHOSEN}"),
    ("hf-generate", ["hf-generate=/bin/python"], f"--peer-python hf_generate=/bin/python: {NOT_CHOSEN}"),
    ("vlm", ["vlm=/bin/python"], "no peer named 'vlm'; did you mean vllm?"),
    ("vllm", ["vllm=FOLDER/none"], "--peer-python FOLDER/none: No such file or directory"),
    ("vllm", ["vllm=FOLDER"], "--peer-python FOLDER: Permission denied"),
    ("vllm", ["vllm=FOLDER/text"], "--peer-python FOLDER/text: Exec format error"),
    ("vllm", ["vllm=FOLDER/yes"], "--peer vllm: FOLDER/yes cannot import no_such_module: make peer-vllm"),
    ("vllm", [f"vllm={sys.executable}"], NO_MODULE),
    ("vllm", [], "--peer vllm: no_such_module is not installed here: make peer-vllm, then --peer-python vllm=.venv-vllm/bin/python"),
]  # fmt: skip


@pytest.mark.parametrize(("peer", "pythons", "said"), MISTAKES)
def test_an_interpreter_that_is_none_is_one_line_and_nothing_is_run(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer: str, pythons: list[str], said: str
) -> None:
    monkeypatch.setattr(Vllm, "module", "no_such_module")
    for name, text in (("text", "no program"), ("yes", "#!/bin/sh\nexit 0\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    words = [word.replace("FOLDER", str(tmp_path)) for python in pythons for word in ("--peer-python", python)]
    mistake = command("run", recorded, "--peer", peer, *words, "--out", tmp_path / "r").mistake
    assert mistake.startswith(said.replace("FOLDER", str(tmp_path))) and not (tmp_path / "r").exists()


@pytest.mark.parametrize("cls", [OpenVino, Vllm])
def test_what_a_peer_says_to_make_makes_the_interpreter_it_names(cls: type[ChildPeer]) -> None:
    target, python = re.match(rf"make (\S+), then --peer-python {cls.name()}=(\S+)/bin/python", cls.how_to_get).groups()  # type: ignore[union-attr]
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"-m venv {python}\n" in done.stdout and cls.module.replace("_", "-") in done.stdout


def test_openvino_is_for_a_cpu() -> None:
    assert OpenVino.cannot_run("cuda", "float32", ChildOptions()) == "this adapter runs OpenVINO on a CPU, not on cuda"
