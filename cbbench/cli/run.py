"""`cbbench run` and `cbbench calibrate`: arms on a workload, for real."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbbench.cli.ending import decided
from cbbench.cli.options import (
    MEASURING,
    MODEL,
    SAVING,
    Columns,
    Device,
    Dtype,
    DtypeOption,
    Format,
    FormatOption,
    ModelName,
    Out,
    Prepare,
    Threads,
    Trust,
    WorkloadPath,
    parse_columns,
)
from cbbench.errors import UserError

if TYPE_CHECKING:
    from cbbench.runs.config import Arm
    from cbbench.runs.job import Job
    from cbbench.workload.file import Workload

ARMS, OTHERS = "What to run", "Other systems and revisions"


def run(
    workload: Annotated[Path | None, typer.Argument(help="the workload's .yaml file; not needed with --resume")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="NAMES", rich_help_panel=ARMS, help="static, continuous, chunked: one, several with commas, or all"),
    ] = None,
    attn: Annotated[
        str | None, typer.Option(metavar="NAMES", rich_help_panel=ARMS, help="attention: padded, serial, varlen, unbatched")
    ] = None,
    kv: Annotated[str | None, typer.Option(metavar="NAMES", rich_help_panel=ARMS, help="KV cache: cat, preallocated, paged")] = None,
    arm: Annotated[
        list[str], typer.Option(metavar="S+A+K", rich_help_panel=ARMS, help="one combination, scheduler+attn+kv; may be repeated")
    ] = [],  # noqa: B006
    set_: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="KEY=VALUE", rich_help_panel=ARMS, help="an option, like kv.block_size=32; may be repeated; see `list`"
        ),
    ] = [],  # noqa: B006
    model: ModelName = None,
    dtype: DtypeOption = None,
    device: Device = "auto",
    threads: Threads = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, metavar="N", rich_help_panel=MEASURING, help="how often each arm runs; verdicts need 6")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, metavar="N", rich_help_panel=MEASURING, help="short runs before each round, not measured")
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", rich_help_panel=ARMS, help="memory for keys and values: 512MiB, or '4096 tokens'")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, metavar="N", rich_help_panel=ARMS, help="most sequences in the batch (slots)")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", rich_help_panel=MEASURING, help="first generate reference tokens that are missing, and keep them")
    ] = False,
    peer: Annotated[
        str | None, typer.Option(metavar="NAMES", rich_help_panel=OTHERS, help="run other systems too; `cbbench list peers` names them")
    ] = None,
    peer_python: Annotated[
        list[str], typer.Option(metavar="NAME=PATH", rich_help_panel=OTHERS, help="the Python interpreter that has this peer installed")
    ] = [],  # noqa: B006
    prepare: Annotated[
        Prepare,
        typer.Option(
            metavar="HOW", rich_help_panel=MODEL, help="auto: fuse and pack the model's layers for speed; none: use them as they are"
        ),
    ] = Prepare.auto,
    isolate: Annotated[
        bool, typer.Option("--isolate", rich_help_panel=MEASURING, help="run each arm and round in a process of its own")
    ] = False,
    against: Annotated[
        str | None, typer.Option(metavar="REV", rich_help_panel=OTHERS, help="run the same arms on this git revision of cbbench too")
    ] = None,
    against_python: Annotated[
        str | None, typer.Option(metavar="PATH", rich_help_panel=OTHERS, help="the Python interpreter for that revision; default: this one")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", rich_help_panel=SAVING, help="continue an interrupted run")] = None,
    trust_remote_code: Trust = False,
    out: Out = Path("results"),
    columns: Columns = None,
    format: FormatOption = Format.table,
) -> None:
    """Run combinations of scheduler, attention and KV cache on a workload; check the tokens; print throughput, latency, memory."""
    if workload is None:
        if resume is None:
            raise UserError("run needs a workload, or --resume RUN")
        from cbbench.cli.app import main
        from cbbench.runs.resume import stored_command, without_resume

        main([*stored_command(resume), *without_resume(sys.argv[2:]), "--resume", str(resume)])  # the flag that comes later wins
        return
    from cbbench.runs.arm_names import peers_of
    from cbbench.runs.config import Overrides, build_arms, build_peers
    from cbbench.workload.file import read_workload

    shown, read = parse_columns(columns), read_workload(workload)
    arm, peers_too, peer_sets = peers_of(arm)
    arms = build_arms(read, Overrides({"scheduler": scheduler, "attn": attn, "kv": kv}, arm, set_, memory_budget, max_num_seqs))

    from cbbench.report.runs import print_runs
    from cbbench.results.store import read_run
    from cbbench.runs.progress import LiveProgress
    from cbbench.runs.session import carry_out

    job = _job(read, arms, model, dtype, device, threads, rounds, warmup, verify, trust_remote_code)
    peers = build_peers(",".join([peer or "", *peers_too]), [*set_, *peer_sets], peer_python, arms[0].max_num_seqs)
    job = replace(job, isolate=isolate, against=against, against_python=against_python, prepare=prepare is Prepare.auto, peers=tuple(peers))
    outcome, path = carry_out(job, out, resume, live := LiveProgress())
    with decided(outcome.exit_code):
        print_runs([read_run(path)], str(format), shown, save_in=path)
        live.say(f"saved in {path}" + (f" (interrupted: whole rounds only; cbbench run --resume {path})" if outcome.interrupted else ""))


def calibrate(
    workload: WorkloadPath,
    arm: Annotated[str | None, typer.Option(metavar="S+A+K", help="scheduler+attn+kv; default: the workload's first arm")] = None,
    model: ModelName = None,
    dtype: DtypeOption = None,
    device: Device = "auto",
    threads: Threads = None,
    rounds: Annotated[int, typer.Option(min=6, metavar="N", rich_help_panel=MEASURING, help="how often each side runs")] = 18,
    warmup: Annotated[
        int | None, typer.Option(min=0, metavar="N", rich_help_panel=MEASURING, help="short runs before each round, not measured")
    ] = None,
    isolate: Annotated[
        bool, typer.Option("--isolate", rich_help_panel=MEASURING, help="run each side and round in a process of its own, as a gate should")
    ] = False,
    out: Out = Path("results"),
) -> None:
    """Run one arm against itself, to measure this machine's noise and the margin that a gate on it needs.

    Exit code 3 if a difference is found, although both sides are the same: this machine cannot vouch for times.
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
    alarms = false_alarms(found)
    with decided(outcome.exit_code or (3 if alarms else 0)):
        print_grid(noise_grid(found))
        live.say(f"saved in {path}")
        for verdict in alarms:
            live.say(alarm_text(verdict))


def _job(
    read: Workload, arms: list[Arm], model: str | None, dtype: Dtype | None, device: str, threads: int | None, rounds: int | None,
    warmup: int | None, verify: bool, trust_remote_code: bool,
) -> Job:  # fmt: skip
    """The command line over the file."""
    from cbbench.machine.device import check_threads, choose_device, default_threads
    from cbbench.runs.job import NO_MODEL, Job

    chosen, measure = model or read.file.model, read.file.measure
    return Job(
        read, arms, chosen, str(dtype or read.file.dtype), "cpu" if chosen == NO_MODEL else choose_device(device),
        check_threads(threads) if threads else default_threads(),
        rounds or measure.rounds, measure.warmup if warmup is None else warmup, verify,
        ("cbbench", *sys.argv[1:]), trust_remote_code, None if model else read.path.parent,
    )  # fmt: skip
