"""A run from a job to its files: prepared, carried out in this process or in others, saved."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from cbbench.errors import UserError
from cbbench.results.store import RunDir, new_run
from cbbench.runs.config import PeerArm
from cbbench.runs.estimate import least_s
from cbbench.runs.isolate import IsolatedCells, Revision, checked_out, commit_of
from cbbench.runs.job import Job, Prepared, prepare
from cbbench.runs.peer_cells import PeerCells
from cbbench.runs.progress import LONG_S, LiveProgress, duration
from cbbench.runs.resume import check_same
from cbbench.runs.runner import Cells, LocalCells, Outcome, Runner


def carry_out(job: Job, out: Path, resume: Path | None, live: LiveProgress) -> tuple[Outcome, Path]:
    """How the run ended, and where it is saved. Raises UserError for what cannot be run, with nothing written."""
    if job.against is not None:
        commit = commit_of(job.against)
        job = replace(job, arms=[twin for arm in job.arms for twin in (arm, replace(arm, revision=commit))])
    prepared = prepare(job, live.say)
    info = prepared.describe()
    if resume is not None:
        before = check_same(resume, info)
        info |= {key: before[key] for key in ("command", "created") if key in before}
    num_cells = job.rounds * (len(job.arms) + len(job.peers))
    if (at_least_s := least_s(prepared)) is not None and at_least_s > LONG_S:
        live.say(f"{num_cells} rounds to run: at least {duration(at_least_s)} on this machine, most arms take longer")
    num_tokens = sum(request.max_new_tokens for request in prepared.requests)
    with live, _cells(prepared, live) as cells:
        try:
            run_dir = RunDir(resume, resume=True) if resume else new_run(out, job.workload.name)
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error
        return Runner(job, cells, live, num_tokens).run(run_dir, info), run_dir.path


@contextmanager
def _cells(prepared: Prepared, live: LiveProgress) -> Iterator[Cells]:
    job = prepared.job
    if not job.isolate and job.against is None:
        yield ByKind(LocalCells(prepared, live), PeerCells(prepared, live))
        return
    with ExitStack() as stack:
        revisions: dict[str, Revision] = {}
        for commit in {arm.revision for arm in job.arms if arm.revision}:
            revisions[commit] = stack.enter_context(checked_out(commit, job.against_python))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cbbench-")))
        yield ByKind(IsolatedCells(job, folder, revisions), PeerCells(prepared, live))


class ByKind:
    """Arms run here or in processes of their own; a peer decides for itself."""

    def __init__(self, arms: Cells, peers: Cells) -> None:
        self.arms = arms
        self.peers = peers

    def run(self, arm: Any, folder: Path) -> dict[str, Any]:
        return (self.peers if isinstance(arm, PeerArm) else self.arms).run(arm, folder)
