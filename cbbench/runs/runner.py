"""Arms x rounds: warm up, run, judge, save."""

from __future__ import annotations

import gc
import random
import sysconfig
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import cbbench
from cbbench.attention.base import Attention
from cbbench.clock import RealClock, VirtualClock
from cbbench.engine.executor import ModelExecutor, VirtualExecutor
from cbbench.engine.loop import Engine
from cbbench.engine.record import RunRecord, StepRecord
from cbbench.errors import UserError
from cbbench.kvcache.base import KVCache
from cbbench.machine.busy import OthersTime, ThreadLimit
from cbbench.machine.fingerprint import fingerprint, threading
from cbbench.machine.memory import PeakMemory
from cbbench.model import ceilings
from cbbench.request import Request
from cbbench.results.store import RunDir, name_cell, write_records
from cbbench.runs.config import Arm, PeerArm
from cbbench.runs.job import Job, Prepared
from cbbench.schedulers.base import Scheduler

WARMUP_NEW_TOKENS = 4
OURS, LIBRARIES = str(Path(cbbench.__file__).parent), tuple({*sysconfig.get_paths().values()})


class Progress(Protocol):
    """Whoever watches."""

    def say(self, text: str) -> None: ...

    def run_started(self, num_cells: int, tokens_per_cell: int) -> None: ...

    def cell_started(self, arm: str, round_number: int) -> None: ...

    def stepped(self, num_tokens: int, step: StepRecord) -> None: ...

    def cell_ended(self, cell: dict[str, Any]) -> None: ...


@dataclass
class Outcome:
    """How the whole run ended."""

    wrong: int = 0
    incomplete: int = 0  # failed cells, refused or unfinished requests
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """130 interrupted, 4 tokens not exact, 3 incomplete, 0 fine."""
        return 130 if self.interrupted else 4 if self.wrong else 3 if self.incomplete else 0


Contender = Arm | PeerArm


class Cells(Protocol):
    """How one arm is run once. Raises for a cell that failed."""

    def run(self, arm: Any, folder: Path) -> dict[str, Any]:
        """Fills `folder` with cell.json and the records; returns cell.json's content. `arm`: of the kind that it runs."""
        ...


def order(arms: Sequence[Contender], round_number: int) -> list[Contender]:
    """A seeded random order for every other round, and its mirror for the next: drift cancels over pairs of rounds."""
    shuffled = random.Random((round_number - 1) // 2).sample(arms, len(arms))
    return shuffled if round_number % 2 else shuffled[::-1]


class Runner:
    """Runs a job's arms round by round and saves as it goes."""

    def __init__(self, job: Job, cells: Cells, progress: Progress, num_tokens: int) -> None:
        self.job = job
        self.cells = cells
        self.progress = progress
        self.num_tokens = num_tokens  # of a cell, at most

    def run(self, run_dir: RunDir, info: dict[str, Any]) -> Outcome:
        """All cells that are not there whole. An interrupt ends the run wherever it is; whole rounds stay, and the round
        in progress as far as it came."""
        outcome = Outcome()
        contenders: list[Contender] = [*self.job.arms, *self.job.peers]
        run_dir.write_run({**info, "finished": False})
        self.progress.run_started(self.job.rounds * len(contenders), self.num_tokens)
        try:
            for round_number in range(1, self.job.rounds + 1):
                for arm in order(contenders, round_number):
                    if (kept := run_dir.whole(arm.label, round_number)) is not None:
                        self._count({"metrics": kept.metrics}, outcome)
                    else:
                        self._run_cell(arm, round_number, run_dir, outcome)
            run_dir.write_run({**info, "finished": True})
        except KeyboardInterrupt:
            outcome.interrupted = True
        return outcome

    def _run_cell(self, arm: Contender, round_number: int, run_dir: RunDir, outcome: Outcome) -> None:
        self.progress.cell_started(arm.label, round_number)
        with run_dir.making(arm.label, round_number) as folder:
            try:
                cell = self.cells.run(arm, folder)
            except Exception as error:  # a failed arm is a row with its reason; the others go on
                cell = failure(error)
                write_records(folder, cell, [], [])
            name_cell(folder, arm.label, round_number)
        self.progress.cell_ended(cell)
        self._count(cell, outcome)
        if cell.get("interrupted"):
            raise KeyboardInterrupt

    @staticmethod
    def _count(cell: dict[str, Any], outcome: Outcome) -> None:
        metrics = cell.get("metrics") or {}
        outcome.wrong += metrics.get("exact_wrong", 0)
        outcome.incomplete += bool(cell.get("failed")) + sum(metrics.get(f"requests_{s}", 0) for s in ("failed", "refused", "cancelled"))


def _place(error: Exception) -> str:
    """The line of somebody else's strategy that it came from; nothing where it is ours alone."""
    outside = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((OURS, *LIBRARIES))]
    return f" ({Path(outside[-1].filename).name}:{outside[-1].lineno}, {outside[-1].name})" if outside else ""


def failure(error: Exception) -> dict[str, Any]:
    """What cell.json says of a round that failed."""
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    reason = f"{kind}{str(error).splitlines()[0] if str(error) else 'no message'}{_place(error)}"
    return {"failed": reason, "traceback": "".join(traceback.format_exception(error))}


class LocalCells:
    """Runs each cell in this process, on the one loaded model."""

    def __init__(self, prepared: Prepared, progress: Progress) -> None:
        self.prepared = prepared
        self.job = prepared.job
        self.model = prepared.model
        self.progress = progress
        self.limit = ThreadLimit(self.job.num_threads)

    def _look(self, engine: Engine) -> None:
        if self.model is not None and self.job.device == "cpu":
            self.limit.look(engine.clock.now())

    def run(self, arm: Arm, folder: Path) -> dict[str, Any]:
        cell: dict[str, Any] = {"bytes_per_token": self.prepared.spec.bytes_per_token}
        if self.model is not None:
            cell |= {"model_cost": self.model.cost, "rates": ceilings.stored(fingerprint(self.job.device, self.job.num_threads))}
        record = self.measure(arm, cell)
        cell["interrupted"] = record.interrupted
        return write_records(folder, cell, record.step_lines(), judged(self.prepared, record.request_lines(), self.progress))

    def measure(self, arm: Arm, cell: dict[str, Any]) -> RunRecord:
        """One arm, once, after its warm-up; notes the backend and the memory it took in `cell`."""
        with self.model.serving() if self.model else nullcontext():
            for _ in range(self.job.warmup if self.model else 0):
                warming = self._engine(arm, cell, is_warmup=True)
                warming.on_step = partial(self._look, warming)
                warming.run(warmup_requests(self.prepared.requests, arm.max_num_seqs))
            gc.collect()
            peak = PeakMemory(self.job.device)
            peak.start()
            engine = self._engine(arm, cell)
            self.limit.was_lowered = False

            def stepped() -> None:
                self.progress.stepped(engine.num_output_tokens, engine.steps[-1])
                self._look(engine)

            engine.on_step = stepped
            others = OthersTime()
            try:
                engine.run(self.prepared.requests)
                record = engine.record()
            except KeyboardInterrupt:
                record = engine.record(interrupted=True)
            except Exception as error:  # a failed arm is a row with its reason, and keeps what it had; the others go on
                record = engine.record()
                cell |= failure(error)
            if self.model:
                cell |= {"peak_memory_bytes": peak.grown_bytes(), "others_cpu_frac": others.frac()}
                cell["threads"] = {**threading(), "lowered": self.limit.was_lowered}
            cell["peak_extra_bytes"] = engine.cache.peak_extra_bytes
        return record

    def _engine(self, arm: Arm, cell: dict[str, Any], is_warmup: bool = False) -> Engine:
        """Checked after every step in a warm-up, and always where a strategy is not ours."""
        prepared = self.prepared
        check = is_warmup or any(not chosen.cls.__module__.startswith("cbbench.") for chosen in (arm.scheduler, arm.attn, arm.kv))
        budget, longest = prepared.budgets[arm.label], prepared.longest_tokens
        scheduler: Scheduler = arm.scheduler.cls(arm.max_num_seqs, arm.scheduler.options)  # type: ignore[call-arg,assignment]
        cache: KVCache = arm.kv.cls(prepared.spec, budget, longest, arm.kv.options)  # type: ignore[call-arg,assignment]
        attention: Attention = arm.attn.cls(arm.attn.options)  # type: ignore[call-arg,assignment]
        if self.model is not None:
            graphs = arm.max_num_seqs if attention.captures else 0
            cell["backend"] = attention.backend(self.job.device, self.job.dtype)
            return Engine(scheduler, cache, ModelExecutor(self.model, attention, cache, graphs), RealClock(), check)
        cost = self.job.workload.file.cost
        return Engine(scheduler, cache, VirtualExecutor(attention, cache, cost.step_s, cost.position_s), VirtualClock(), check)


def warmup_requests(requests: list[Request], num: int) -> list[Request]:
    """The first batch, all at once, a few tokens each: same shapes, same kernels."""
    return [replace(r, arrival_s=0.0, after=None, max_new_tokens=min(r.max_new_tokens, WARMUP_NEW_TOKENS)) for r in requests[:num]]


def judged(prepared: Prepared, lines: list[dict[str, Any]], progress: Progress) -> list[dict[str, Any]]:
    """Request records with how their tokens compare."""
    for line, request in zip(lines, prepared.requests, strict=False):
        if prepared.model is None or line["state"] != "finished" or min(line["output_ids"], default=0) < 0:
            continue  # below 0: a peer counted tokens whose ids it does not know
        from cbbench.model.reference import judge

        verdict = judge(prepared.model, request, line["output_ids"])
        line |= asdict(verdict)
        if verdict.outcome in ("wrong", "tie"):
            at = f"token {verdict.position}: expected {verdict.expected}, got {verdict.got}"
            gap = "" if verdict.gap is None else f", logit gap {verdict.gap:.2g}, the token that came ranks {verdict.rank}"
            progress.say(f"{verdict.outcome}: request {line['id']}, {at}{gap}")
    return lines
