"""Exit code 1 means that a rule fired, and nothing else: whatever else goes wrong is one line and a code of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cbbench.report.html import report as html
from tests.support.commands import ENVIRONMENT, SUBPROCESS, command, run_folder, write_workload

ROWS = [{"id": str(i), "prompt_ids": [1] * (3 + i), "max_new_tokens": 2 + i, "ignore_eos": True} for i in range(3)]
PAGED, CAT = "continuous+varlen+paged", "continuous+varlen+cat"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, one that is worse, and a baseline to hold them to."""
    root = tmp_path_factory.mktemp("endings")
    workload = write_workload(root, "requests: w.jsonl\nmodel: none\nmeasure: {rounds: 1}\n", ROWS)
    for name, words in (("good", []), ("worse", ["--max-num-seqs", "8"])):
        assert command("run", workload, "--kv", "paged,cat", *words, "--out", root / "made" / name).code == 0
        run_folder(root / "made" / name).rename(root / name)
    for path in (root / "worse" / PAGED).glob("*/cell.json"):
        cell = json.loads(path.read_text())
        path.write_text(json.dumps(cell | {"metrics": cell["metrics"] | {"steps": 999}}))
    assert command("baseline", "save", "main", root / "good", "--reason", "x", "--folder", root / "kept").code == 0
    return root


GATE = ["--baseline", "main", "--folder", "kept", "--fail-on", "regressed"]


def piped(place: Path, words: list[str], into: str) -> tuple[int, str]:
    """The exit code of `cbbench WORDS` before a pipe or a redirection, and what it said beside."""
    script = f'"$@" {into}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", script, "-", *SUBPROCESS, *words], cwd=place, env=ENVIRONMENT, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["compare", "good", *GATE], 0),
        (["compare", "worse", *GATE], 1),
        (["compare", "worse", *GATE, "--format", "json"], 1),
        (["list", "metrics"], 0),
        (["run", "w.yaml", "--format", "json", "--out", "r"], 0),
    ],
)
def test_a_pipe_that_closes_is_quiet_and_changes_no_exit_code(place: Path, words: list[str], code: int) -> None:
    ended, err = piped(place, words, "| true")
    assert ended == code and "Broken pipe" not in err and "Traceback" not in err and "Exception" not in err


@pytest.mark.parametrize(("run", "code"), [("good", 74), ("worse", 1)])
def test_a_full_disk_under_stdout_is_one_line(place: Path, run: str, code: int) -> None:
    assert piped(place, ["compare", run, *GATE], "> /dev/full") == (code, "cbbench: the output: No space left on device\n")


UNWRITABLE: dict[str, tuple[int, str, Callable[[Path, Path], list[str | Path]]]] = {
    "--out is a folder": (2, "is a folder; name a file", lambda place, tmp: ["compare", place / "good", "--out", folder(tmp / "x.md")]),
    "a plot over a folder": (2, "folder", lambda place, tmp: ["plot", place / "good", "slots", "-o", folder(tmp / "x.svg")]),
    "a baseline below a file": (
        74, "Not a directory",
        lambda place, tmp: ["baseline", "save", "m", place / "good", "--reason", "x", "--folder", file(tmp / "kept")],
    ),
    "a report over a folder": (2, "folder", lambda place, tmp: ["report", place / "good", "-o", folder(tmp / "r.html")]),
}  # fmt: skip


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def file(path: Path) -> Path:
    path.touch()
    return path


@pytest.mark.parametrize("what", UNWRITABLE)
def test_what_cannot_be_written_is_one_line(place: Path, tmp_path: Path, what: str) -> None:
    code, said, words = UNWRITABLE[what]
    ended = command(*words(place, tmp_path))
    assert ended.code == code and "Traceback" not in ended.err
    (line,) = ended.err.splitlines()
    assert line.startswith("cbbench: ") and said in line


@pytest.mark.parametrize(("run", "code"), [("good", 74), ("worse", 1)])
def test_a_summary_that_cannot_be_written_keeps_what_was_decided(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, code: int
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    ended = command("compare", run, *GATE, "--out", tmp_path / "x.md")
    assert ended.code == code and f"cbbench: GITHUB_STEP_SUMMARY {tmp_path}: Is a directory" in ended.err.splitlines()
    assert "gate:" in ended.out and "gate:" in (tmp_path / "x.md").read_text(), "everything else is written"


def test_a_fault_of_ours_is_one_line_and_70(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("x\ny")

    monkeypatch.setattr(html, "write_report", broken)
    ended = command("report", place / "good", "-o", tmp_path / "x.html")
    said = "cbbench: internal error, a fault of cbbench: KeyError: 'x\\ny' (CBBENCH_DEBUG=1 shows where)\n"
    assert (ended.code, ended.out, ended.err) == (70, "", said)
    monkeypatch.setenv("CBBENCH_DEBUG", "1")
    with pytest.raises(KeyError):
        command("report", place / "good", "-o", tmp_path / "x.html")


def test_a_usage_mistake_is_2_and_nothing_else(place: Path) -> None:
    assert [command(*words).code for words in (["compare"], ["compare", "--nope"], ["nope"], ["run", "nowhere.yaml"])] == [2] * 4


def test_what_a_file_says_steers_no_terminal(tmp_path: Path) -> None:
    """I16: escape bytes of a trace reached the terminal by way of an importer's message."""
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n\x1b[31mred,5,5\n2024-01-01 00:00:00,5,5\n")
    ended = command("workload", "import", tmp_path / "trace.csv", "-o", tmp_path / "w.yaml")
    assert "red" in ended.err and "\x1b" not in ended.err + ended.out


def test_of_a_folder_the_newest_run_of_each_workload_is_judged(place: Path, tmp_path: Path) -> None:
    """I5: one old regression failed every later gate."""
    for name, source, created in (("b-old", "worse", "2026-01-01T00:00:00Z"), ("a-new", "good", "2026-01-02T00:00:00Z")):
        shutil.copytree(place / source, tmp_path / "runs" / name)
        path = tmp_path / "runs" / name / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"created": created}))
    gate = ["--baseline", "main", "--folder", place / "kept", "--fail-on", "regressed"]
    ended = command("compare", tmp_path / "runs", *gate)
    assert ended.code == 0
    assert ended.err == f"cbbench: 1 older run of the same workload left out, like {tmp_path / 'runs' / 'b-old'} (--all-runs)\n"
    assert command("compare", tmp_path / "runs", *gate, "--all-runs").code == 1
    assert command("compare", tmp_path / "runs" / "a-new", tmp_path / "runs" / "b-old", *gate).code == 1, "who is named is judged"
