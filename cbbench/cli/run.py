"""`cbbench run` and `cbbench calibrate`: arms on a workload, for real."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbbench.cli.options import Device, Dtype, DtypeOption, Format, FormatOption, ModelName, Prepare, Threads, Trust, WorkloadPath
from cbbench.errors import UserError

if TYPE_CHECKING:
    from cbbench.runs.config import Arm
    from cbbench.runs.job import Job
    from cbbench.workload.file import Workload


def run(
    workload: Annotated[Path | None, typer.Argument(help="a workload's .yaml; with --resume it is known")] = None,
    scheduler: Annotated[str | None, typer.Option(help="a name, a comma list, or all")] = None,
    attn: Annotated[str | None, typer.Option(help="a name, a comma list, or all")] = None,
    kv: Annotated[str | None, typer.Option(help="a name, a comma list, or all")] = None,
    arm: Annotated[list[str], typer.Option(help="scheduler+attn+kv; repeat for several arms")] = [],  # noqa: B006
    set_: Annotated[list[str], typer.Option("--set", help="an option: kv.block_size=32, max_num_seqs=16")] = [],  # noqa: B006
    model: ModelName = None,
    dtype: DtypeOption = None,
    device: Device = "auto",
    threads: Threads = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="how often each arm runs; 6 or more for verdicts")] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="short passes before each, not measured")] = None,
    memory_budget: Annotated[str | None, typer.Option(help="for keys and values: 512MiB, or '4096 tokens'")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="sequences in the batch at most")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="generate missing reference tokens first (kept in the cache)")] = False,
    peer: Annotated[str | None, typer.Option(help="other systems in the same tables: a comma list, see `cbbench list peers`")] = None,
    peer_python: Annotated[list[str], typer.Option(metavar="NAME=PATH", help="the interpreter in whose environment a peer lives")] = [],  # noqa: B006
    prepare: Annotated[Prepare, typer.Option(help="auto: fuse and pack the model's linear layers; none: as they come")] = Prepare.auto,
    isolate: Annotated[bool, typer.Option("--isolate", help="a process of its own for each arm and round")] = False,
    against: Annotated[str | None, typer.Option(metavar="REV", help="the same arms also on that revision of this repository")] = None,
    against_python: Annotated[str | None, typer.Option(metavar="PATH", help="the interpreter for that revision; this one without")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="go on with an interrupted run")] = None,
    trust_remote_code: Trust = False,
    out: Annotated[Path, typer.Option(help="where runs are saved")] = Path("results"),
    format: FormatOption = Format.table,
) -> None:
    """Run every combination asked for on a workload, check its tokens, and print throughput, latency and memory."""
    if workload is None:
        if resume is None:
            raise UserError("run needs a workload, or --resume RUN")
        from cbbench.cli.app import main
        from cbbench.runs.resume import stored_command, without_resume

        main([*stored_command(resume), *without_resume(sys.argv[2:]), "--resume", str(resume)])  # the flag that comes later wins
        return
    from cbbench.runs.config import Overrides, build_arms, build_peers
    from cbbench.workload.file import read_workload

    read = read_workload(workload)
    arms = build_arms(read, Overrides({"scheduler": scheduler, "attn": attn, "kv": kv}, arm, set_, memory_budget, max_num_seqs))

    from cbbench.report.runs import print_runs
    from cbbench.results.store import read_run
    from cbbench.runs.progress import LiveProgress
    from cbbench.runs.session import carry_out

    job = _job(read, arms, model, dtype, device, threads, rounds, warmup, verify, trust_remote_code)
    peers = build_peers(peer, set_, peer_python, arms[0].max_num_seqs)
    job = replace(job, isolate=isolate, against=against, against_python=against_python, prepare=prepare is Prepare.auto, peers=tuple(peers))
    outcome, path = carry_out(job, out, resume, live := LiveProgress())
    print_runs([read_run(path)], str(format), save_in=path)
    live.say(f"saved in {path}" + (f" (interrupted: whole rounds only; cbbench run --resume {path})" if outcome.interrupted else ""))
    raise typer.Exit(outcome.exit_code)


def calibrate(
    workload: WorkloadPath,
    arm: Annotated[str | None, typer.Option(help="scheduler+attn+kv; the workload's first arm without")] = None,
    model: ModelName = None,
    dtype: DtypeOption = None,
    device: Device = "auto",
    threads: Threads = None,
    rounds: Annotated[int, typer.Option(min=6, help="how often each side runs")] = 10,
    warmup: Annotated[int | None, typer.Option(min=0, help="short passes before each, not measured")] = None,
    isolate: Annotated[bool, typer.Option("--isolate", help="a process of its own for each side and round, as a gate should")] = False,
    out: Annotated[Path, typer.Option(help="where runs are saved")] = Path("results"),
) -> None:
    """The same arm against itself: what this machine's noise looks like, and which margin a gate on it needs.

    Exit code 1 where it finds a difference, which there is not.
    """
    from cbbench.runs.config import Overrides, build_arms
    from cbbench.workload.file import read_workload

    read = read_workload(workload)
    first = build_arms(read, Overrides(arms=[arm] if arm else []))[0]

    from cbbench.compare.arms import Rules, compare_within
    from cbbench.compare.noise import alarm_text, false_alarms, noise_grid
    from cbbench.report.screen import print_grid
    from cbbench.results.store import read_run
    from cbbench.runs.progress import LiveProgress
    from cbbench.runs.session import carry_out

    job = _job(read, [first, replace(first, is_copy=True)], model, dtype, device, threads, rounds, warmup, False, False)
    outcome, path = carry_out(replace(job, isolate=isolate), out, None, live := LiveProgress())
    found = compare_within(read_run(path), None, Rules())
    print_grid(noise_grid(found))
    live.say(f"saved in {path}")
    alarms = false_alarms(found)
    for verdict in alarms:
        live.say(alarm_text(verdict))
    raise typer.Exit(outcome.exit_code or (1 if alarms else 0))


def _job(
    read: Workload, arms: list[Arm], model: str | None, dtype: Dtype | None, device: str, threads: int | None, rounds: int | None,
    warmup: int | None, verify: bool, trust_remote_code: bool,
) -> Job:  # fmt: skip
    """The command line over the file."""
    from cbbench.machine.device import choose_device, default_threads
    from cbbench.runs.job import NO_MODEL, Job

    chosen, measure = model or read.file.model, read.file.measure
    return Job(
        read, arms, chosen, str(dtype or read.file.dtype), "cpu" if chosen == NO_MODEL else choose_device(device),
        threads or default_threads(), rounds or measure.rounds, measure.warmup if warmup is None else warmup, verify,
        ("cbbench", *sys.argv[1:]), trust_remote_code, None if model else read.path.parent,
    )  # fmt: skip
