"""A job made ready: the model loaded, the requests resolved, every arm's memory counted. What can be refused is refused here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cbbench.clock import RealClock
from cbbench.errors import UserError
from cbbench.kvcache.base import KVSpec
from cbbench.machine.busy import ThreadLimit
from cbbench.machine.fingerprint import code, fingerprint, versions
from cbbench.request import Request
from cbbench.runs import config
from cbbench.runs.budgets import check_memory, tokens_of
from cbbench.runs.config import Arm, PeerArm
from cbbench.runs.progress import duration
from cbbench.workload import file as workload
from cbbench.workload.file import Workload

if TYPE_CHECKING:
    from cbbench.model.model import Model

NO_MODEL = "none"
SAY_EVERY_S = 10.0  # while references are generated
Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """What to run."""

    workload: Workload
    arms: list[Arm]
    model: str
    dtype: str
    device: str
    num_threads: int
    rounds: int
    warmup: int
    verify: bool = False
    command: tuple[str, ...] = ()
    trust_remote_code: bool = False
    model_dir: Path | None = None  # where relative model paths count from
    isolate: bool = False  # a process for each arm and round
    against: str | None = None  # a revision whose code runs the same arms
    against_python: str | None = None
    peers: tuple[PeerArm, ...] = ()
    prepare: bool = True  # fuse and pack the model's linear layers


@dataclass(frozen=True)
class Prepared:
    """What every arm of a job shares."""

    job: Job
    model: Model | None  # None: no tensors, a virtual clock
    spec: KVSpec
    requests: list[Request]
    longest_tokens: int
    budgets: dict[str, int]  # arm label -> tokens

    def describe(self) -> dict[str, Any]:
        """run.json."""
        job, model = self.job, self.model
        arms = [{**arm.describe(), "budget_tokens": self.budgets[arm.label]} for arm in job.arms]
        return {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": list(job.command),
            "workload": {
                "name": job.workload.name, "path": str(job.workload.path), "digest": workload.digest(self.requests),
                "num_requests": len(self.requests), "arrivals": job.workload.file.arrivals.describe(),
            },
            "model": {
                "name": job.model, "dtype": job.dtype, "digest": model.digest if model else None,
                "bytes_per_token": self.spec.bytes_per_token or None, "neutralised": model.neutralised if model else {},
                "prepared": model.prepared if model else None, "unprepared": model.unprepared if model else None,
                "reference_attention": model.hf.config._attn_implementation if model else None,
                "cost": None if model else job.workload.file.cost.model_dump(),
            },
            "device": job.device, "rounds": job.rounds, "warmup": job.warmup, "isolated": job.isolate or job.against is not None,
            "arms": [*arms, *(peer.describe() for peer in job.peers)],
            "machine": fingerprint(job.device, job.num_threads), "versions": versions(), "code": code(),
            "finished": False,
        }  # fmt: skip


def prepare(job: Job, say: Say) -> Prepared:
    """Raises UserError for whatever cannot be run, with nothing written."""
    if job.model == NO_MODEL:
        if job.peers:
            raise UserError("--peer needs a model; --model none has no tokens to make")
        model, spec = None, KVSpec(1, 0, 0, 0)
        requests = workload.resolve(job.workload, None)
    else:
        config.check_runnable(job.arms, job.device, job.dtype)
        config.check_peers(job.peers, job.device, job.dtype)
        model = _load(job, say)
        config.check_served(job.arms, model.spec, job.device)
        spec, requests = model.spec, _with_references(job, model, say)
        _make_ready(job, model, say)
    if job.peers and any(request.after for request in requests):
        raise UserError("--peer: in a closed loop a request comes after another's end, and no peer can be told so")
    longest = workload.longest_tokens(requests, model.max_positions if model else None)
    budgets = {arm.label: tokens_of(arm, spec.bytes_per_token, longest, job.arms) for arm in job.arms}
    check_memory(job.arms, budgets, spec.bytes_per_token, job.device)
    return Prepared(job, model, spec, requests, longest, budgets)


def _load(job: Job, say: Say) -> Model:
    from cbbench.model.load import load

    torch.set_num_threads(job.num_threads)
    if job.device == "cpu" and job.num_threads > 1:
        ThreadLimit(job.num_threads).wait_and_look()
    say(f"loading {job.model} in {job.dtype} on {job.device}")
    return load(job.model, job.dtype, job.device, job.model_dir, job.trust_remote_code, prepare=False)


def _make_ready(job: Job, model: Model, say: Say) -> None:
    """Prepares the layers and compiles kernels: before any clock runs, and after the references, which come from the model as it
    loads."""
    from cbbench.kernels.availability import missing
    from cbbench.model.load import prepare_layers

    attentions = [made for arm in job.arms if (made := config.attention_of(arm)) is not None]
    on_cpu = job.device == "cpu" and job.dtype == "float32"
    has_kernels = on_cpu and (job.prepare or any(one.backend(job.device, job.dtype) == "cpu" for one in attentions))
    compiles = False
    if has_kernels and missing() is None:
        from cbbench.kernels.compiling import must_compile

        if compiles := must_compile():
            say("compiling kernels for this CPU, once (some 20 seconds)")
    clock = RealClock()
    if job.prepare:
        prepare_layers(model)
        if model.unprepared:
            say(f"{model.name} runs with its own layers: {model.unprepared}")
    for attention in attentions:
        attention.compile(job.device)
    if compiles:
        say(f"compiled in {duration(clock.now())}")


def _with_references(job: Job, model: Model, say: Say) -> list[Request]:
    """Requests with the reference tokens that belong to this very model; others are dropped, or made anew."""
    reference = job.workload.file.reference
    requests = workload.resolve(job.workload, model.vocabulary)
    for request in requests:
        _ = request.prompt_ids[:1]  # hashed prompts are made now, not inside a measured step
    has_any = any(request.output_ids for request in requests)
    if has_any and (reference is None or reference.digest != model.digest):
        recorded_on = f"{reference.model} ({reference.dtype}, {reference.digest})" if reference else "an unnamed model"
        say(f"the reference tokens were recorded on {recorded_on}, this is {model.digest}: they do not apply")
        requests = [replace(request, output_ids=None) for request in requests]
    missing = sum(request.output_ids is None for request in requests)
    if not job.verify or not missing:
        return requests
    say(f"generating {missing} missing references, one prompt at a time")
    return list(_generated(requests, missing, model, say))


def _generated(requests: list[Request], missing: int, model: Model, say: Say) -> Iterator[Request]:
    """Says now and then how far it is: some models take minutes."""
    from cbbench.model.reference import cached_greedy

    clock, said_s, done = RealClock(), 0.0, 0
    for request in requests:
        if request.output_ids is not None:
            yield request
            continue
        yield replace(request, output_ids=cached_greedy(model, request))
        done += 1
        if clock.now() - said_s > SAY_EVERY_S and done < missing:
            said_s = clock.now()
            say(f"{done} of {missing} references, about {duration(said_s / done * (missing - done))} left")
