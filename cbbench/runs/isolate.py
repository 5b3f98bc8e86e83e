"""A cell in a process of its own, perhaps on another revision of this repository: `run --isolate`, `run --against REV`.

The child is the public command `cbbench run` on a workload file that names the one arm, so every revision that has that
command can be asked. Fresh processes matter: what a process happens to get (memory layout, thread placement) is the same
for all its rounds and would be taken for a difference between arms.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import cbbench
from cbbench.errors import UserError
from cbbench.runs.config import Arm
from cbbench.runs.job import NO_MODEL, Job

CAPTURED: dict[str, Any] = {"capture_output": True, "text": True}
ROOT = Path(cbbench.__file__).parents[1]
UNSAID = ("source", "chat_template", "arms", "engine", "description")  # keys that decide nothing, or that the child must not see


@dataclass(frozen=True)
class Revision:
    """Where a revision's code lies, and which interpreter runs it."""

    name: str  # its commit, short
    root: Path
    python: str = sys.executable

    def environment(self) -> dict[str, str]:
        path = [str(self.root), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}

    def check(self) -> None:
        """Raises UserError where the interpreter would not run that code."""
        code = "import cbbench; print(cbbench.__file__)"
        try:
            found = subprocess.run([self.python, "-c", code], env=self.environment(), **CAPTURED, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(f"--against: {self.python} cannot import cbbench of {self.name}: {_last_line(error)}") from error
        if Path(found.stdout.strip()).parents[1].resolve() != self.root.resolve():
            raise UserError(f"--against: {self.python} runs {found.stdout.strip()}, not the code of {self.name}")


def _last_line(error: Any) -> str:
    said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    return said[-1] if said else type(error).__name__


def commit_of(revision: str) -> str:
    """The commit behind a branch, tag or hash, short. Raises UserError."""
    return _git("rev-parse", "--short", "--verify", f"{revision}^{{commit}}", said=f"--against {revision}: no such revision{_shallow()}")


def _shallow() -> str:
    """What helps where the clone has only its newest commits, as in CI."""
    with suppress(UserError):
        if _git("rev-parse", "--is-shallow-repository", said="") == "true":
            return " in this shallow clone (git fetch --deepen=1 gets one more commit)"
    return ""


@contextmanager
def checked_out(commit: str, python: str | None) -> Iterator[Revision]:
    """A worktree of the commit, removed afterwards."""
    made = Path(tempfile.mkdtemp(prefix="cbbench-"))
    folder = made / commit
    try:
        _git("worktree", "add", "--detach", str(folder), commit, said=f"--against {commit}: cannot be checked out")
        revision = Revision(commit, folder, python or sys.executable)
        revision.check()
        yield revision
    finally:
        with suppress(UserError):
            _git("worktree", "remove", "--force", str(folder), said="")
        shutil.rmtree(made, ignore_errors=True)


def _git(*words: str, said: str) -> str:
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(f"{said}: {_last_line(error)}") from error


class IsolatedCells:
    """Runs each cell of a job by a child process. Usable as the runner's cells."""

    def __init__(self, job: Job, folder: Path, revisions: dict[str, Revision]) -> None:
        self.job = job
        self.folder = folder
        self.here = Revision("here", ROOT)
        self.revisions = revisions  # commit -> its code

    def run(self, arm: Arm, folder: Path) -> dict[str, Any]:
        """Fills `folder` with cell.json and the records; returns cell.json's content. Raises RuntimeError where there is none."""
        revision = self.revisions.get(arm.revision or "", self.here)
        with tempfile.TemporaryDirectory(dir=self.folder) as made:
            ended = subprocess.run(
                self._command(arm, Path(made), revision), env=revision.environment(), capture_output=True, text=True, check=False
            )
            if ended.returncode == 130:
                raise KeyboardInterrupt
            cells = [*Path(made).glob("out/*/*/1/cell.json")]
            if len(cells) != 1:
                raise RuntimeError(f"the process ended with {ended.returncode}: {_last_line(ended)}")
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(cells[0].parent, folder)
        cell: dict[str, Any] = json.loads((folder / "cell.json").read_text())
        return cell

    def _command(self, arm: Arm, made: Path, revision: Revision) -> list[str]:
        job = self.job
        words = [
            revision.python, "-m", "cbbench", "run", str(self._workload(arm, made)), "--rounds", "1", "--warmup", str(job.warmup),
            "--device", job.device, "--threads", str(job.num_threads), "--out", str(made / "out"), "--format", "json",
        ]  # fmt: skip
        return (
            words + ["--verify"] * job.verify + ["--trust-remote-code"] * job.trust_remote_code + ["--prepare", "none"] * (not job.prepare)
        )

    def _workload(self, arm: Arm, made: Path) -> Path:
        """The workload with this one arm, beside a copy of its requests."""
        from cbbench.model.load import relocated

        job, source = self.job, self.job.workload
        data = {key: value for key, value in source.source.data.items() if key not in UNSAID}
        model = job.model if job.model == NO_MODEL else relocated(job.model, job.model_dir or Path.cwd(), made)
        limits = {"max_num_seqs": arm.max_num_seqs, "memory_budget": arm.memory_budget}
        strategies = arm.strategies(changed_only=True)  # another revision may not know them all
        said = {**strategies, **{name: value for name, value in limits.items() if value is not None}}
        data |= {"model": model, "dtype": job.dtype, "engine": said}
        if isinstance(data["requests"], str):
            shutil.copyfile(source.path.parent / data["requests"], made / "requests.jsonl")
            data["requests"] = "requests.jsonl"
        path = made / f"{source.name}.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
        return path
