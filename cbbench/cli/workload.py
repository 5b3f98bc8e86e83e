"""The commands below `cbbench workload`: record, import, make and describe."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cbbench.cli.options import Device, Dtype, DtypeOption, ModelName, Threads, Trust
from cbbench.errors import UserError
from cbbench.importing.fitting import Policy

if TYPE_CHECKING:
    from cbbench.request import Request
    from cbbench.workload.file import Workload
    from cbbench.workload.rows import Vocabulary

workload_app = typer.Typer(no_args_is_help=True, help="Record, import, make and describe workloads.")

EMBEDDED = "smollm2-135m"
Output = Annotated[Path, typer.Option("--out", "-o", metavar="NAME.yaml", help="the requests go to NAME.jsonl beside it")]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="of all random numbers: token ids, times, lengths")]
Rate = Annotated[float | None, typer.Option(metavar="X", help="requests a second")]
Cv = Annotated[
    float | None, typer.Option(metavar="X", help="coefficient of variation of the gaps, for gamma: 1 is Poisson, more comes in bursts")
]


class Times(StrEnum):
    recorded = "recorded"
    closed = "closed"
    offline = "offline"
    constant = "constant"
    poisson = "poisson"
    gamma = "gamma"


class Process(StrEnum):
    offline = "offline"
    constant = "constant"
    poisson = "poisson"
    gamma = "gamma"


class Shown(StrEnum):
    table = "table"
    json = "json"


@workload_app.command()
def record(
    source: Annotated[
        Path, typer.Argument(help=".txt (a prompt a line), .jsonl or .json (with prompt, messages or prompt_ids), or a workload's .yaml")
    ],
    output: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="NAME.yaml", help="without it, a .yaml SOURCE is recorded in place")
    ] = None,
    model: ModelName = None,
    dtype: DtypeOption = None,
    device: Device = "auto",
    threads: Threads = None,
    chat: Annotated[bool, typer.Option("--chat", help="treat each prompt as a user's message and apply the model's chat template")] = False,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="for lines that say none")] = None,
    from_server: Annotated[
        str | None, typer.Option(metavar="URL", help="record the answers of an OpenAI-compatible server instead")
    ] = None,
    server_model: Annotated[str | None, typer.Option(metavar="NAME", help="a model of that server; default: its first")] = None,
    trust_remote_code: Trust = False,
) -> None:
    """Record a workload: prompts as token ids, with the reference tokens of plain greedy generation.

    After an interruption the same command continues where it was.
    """
    from cbbench.recording.sources import read_source
    from cbbench.workload.file import read_workload
    from cbbench.workload.writer import check_target

    if output is None and source.suffix != ".yaml":
        raise UserError(f"record {source}: say where to with -o NAME.yaml")
    target = output or source
    check_target(target, source)
    if server_model is not None and from_server is None:
        raise UserError("--server-model goes with --from-server URL")
    read = read_source(source, chat, max_new_tokens)
    own = read_workload(source).file if source.suffix == ".yaml" else None
    name, base_dir = (own.model, source.parent) if model is None and own is not None else (model or EMBEDDED, Path.cwd())
    if from_server is not None:
        from cbbench.peers._openai_client import Server
        from cbbench.recording.server import record_from_server
        from cbbench.report.screen import track
        from cbbench.workload.rows import to_requests

        def prompt_ids(index: int) -> list[int]:
            return list(to_requests(read.rows.only(index), _vocabulary(name, base_dir)(), read.recipe)[0].prompt_ids)

        record_from_server(Server(from_server, server_model, ("--from-server", "--server-model")), read, prompt_ids, target, track)
    else:
        import torch

        from cbbench.machine.device import choose_device
        from cbbench.model.load import load
        from cbbench.recording.recorder import record as record_workload
        from cbbench.report.screen import track, warn

        if threads:
            torch.set_num_threads(threads)
        loaded = load(name, str(dtype or (own.dtype if own else Dtype.float32)), choose_device(device), base_dir, trust_remote_code, False)
        record_workload(loaded, base_dir, read, target, track, warn)
    print(target)


@workload_app.command("import")
def import_(
    what: Annotated[
        list[str],
        typer.Argument(metavar="[FORMAT] FILE...", help="FORMAT: see `cbbench list importers`; default: recognised by its content"),
    ],
    output: Output,
    format: Annotated[str, typer.Option(help="the same, as an option; auto tells it by header or keys")] = "auto",
    option: Annotated[list[str], typer.Option(help="KEY=VALUE, an option of the format")] = [],  # noqa: B006
    skip_rows: Annotated[int, typer.Option(min=0, help="leave out the first N rows")] = 0,
    max_rows: Annotated[int | None, typer.Option(min=1, help="read N rows at most (behind the skipped ones)")] = None,
    start_s: Annotated[float, typer.Option(min=0, help="leave out the first seconds")] = 0.0,
    duration_s: Annotated[float | None, typer.Option(min=0, help="seconds from there on")] = None,
    arrivals: Annotated[Times | None, typer.Option(help="instead of recorded times; closed: a turn waits for the one before")] = None,
    speedup: Annotated[float | None, typer.Option(help="2 is twice the rate")] = None,
    rate: Rate = None,
    cv: Cv = None,
    spread_ticks: Annotated[bool, typer.Option("--spread-ticks", help="spread equal times over the clock's tick")] = False,
    gap_cap: Annotated[float | None, typer.Option(metavar="SECONDS", help="shorten longer pauses, before any speedup")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=2, help="of prompt and output together")] = None,
    fit: Annotated[Policy, typer.Option(help="what happens to longer requests")] = Policy.drop,
    block_tokens: Annotated[int | None, typer.Option(min=1, help="shrink the trace's blocks to this, and prompts with them")] = None,
    output_scale: Annotated[float | None, typer.Option(help="multiplies output lengths")] = None,
    output_tokens: Annotated[int | None, typer.Option(min=1, help="for requests that say none")] = None,
    zero_output: Annotated[str, typer.Option(help="requests without output tokens: drop, or one")] = "drop",
    lengths_only: Annotated[bool, typer.Option("--lengths-only", help="keep no text, only how long it is")] = False,
    namespace: Annotated[str | None, typer.Option(help="of block ids; the file's name without")] = None,
    seed: Seed = 0,
    model: Annotated[str, typer.Option(help="whose tokenizer reads texts")] = EMBEDDED,
    strict: Annotated[bool, typer.Option("--strict", help="stop at the first row that cannot be read")] = False,
) -> None:
    """Import a trace or dataset, and print what was read, dropped and changed."""
    from cbbench import plugins
    from cbbench.importing.fitting import Fit
    from cbbench.importing.run import Ask, import_trace
    from cbbench.importing.shaping import Shape
    from cbbench.importing.trace import Window
    from cbbench.report.descriptions import print_account
    from cbbench.report.screen import warn
    from cbbench.runs.config import parse_options
    from cbbench.workload.arrivals import arrivals_of
    from cbbench.workload.writer import check_target

    check_target(output)
    named = what[0] if len(what) > 1 and not Path(what[0]).exists() and re.fullmatch(r"[A-Za-z_-]+", what[0]) else None
    if named not in (None, "auto"):
        plugins.find("importer", named.replace("-", "_"))
    _positive({"--speedup": speedup, "--rate": rate, "--cv": cv, "--gap-cap": gap_cap, "--output-scale": output_scale})
    if zero_output not in ("drop", "one"):
        raise UserError(f"--zero-output {zero_output}: should be drop or one")
    by_process = arrivals in (Times.constant, Times.poisson, Times.gamma)
    shaping = {"--speedup": speedup, "--spread-ticks": spread_ticks or None, "--gap-cap": gap_cap, "--rate": None if by_process else rate}
    _check_times(arrivals, by_process, [flag for flag, value in shaping.items() if value is not None], cv)
    if block_tokens is not None and fit is Policy.scale:
        raise UserError("--fit scale chooses the blocks' size itself; --block-tokens goes with the other policies")
    chosen = None if arrivals in (None, Times.recorded) else arrivals_of(str(arrivals), rate if by_process else None, cv, seed)
    ask = Ask(
        [Path(word) for word in what[named is not None :]], named or format, parse_options(option),
        Window(skip_rows, max_rows, start_s, duration_s), Fit(max_tokens, fit, block_tokens, output_scale),
        Shape(spread_ticks, gap_cap, speedup or 1.0, None if by_process else rate, seed), chosen, strict, lengths_only,
        output_tokens, zero_output == "one", namespace, model,
    )  # fmt: skip
    account = import_trace(ask, output, _vocabulary(model, Path.cwd()), warn)
    print_account(account)
    print(output)


def _check_times(arrivals: Times | None, by_process: bool, shaping: list[str], cv: float | None) -> None:
    """Flags that would say nothing, or two things, are refused."""
    if {"--speedup", "--rate"} <= set(shaping):
        raise UserError("--speedup and --rate both choose how fast: give one")
    if (by_process or arrivals is Times.offline) and shaping:
        raise UserError(f"{shaping[0]} changes recorded times, and --arrivals {arrivals} replaces them")
    if cv is not None and not by_process:
        raise UserError("--cv goes with --arrivals gamma")


@workload_app.command()
def make(
    output: Output,
    num_requests: Annotated[int, typer.Option("--num-requests", "-n", min=1)],
    prompt_tokens: Annotated[str | None, typer.Option(help="N, uniform:min=N,max=N or lognormal:mean=N,cv=X [,min=N] [,max=N]")] = None,
    output_tokens: Annotated[str | None, typer.Option(help="the same for outputs")] = None,
    like: Annotated[Path | None, typer.Option(help="a workload's .yaml: pairs of lengths are drawn from it where none are given")] = None,
    arrivals: Annotated[Process, typer.Option(help="when requests come")] = Process.offline,
    rate: Rate = None,
    cv: Cv = None,
    prefix_share: Annotated[float, typer.Option(min=0, max=1, help="share of the requests that begin with a shared prefix")] = 0.0,
    prefix_tokens: Annotated[int, typer.Option(min=0, help="its length; a prompt's length counts it")] = 0,
    num_prefixes: Annotated[int, typer.Option(min=1, help="different ones")] = 1,
    seed: Seed = 0,
    model: Annotated[str, typer.Option(help="named in the workload")] = EMBEDDED,
) -> None:
    """Make a workload with random lengths, arrivals and shared prefixes."""
    from cbbench.workload.arrivals import arrivals_of
    from cbbench.workload.distributions import parse
    from cbbench.workload.file import read_workload
    from cbbench.workload.make import Prefixes, Wanted, make
    from cbbench.workload.writer import check_target

    check_target(output)
    if bool(prefix_share) != bool(prefix_tokens):
        raise UserError("--prefix-share and --prefix-tokens go together")
    _positive({"--rate": rate, "--cv": cv})
    prompt = parse("--prompt-tokens", prompt_tokens) if prompt_tokens else None
    produced = parse("--output-tokens", output_tokens) if output_tokens else None
    wanted = Wanted(
        num_requests, prompt, produced, _requests(read_workload(like), None) if like else None, arrivals_of(str(arrivals), rate, cv, seed),
        Prefixes(prefix_share, prefix_tokens, num_prefixes), seed,
    )  # fmt: skip
    how = {
        "num_requests": num_requests, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "like": like and like.name,
        "prefix_share": prefix_share, "prefix_tokens": prefix_tokens, "num_prefixes": num_prefixes, "seed": seed,
    }  # fmt: skip
    if like and not any(len(request.prompt_ids) for request in wanted.like or []):
        raise UserError(f"--like {like}: all its prompts are empty")
    make(wanted, output, model, {name: value for name, value in how.items() if value is not None})
    print(output)


@workload_app.command()
def describe(
    workloads: Annotated[list[Path], typer.Argument(metavar="WORKLOAD...", help="workloads' .yaml files")],
    model: Annotated[list[str], typer.Option(help="whose KV memory to count; the workload's own without; repeat for several")] = [],  # noqa: B006
    memory_budget: Annotated[str | None, typer.Option(help="512MiB or '4096 tokens': which share of the requests fits it")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="of the longest batch; the workload's own without")] = None,
    format: Annotated[Shown, typer.Option(help="what stdout gets")] = Shown.table,
) -> None:
    """Describe workloads: lengths, arrivals, shared prefixes, and the memory that keys and values need."""
    from cbbench.report.descriptions import print_descriptions
    from cbbench.workload.file import read_workload

    described = []
    for path in workloads:
        read = read_workload(path)
        requests = _requests(read, model[0] if model else None)
        described.append((_described(read, requests, model, memory_budget, max_num_seqs), requests))
    if format is Shown.json:
        print(json.dumps([about for about, _ in described], indent=1, allow_nan=False))
    else:
        print_descriptions(described)


def _described(read: Workload, requests: list[Request], models: list[str], budget: str | None, max_num_seqs: int | None) -> dict[str, Any]:
    from cbbench.model.load import sketch
    from cbbench.runs.config import DEFAULT_MAX_NUM_SEQS
    from cbbench.workload.budget import budget_tokens
    from cbbench.workload.describe import Kv, describe
    from cbbench.workload.file import digest

    kvs, budgets = [], {}
    for name in models or [read.file.model]:
        if name == "none":
            if budget is not None:
                raise UserError("--memory-budget needs a model")
            continue
        known = sketch(name, read.file.dtype, None if models else read.path.parent)
        kvs.append(Kv(name, known.spec.bytes_per_token, known.max_positions))
        if budget is not None:
            try:
                budgets[name] = budget_tokens(budget, known.spec.bytes_per_token)
            except ValueError as error:
                raise UserError(f"--memory-budget: {error}") from error
    slots = max_num_seqs or read.file.engine.max_num_seqs or DEFAULT_MAX_NUM_SEQS
    about = {"name": read.name, "digest": digest(requests), "dtype": read.file.dtype, "arrivals": read.file.arrivals.describe()}
    return {**about, **describe(requests, kvs, slots, budgets)}


def _requests(read: Workload, model: str | None) -> list[Request]:
    """The workload's requests; a tokenizer is loaded only where there is text to read."""
    from cbbench.workload.file import resolve

    needs_one = any(row.prompt_ids is None and row.prompt_tokens is None for row in read.rows.rows)
    name, base_dir = (model, Path.cwd()) if model else (read.file.model, read.path.parent)
    return resolve(read, _vocabulary(name, base_dir)() if needs_one and name != "none" else None)


def _vocabulary(model: str, base_dir: Path) -> Callable[[], Vocabulary]:
    """Loaded on the first call, once."""
    from functools import cache

    @cache
    def vocabulary() -> Vocabulary:
        from cbbench.model.load import sketch

        return sketch(model, base_dir=base_dir).vocabulary

    return vocabulary


def _positive(flags: dict[str, float | None]) -> None:
    for flag, value in flags.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{flag} {value}: should be more than 0")
