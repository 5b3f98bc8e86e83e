"""Arms x rounds: load once, warm up, run, judge, save."""

from __future__ import annotations

import gc
import time
import traceback
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cbbench import config, machine, workload
from cbbench.attention.base import Attention
from cbbench.clock import RealClock, VirtualClock
from cbbench.config import Arm
from cbbench.engine import Engine
from cbbench.errors import UserError
from cbbench.executor import ModelExecutor, VirtualExecutor
from cbbench.kvcache.base import KVCache, KVSpec
from cbbench.record import RunRecord
from cbbench.request import Request
from cbbench.results import RunDir
from cbbench.schedulers.base import Scheduler
from cbbench.workload import Workload

if TYPE_CHECKING:
    from cbbench.model import Model

NO_MODEL = "none"
WARMUP_NEW_TOKENS = 4


@dataclass(frozen=True)
class Job:
    """What to run, resolved."""

    workload: Workload
    arms: list[Arm]
    model: str
    dtype: str
    device: str
    num_threads: int
    rounds: int
    warmup: int
    verify: bool
    command: list[str]
    trust_remote_code: bool = False
    model_dir: Path | None = None  # where relative model paths count from


class Progress(Protocol):
    """Whoever watches."""

    def say(self, text: str) -> None: ...

    def cell_started(self, arm: str, round_number: int, num_tokens: int) -> None: ...

    def tokens_done(self, num_tokens: int) -> None: ...

    def cell_ended(self, num_tokens: int) -> None: ...


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


class Runner:
    """Runs one job. `prepare` may refuse it with a UserError, with nothing written; `run` writes results."""

    def __init__(self, job: Job, progress: Progress) -> None:
        self.job = job
        self.progress = progress

    def prepare(self) -> None:
        """Everything that can be wrong is found here: arms, model, requests, budgets."""
        job = self.job
        self.model: Model | None = None
        if job.model == NO_MODEL:
            self.spec = KVSpec(0, 0, 0, 0)
            self.requests = workload.resolve(job.workload, None)
        else:
            config.check_runnable(job.arms, job.device, job.dtype)
            torch.set_num_threads(job.num_threads)
            self.model = self._load()
            self.spec = self.model.spec
            self.requests = self._with_references(self.model)
        max_positions = self.model.max_positions if self.model else None
        self.longest = workload.longest_tokens(self.requests, max_positions)
        self.budgets = {arm.label: config.tokens_of(arm, self.spec.bytes_per_token, self.longest) for arm in job.arms}

    def _load(self) -> Model:
        from cbbench.model import load

        job = self.job
        self.progress.say(f"loading {job.model} in {job.dtype} on {job.device}")
        return load(job.model, job.dtype, job.device, job.model_dir, job.trust_remote_code)

    def _with_references(self, model: Model) -> list[Request]:
        """Requests with the reference tokens that belong to this very model; others are dropped, or made anew."""
        job, reference = self.job, self.job.workload.file.reference
        requests = workload.resolve(job.workload, model.encode if model.tokenizer else None, model.hf.config.vocab_size)
        has_any = any(request.output_ids for request in requests)
        if has_any and (reference is None or reference.digest != model.digest):
            recorded_on = f"{reference.model} ({reference.dtype}, {reference.digest})" if reference else "an unnamed model"
            self.progress.say(f"the reference tokens were recorded on {recorded_on}, this is {model.digest}: they do not apply")
            requests = [replace(request, output_ids=None) for request in requests]
        if not job.verify:
            return requests
        from cbbench.reference import cached_greedy

        missing = sum(request.output_ids is None for request in requests)
        if missing:
            self.progress.say(f"generating {missing} missing references, one prompt at a time")
        return [r if r.output_ids is not None else replace(r, output_ids=cached_greedy(model, r)) for r in requests]

    def describe(self) -> dict[str, Any]:
        """run.json."""
        job, model = self.job, self.model
        return {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": job.command,
            "workload": {
                "name": job.workload.name, "path": str(job.workload.path), "digest": workload.digest(self.requests),
                "num_requests": len(self.requests), "arrivals": job.workload.file.model_dump()["arrivals"],
            },
            "model": {
                "name": job.model, "dtype": job.dtype, "digest": model.digest if model else None,
                "bytes_per_token": self.spec.bytes_per_token or None, "neutralised": model.neutralised if model else {},
                "reference_attention": model.hf.config._attn_implementation if model else None,
            },
            "device": job.device, "rounds": job.rounds, "warmup": job.warmup,
            "arms": [{**arm.describe(), "budget_tokens": self.budgets[arm.label], "backend": self._backend(arm)} for arm in job.arms],
            "machine": machine.fingerprint(job.device, job.num_threads), "versions": machine.versions(), "finished": False,
        }  # fmt: skip

    def _backend(self, arm: Arm) -> str:
        attention: Any = arm.attn.cls(arm.attn.options)  # type: ignore[call-arg]
        return "none" if self.model is None else str(attention.backend(self.job.device, self.job.dtype))

    def run(self, run_dir: RunDir) -> Outcome:
        """All cells, rounds outermost, every other round in reverse so that drift cancels. Saves as it goes."""
        outcome = Outcome()
        info = self.describe()
        run_dir.write_run(info)
        for round_number in range(1, self.job.rounds + 1):
            for arm in self.job.arms if round_number % 2 else reversed(self.job.arms):
                self._run_cell(arm, round_number, run_dir, outcome)
                if outcome.interrupted:
                    return outcome
        run_dir.write_run({**info, "finished": True})
        return outcome

    def _run_cell(self, arm: Arm, round_number: int, run_dir: RunDir, outcome: Outcome) -> None:
        cell: dict[str, Any] = {"bytes_per_token": self.spec.bytes_per_token}
        record = RunRecord()
        self.progress.cell_started(arm.label, round_number, sum(r.max_new_tokens for r in self.requests))
        try:
            record = self.measure(arm, cell)
        except Exception as error:  # a failed arm is a row with its reason; the others go on
            cell["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
            cell["traceback"] = traceback.format_exc()
            self.progress.say(f"{arm.label} failed in round {round_number}: {cell['failed']}")
        self.progress.cell_ended(sum(len(r.output_ids) for r in record.requests))
        cell["interrupted"] = outcome.interrupted = record.interrupted
        lines = self.judged(record)
        outcome.wrong += sum(line.get("outcome") == "wrong" for line in lines)
        outcome.incomplete += bool(cell.get("failed")) + sum(line["state"] != "finished" for line in lines)
        run_dir.write_cell(arm.label, round_number, cell, record.step_lines(), lines)

    def measure(self, arm: Arm, cell: dict[str, Any]) -> RunRecord:
        with self.model.serving() if self.model else nullcontext():
            for _ in range(self.job.warmup if self.model else 0):
                self._engine(arm).run(self._warmup_requests(arm))
            gc.collect()
            peak = machine.PeakMemory(self.job.device)
            peak.start()
            engine = self._engine(arm)
            engine.on_step = lambda: self.progress.tokens_done(engine.num_output_tokens)
            try:
                engine.run(self.requests)
                record = engine.record()
            except KeyboardInterrupt:
                record = engine.record(interrupted=True)
            cell["peak_memory_bytes"] = peak.grown_bytes() if self.model else None
            cell["peak_extra_bytes"] = engine.cache.peak_extra_bytes
        return record

    def _engine(self, arm: Arm) -> Engine:
        scheduler: Scheduler = arm.scheduler.cls(arm.max_num_seqs, arm.scheduler.options)  # type: ignore[call-arg,assignment]
        cache: KVCache = arm.kv.cls(self.spec, self.budgets[arm.label], self.longest, arm.kv.options)  # type: ignore[call-arg,assignment]
        attention: Attention = arm.attn.cls(arm.attn.options)  # type: ignore[call-arg,assignment]
        if self.model is not None:
            return Engine(scheduler, cache, ModelExecutor(self.model, attention, cache), RealClock())
        cost = self.job.workload.file.cost
        return Engine(scheduler, cache, VirtualExecutor(attention, cost.step_s, cost.position_s), VirtualClock())

    def _warmup_requests(self, arm: Arm) -> list[Request]:
        """The first batch, all at once, a few tokens each: same shapes, same kernels."""
        first = self.requests[: arm.max_num_seqs]
        return [replace(r, arrival_s=0.0, max_new_tokens=min(r.max_new_tokens, WARMUP_NEW_TOKENS)) for r in first]

    def judged(self, record: RunRecord) -> list[dict[str, Any]]:
        """Request records with how their tokens compare."""
        lines = record.request_lines()
        for line, request in zip(lines, self.requests, strict=False):
            if self.model is None or line["state"] != "finished":
                continue
            from cbbench.reference import judge

            verdict = judge(self.model, request, line["output_ids"])
            line |= asdict(verdict)
            if verdict.outcome in ("wrong", "tie"):
                at = f"token {verdict.position}: expected {verdict.expected}, got {verdict.got}"
                gap = "" if verdict.gap is None else f", logit gap {verdict.gap:.2g}"
                self.progress.say(f"{verdict.outcome}: request {line['id']}, {at}{gap}")
        return lines


def choose_device(device: str) -> str:
    """`auto` takes cuda where there is one. Raises UserError for a device that this machine lacks."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return "cuda" if available["cuda"] else "cpu"
    if not available.get(device, False):
        here = ", ".join(name for name, there in available.items() if there)
        raise UserError(f"--device {device}: not on this machine, which has {here}")
    return device


def default_threads() -> int:
    return torch.get_num_threads()
