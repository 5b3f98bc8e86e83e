"""What a person sees: progress on stderr, tables on stdout. Colours only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from cbbench.errors import UserError
from cbbench.report import accounts
from cbbench.report.histogram import histogram
from cbbench.request import Request
from cbbench.results import tables
from cbbench.results.store import Run

if TYPE_CHECKING:
    from cbbench.compare.baselines import Baseline
    from cbbench.compare.slo import Slo
    from cbbench.compare.verdict_report import Comparison

LONG_TABLE = 200  # rows; rich takes seconds for thousands
PIPE_WIDTH = 240  # a pipe has no width; nothing may be cut there


def stdout() -> Console:
    return Console(highlight=False) if sys.stdout.isatty() else Console(width=PIPE_WIDTH, highlight=False, color_system=None)


def warn(*texts: str) -> None:
    for text in texts:
        print(f"cbbench: {text}", file=sys.stderr)


def track(items: list[Any]) -> Iterable[Any]:
    """A bar over items on a terminal, silent elsewhere."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield from bars.track(items)


def print_runs(runs: list[Run], format: str, save_in: Path | None = None) -> None:
    """The tables of runs on stdout; `save_in` also writes summary.csv and summary.md there."""
    for run in runs:
        for problem in run.problems:
            warn(problem)
    frame = tables.as_frame(runs)
    grids = {title: tables.grids(tables.table_rows(group)) for title, group in tables.groups(runs).items()}
    markdown = "\n".join(tables.as_markdown(title, group) for title, group in grids.items())
    if save_in is not None:
        frame.to_csv(save_in / "summary.csv", index=False)
        (save_in / "summary.md").write_text(markdown)
    if format == "csv":
        print(frame.to_csv(index=False), end="")
    elif format == "json":
        print(tables.as_json(runs))
    elif format == "markdown":
        print(markdown)
    else:
        _print_grids(grids)


def _print_grids(grids: dict[str, list[tables.Grid]]) -> None:
    for title, group in grids.items():
        stdout().print(title, markup=False)
        for grid in group:
            print_grid(grid)
        print()


def print_grid(grid: tables.Grid, markdown: bool = False) -> None:
    console = stdout()
    if markdown:
        print("\n" + tables.as_markdown("", [grid]))
    elif not grid.headers:  # such a table would not show its note
        print(f"\n{grid.title}\n\n{grid.note}")
    elif len(grid.lines) > LONG_TABLE:
        print("\n" + tables.as_plain(grid))
    else:
        console.print()
        console.print(tables.as_rich(grid, console.width), markup=False)


def print_comparison(found: Comparison, format: str) -> None:
    """The tables of the runs, then the verdicts."""
    from cbbench.compare import verdict_report

    grids = {title: tables.grids(tables.table_rows(group)) for title, group in tables.groups(found.runs).items()}
    if format == "markdown":
        print("\n".join(tables.as_markdown(title, group) for title, group in grids.items()))
        print(verdict_report.as_markdown(found))
        return
    _print_grids(grids)
    if found.verdicts or found.judgement.gated:
        print_grid(verdict_report.as_grid(found.verdicts, found.judgement))


def print_effects(runs: list[Run], format: str) -> None:
    from cbbench.compare.effects import as_grid, effects

    for run in runs:
        print_grid(as_grid(effects(run)), format == "markdown")


def print_slo(runs: list[Run], slos: list[Slo], format: str) -> None:
    from cbbench.compare.slo import as_grid, score

    for run in runs:
        print_grid(as_grid(score(run, slos), slos), format == "markdown")


def print_baselines(found: dict[str, dict[str, Baseline]]) -> None:
    headers = ["baseline", "workload", "arms", "runs", "saved", "age", "reason"]
    lines = [[name, key, str(len(b.arms)), str(len(b.runs)), b.saved, f"{b.age_days:.0f} d", b.reason]
             for name, group in found.items() for key, b in group.items()]  # fmt: skip
    print_grid(
        tables.Grid("Baselines", headers, lines, "" if lines else "none yet: cbbench baseline save NAME RUN --reason TEXT", 2, turns=False)
    )


def print_account(account: dict[str, Any]) -> None:
    """What an import read, dropped and changed."""
    print_pairs("", accounts.import_pairs(account))


def print_descriptions(described: list[tuple[dict[str, Any], list[Request]]]) -> None:
    """`cbbench workload describe`: facts, and histograms of lengths and arrivals."""
    for about, requests in described:
        print_pairs(f"{about['name']} ({about['digest']})", accounts.description_pairs(about))
        for title, values in accounts.pictures(requests).items():
            print(f"  {title}")
            for line in histogram(values):
                print(f"    {line}")
        print()


def print_pairs(title: str, pairs: list[tuple[str, str]]) -> None:
    if title:
        print(title)
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print(f"  {name:<{width}}  {value}")


def print_strategies(kind: str | None) -> None:
    """`cbbench list`."""
    from cbbench import plugins
    from cbbench.machine.machine import choose_device

    kinds = {package.rpartition(".")[2]: axis for axis, package in plugins.KINDS.items()}
    wanted = {**kinds, **{axis: axis for axis in plugins.KINDS}}
    if kind is not None and kind not in wanted:
        raise UserError(f"list {kind}: should be {', '.join(kinds)}")
    console, device = stdout(), choose_device("auto")
    for title, axis in kinds.items():
        if kind is None or wanted[kind] == axis:
            chosen_by = "cbbench workload import NAME FILE" if axis == "importer" else f"--{axis}"
            console.print(f"[bold]{title}[/bold]  ({chosen_by})")
            for name in plugins.names(axis):
                _print_strategy(console, axis, name, device)


def _print_strategy(console: Console, axis: str, name: str, device: str) -> None:
    from inspect import getdoc

    from cbbench import plugins
    from cbbench.runs.config import why_not

    try:
        cls = plugins.find(axis, name)
    except UserError as error:
        console.print(f"\n  {name}: cannot be used: {error}\n", markup=False)
        return
    console.print(f"\n  [bold]{name}[/bold]")
    for line in (getdoc(cls) or "no description").splitlines():
        console.print(f"    {line}", markup=False)
    for key, field in cls.Options.model_fields.items():
        about = f": {field.description}" if field.description else ""
        default = "..." if field.is_required() else field.default
        option = f"--option {key}" if axis == "importer" else f"option {axis}.{key}"
        console.print(f"    {option}={default}{about}", markup=False)
    if axis == "importer":
        console.print()
        return
    dtype = "float32" if device == "cpu" else "bfloat16"
    reason = why_not(axis, name, device, dtype)
    console.print(f"    {'cannot run here: ' + reason if reason else f'runs here ({device}, {dtype})'}\n", markup=False)


def print_doctor() -> None:
    """`cbbench doctor`."""
    import psutil
    import torch

    from cbbench import folders, plugins
    from cbbench.machine import machine
    from cbbench.machine.machine import choose_device, default_threads
    from cbbench.model import gguf, rates
    from cbbench.runs.config import why_not

    device = choose_device("auto")
    rows: list[tuple[str, Any]] = [(name, fact or "none") for name, fact in machine.fingerprint(device, default_threads()).items()]
    measured = rates.measure(machine.fingerprint(device, default_threads()), device)
    rows += [
        ("read bandwidth", f"{measured['bytes_per_s'] / 1e9:.1f} GB/s"),
        ("matrix rate", f"{measured['flop_per_s'] / 1e9:.0f} GFLOP/s"),
    ]
    rows += [("memory available", tables.size(psutil.virtual_memory().available)), ("device", device)]
    rows += [(name, found or "not installed") for name, found in machine.versions().items()]
    rows += [("CUDA", torch.version.cuda or "not in this torch"), ("cache", folders.cache_dir())]
    try:
        rows.append(("embedded model", gguf.embedded().name))
    except UserError as error:
        rows.append(("embedded model", error))
    for dtype in ("float32", "bfloat16", "float16"):
        for axis in plugins.AXES:
            able = [name for name in plugins.names(axis) if why_not(axis, name, device, dtype) is None]
            rows.append((f"{axis} in {dtype}", ", ".join(able) or "none"))
    rows += [(f"{name} on {backend}", reason or "can run here") for name, backend, reason in _backends(device)]
    for name, value in rows:
        print(f"{name:22} {value}")


def _backends(device: str) -> Iterator[tuple[str, str, str | None]]:
    """Each kernel that an attention can be told to use, and why it cannot run on this device in the dtype that suits it."""
    from cbbench import plugins
    from cbbench.runs.config import why_not

    dtype = "float32" if device == "cpu" else "bfloat16"
    for name in plugins.names("attn"):
        if why_not("attn", name, device, dtype):
            continue
        cls = plugins.find("attn", name)
        field = cls.Options.model_fields.get("backend")
        for backend in get_args(field.annotation) if field else ():
            yield name, backend, cls.cannot_run(device, dtype, cls.Options.model_validate({"backend": backend}))
