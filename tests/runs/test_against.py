"""`run --against REV`: this working tree against a commit of it, both in processes of their own, in a small repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import cbbench
import cbbench.runs.isolate
from cbbench.errors import UserError
from cbbench.results.store import read_run
from cbbench.runs.isolate import checked_out, commit_of
from tests.support.commands import ENVIRONMENT, Ended, command, run_folder, write_workload

ROWS = [{"id": str(i), "prompt_ids": [1] * (3 + i), "max_new_tokens": 2 + i} for i in range(4)]
ARM = "continuous+varlen+paged"
ADMIT = ("        self.admit(room)\n", "        self.admit_one(room)\n")  # what the change makes slower


def git(repository: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", repository, *who, *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is, committed; in the working tree `continuous` admits one sequence a step, and one file is new."""
    folder = tmp_path_factory.mktemp("repository")
    package = Path(cbbench.__file__).parent
    shutil.copytree(package, folder / "cbbench", ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "before")
    scheduler = folder / "cbbench" / "schedulers" / "continuous.py"
    assert ADMIT[0] in scheduler.read_text()
    scheduler.write_text(scheduler.read_text().replace(*ADMIT))
    return folder


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def workload(repository: Path, tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workload elsewhere; cbbench takes the small repository for its own."""
    monkeypatch.setattr(cbbench.runs.isolate, "ROOT", repository)
    monkeypatch.chdir(tmp_path)
    return write_workload(tmp_path, "requests: w.jsonl\nmodel: none\nmeasure: {warmup: 0, rounds: 1}\n", ROWS)


def worktrees(repository: Path) -> int:
    return len(git(repository, "worktree", "list").splitlines())


def assert_clean(repository: Path, temp: Path) -> None:
    assert worktrees(repository) == 1 and [*temp.glob("cbbench-*")] == []
    assert git(repository, "status", "--short") == "M cbbench/schedulers/continuous.py"


def against(workload: Path, revision: str, *words: str) -> Ended:
    return command("run", workload, "--against", revision, "--out", workload.parent / "r", *words)


@pytest.fixture(scope="module")
def judged(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended, str]:
    """The run against HEAD, and HEAD."""
    folder = tmp_path_factory.mktemp("judged")
    workload = write_workload(folder, "requests: w.jsonl\nmodel: none\nmeasure: {warmup: 0, rounds: 1}\n", ROWS)
    (folder / "temp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cbbench.runs.isolate, "ROOT", repository)
        patch.setattr(tempfile, "tempdir", str(folder / "temp"))
        patch.chdir(folder)
        ended = against(workload, "HEAD", "--arm", ARM, "--arm", "static+varlen+paged")
    assert_clean(repository, folder / "temp")
    return run_folder(folder / "r"), ended, git(repository, "rev-parse", "--short", "HEAD")


def test_every_arm_runs_on_both_and_counts_differ_where_the_code_does(judged: tuple[Path, Ended, str]) -> None:
    run, ended, commit = judged
    assert ended.code == 0, ended.err
    found = read_run(run)
    assert [arm["label"] for arm in found.info["arms"]] == [
        label for arm in (ARM, "static+varlen+paged") for label in (arm, f"{arm}@{commit}")
    ]
    assert [arm.get("base_of") for arm in found.info["arms"]] == [None, ARM, None, "static+varlen+paged"]
    steps = {cell.arm: cell.metrics["steps"] for cell in found.cells}
    assert steps[ARM] > steps[f"{ARM}@{commit}"] and steps["static+varlen+paged"] == steps[f"static+varlen+paged@{commit}"]
    assert found.info["isolated"] is True and {cell.metrics["output_digest"] for cell in found.cells} == {
        found.cells[0].metrics["output_digest"]
    }


def test_the_gate_names_the_count_and_by_how_much(judged: tuple[Path, Ended, str]) -> None:
    run, _, commit = judged
    ended = command("compare", run, "--fail-on", "regressed", "--format", "json")
    (row,) = [row for row in ended.data["verdicts"] if row["metric"] == "steps" and row["arm"] == ARM]
    assert (ended.code, row["base"], row["outcome"]) == (1, f"{ARM}@{commit}", "regressed")
    assert row["why"] == f"{row['value'] - row['base_value']:+g}" and row["value"] > row["base_value"]
    assert {hit["arm"] for hit in ended.data["gate"]["hits"]} == {ARM}
    table = command("compare", run, "--fail-on", "regressed").out
    lines = [line for line in table.splitlines() if " steps " in line and "regressed" in line]
    assert any(row["why"] in line for line in lines) and f"@{commit}" in table
    assert {row["outcome"] for row in ended.data["verdicts"] if row["arm"] == "static+varlen+paged"} == {"same"}
    assert command("compare", run).code == 0


def test_unchanged_code_is_the_same_in_all_counts(workload: Path, repository: Path, temp: Path) -> None:
    changed = git(repository, "stash", "create")
    git(repository, "tag", "-f", "changed", changed)
    ended = against(workload, "changed")
    assert ended.code == 0, ended.err
    judged = command("compare", workload.parent / "r", "--fail-on", "regressed", "--fail-on", "unresolved", "--format", "json")
    assert judged.code == 0 and {row["outcome"] for row in judged.data["verdicts"]} == {"same"}
    assert "steps" in {row["metric"] for row in judged.data["verdicts"]}
    assert_clean(repository, temp)


def test_each_side_runs_its_own_code_wherever_it_is_started(workload: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    assert against(workload, "HEAD").code == 0
    found = read_run(run_folder(workload.parent / "r"))
    here, there = (cell.metrics["steps"] for cell in found.cells)
    assert here > there


FOREIGN = """#!/bin/sh
echo /somewhere/else/cbbench/__init__.py
"""


def refused(workload: Path, repository: Path, temp: Path, revision: str, *words: str) -> str:
    """The line, where nothing was left."""
    mistake = against(workload, revision, *words).mistake
    assert_clean(repository, temp)
    assert not (workload.parent / "r").exists()
    return mistake


@pytest.mark.parametrize("revision", ["nowhere", "HEAD~9", "-x", "HEAD:cbbench", ""])
def test_an_unknown_revision_is_one_line_and_nothing_is_left(workload: Path, repository: Path, temp: Path, revision: str) -> None:
    assert refused(workload, repository, temp, revision).startswith(f"--against {revision}: no such revision: ")


def test_code_outside_a_repository_is_one_line(workload: Path, repository: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cbbench.runs.isolate, "ROOT", workload.parent)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(workload.parent.parent))
    assert "not a git repository" in refused(workload, repository, temp, "HEAD")
    monkeypatch.setenv("PATH", str(temp))
    assert "git" in against(workload, "HEAD").mistake


def test_an_interpreter_that_is_not_there_is_one_line_and_nothing_is_left(workload: Path, repository: Path, temp: Path) -> None:
    said = refused(workload, repository, temp, "HEAD", "--against-python", str(temp / "python"))
    assert said.startswith(f"--against: {temp / 'python'} cannot import cbbench of ")


def test_an_interpreter_of_other_code_is_one_line_and_nothing_is_left(workload: Path, repository: Path, temp: Path) -> None:
    foreign = workload.parent / "foreign"
    foreign.write_text(FOREIGN)
    foreign.chmod(0o755)
    said = refused(workload, repository, temp, "HEAD", "--against-python", str(foreign))
    assert "runs /somewhere/else/cbbench/__init__.py, not the code of" in said


def test_an_interpreter_is_found_from_where_the_user_stands(workload: Path, repository: Path) -> None:
    (workload.parent / "bin").mkdir()
    (workload.parent / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (workload.parent / "bin" / "python").chmod(0o755)
    with checked_out(commit_of("HEAD"), "bin/python") as revision:
        assert (revision.root / "cbbench" / "cli" / "app.py").is_file()
    assert worktrees(repository) == 1


def test_a_run_whose_other_side_fails_ends_with_3_and_leaves_nothing(workload: Path, repository: Path, temp: Path) -> None:
    git(repository, "stash", "--quiet")
    try:
        broken = repository / "cbbench" / "schedulers" / "continuous.py"
        broken.write_text(broken.read_text().replace(ADMIT[0], "        raise OSError('no luck')\n"))
        git(repository, "tag", "-f", "broken", git(repository, "stash", "create"))
        git(repository, "checkout", "--quiet", ".")
    finally:
        git(repository, "stash", "pop", "--quiet")
    ended = against(workload, "broken")
    assert ended.code == 3, ended.err
    assert [cell.failed for cell in read_run(run_folder(workload.parent / "r")).cells] == [None, "OSError: no luck"]
    assert_clean(repository, temp)


def test_a_worktree_that_cannot_be_made_leaves_nothing(repository: Path, temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cbbench.runs.isolate, "ROOT", repository)
    commit, before = commit_of("HEAD"), worktrees(repository)
    with pytest.raises(UserError, match="cannot be checked out"), checked_out("0" * 40, None):
        pass
    assert (worktrees(repository), [*temp.glob("cbbench-*")]) == (before, [])
    with pytest.raises(RuntimeError), checked_out(commit, None) as revision:
        assert (revision.root / "cbbench" / "cli" / "app.py").is_file()
        raise RuntimeError
    assert_clean(repository, temp)


def test_the_copy_itself_runs_as_a_module(repository: Path, workload: Path) -> None:
    words = [sys.executable, "-m", "cbbench", "run", str(workload), "--against", "nowhere"]
    ended = subprocess.run(words, cwd=repository, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "") and ended.stderr.startswith("cbbench: --against nowhere: no such revision")
    assert len(ended.stderr.splitlines()) == 1
