"""A run from a job to its tables: prepared, carried out in this process or in others, saved, printed."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from cbbench.compare.verdict_report import change_text
from cbbench.compare.verdicts import Outcome as Finding
from cbbench.compare.verdicts import Verdict
from cbbench.compare.within import Rules, compare_within
from cbbench.errors import UserError
from cbbench.report.screen import print_grid, print_runs
from cbbench.results.judged import DEFAULT_MARGIN
from cbbench.results.store import RunDir, new_run_path, read_run
from cbbench.results.tables import Grid
from cbbench.runs.config import PeerArm
from cbbench.runs.isolate import IsolatedCells, Revision, checked_out, commit_of
from cbbench.runs.job import Job, Prepared, prepare
from cbbench.runs.live import Live
from cbbench.runs.peer_cells import PeerCells
from cbbench.runs.resume import check_same
from cbbench.runs.runner import Cells, LocalCells, Outcome, Runner


def run_job(job: Job, out: Path, resume: Path | None, format: str) -> int:
    """Prints the tables; returns the exit code. Raises UserError for what cannot be run, with nothing written."""
    live = Live()
    outcome, path = carry_out(job, out, resume, live)
    print_runs([read_run(path)], format, save_in=path)
    live.say(f"saved in {path}" + (f" (interrupted: whole rounds only; cbbench run --resume {path})" if outcome.interrupted else ""))
    return outcome.exit_code


def calibrate(job: Job, out: Path) -> int:
    """A against A. Prints the noise of each metric and the margin that it asks for; 1 where a difference is found."""
    live = Live()
    outcome, path = carry_out(job, out, None, live)
    found = compare_within(read_run(path), None, Rules())
    print_grid(noise_grid(found))
    live.say(f"saved in {path}")
    alarms = [v for v in found if v.metric.gated and v.outcome in (Finding.regressed, Finding.improved)]
    for verdict in alarms:
        if verdict.metric.exact:
            live.say(f"a difference that is none: {verdict.metric.title} {verdict.why}: this count is not the same each time")
            continue
        live.say(f"a difference that is none: {verdict.metric.title} {change_text(verdict.ratio())}: this machine is not fit to gate it")
    return outcome.exit_code or (1 if alarms else 0)


def noise_grid(found: list[Verdict]) -> Grid:
    """Half the width of each interval is what these rounds leave unknown; a margin of twice that is safe (at least 5 %)."""
    lines, note = [], "nothing was measured"
    for v in found:
        if v.shift is None or v.shift.half_width is None:
            continue
        noise = math.expm1(v.shift.half_width)
        margin = max(DEFAULT_MARGIN, 2 * noise)
        gated = "yes" if v.metric.gated else "no"
        lines.append([v.metric.title, gated, change_text(v.ratio()), f"{100 * noise:.1f} %", f"{100 * margin:.0f} %"])
        note = f"{v.shift.num} rounds of {v.subject.arm} against itself"
    return Grid("Noise", ["metric", "gated", "A against A", "noise floor", "suggested margin"], lines, note, 2, turns=False)


def carry_out(job: Job, out: Path, resume: Path | None, live: Live) -> tuple[Outcome, Path]:
    if job.against is not None:
        commit = commit_of(job.against)
        job = replace(job, arms=[twin for arm in job.arms for twin in (arm, replace(arm, revision=commit))])
    prepared = prepare(job, live.say)
    info = prepared.describe()
    if resume is not None:
        before = check_same(resume, info)
        info |= {key: before[key] for key in ("command", "created") if key in before}
    path = resume or new_run_path(out, job.workload.name)
    num_tokens = sum(request.max_new_tokens for request in prepared.requests)
    with live, _cells(prepared, live) as cells:
        try:
            run_dir = RunDir(path, resume is not None)
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written: {error.strerror}") from error
        return Runner(job, cells, live, num_tokens).run(run_dir, info), path


@contextmanager
def _cells(prepared: Prepared, live: Live) -> Iterator[Cells]:
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
