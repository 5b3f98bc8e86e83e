"""A run from a job to its tables: prepared, carried out in this process or in others, saved, printed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from cbbench.errors import UserError
from cbbench.isolate import IsolatedCells, Revision, checked_out, commit_of
from cbbench.job import Job, Prepared, prepare
from cbbench.results import RunDir, new_run_path, read_run
from cbbench.resume import check_same
from cbbench.runner import Cells, LocalCells, Outcome, Runner
from cbbench.show import Screen, print_runs


def run_job(job: Job, out: Path, resume: Path | None, format: str) -> int:
    """Prints the tables; returns the exit code. Raises UserError for what cannot be run, with nothing written."""
    screen = Screen()
    outcome, path = carry_out(job, out, resume, screen)
    print_runs([read_run(path)], format, save_in=path)
    screen.say(f"saved in {path}" + (f" (interrupted: whole rounds only; cbbench run --resume {path})" if outcome.interrupted else ""))
    return outcome.exit_code


def carry_out(job: Job, out: Path, resume: Path | None, screen: Screen) -> tuple[Outcome, Path]:
    if job.against is not None:
        commit = commit_of(job.against)
        job = replace(job, arms=[twin for arm in job.arms for twin in (arm, replace(arm, revision=commit))])
    prepared = prepare(job, screen.say)
    info = prepared.describe()
    if resume is not None:
        check_same(resume, info)
    path = resume or new_run_path(out, job.workload.name)
    try:
        run_dir = RunDir(path, resume is not None)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error
    num_tokens = sum(request.max_new_tokens for request in prepared.requests)
    with screen, _cells(prepared, screen) as cells:
        return Runner(job, cells, screen, num_tokens).run(run_dir, info), path


@contextmanager
def _cells(prepared: Prepared, screen: Screen) -> Iterator[Cells]:
    job = prepared.job
    if not job.isolate and job.against is None:
        yield LocalCells(prepared, screen)
        return
    with ExitStack() as stack:
        revisions: dict[str, Revision] = {}
        for commit in {arm.revision for arm in job.arms if arm.revision}:
            revisions[commit] = stack.enter_context(checked_out(commit, job.against_python))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cbbench-")))
        yield IsolatedCells(job, folder, revisions)
