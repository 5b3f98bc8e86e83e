"""The commands that draw saved runs: report, show, export and plot."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbbench.errors import UserError

if TYPE_CHECKING:
    from cbbench.results.store import Run

Saved = Annotated[Path, typer.Argument(help="a saved run, or a folder with one", metavar="RUN")]
Arms = Annotated[list[str], typer.Option("--arm", help="scheduler+attn+kv as the tables name it; repeat for several; all without")]
Round = Annotated[int | None, typer.Option("--round", min=1, help="the middle one by tokens a second without")]


class ExportFormat(StrEnum):
    perfetto = "perfetto"
    parquet = "parquet"
    csv = "csv"


class Picture(StrEnum):
    slots = "slots"
    memory = "memory"
    requests = "requests"
    latency = "latency"
    throughput = "throughput"
    waste = "waste"


def report(
    paths: Annotated[list[Path], typer.Argument(help="runs, or folders of runs")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the page to write")] = Path("report.html"),
) -> None:
    """One self-contained page over saved runs: tables, slot timelines, memory, latencies; it opens without a network."""
    from cbbench.report.html.report import write_report
    from cbbench.report.screen import warn
    from cbbench.results.store import read_runs

    runs, problems = read_runs(paths)
    warn(*problems)
    write_report(runs, out)
    print(out)


def show(run: Saved, arm: Arms = [], round_number: Round = None) -> None:  # noqa: B006
    """A saved run in characters: slots over time, memory over time, latencies."""
    from cbbench.report.terminal.show import print_all
    from cbbench.results.rounds import choose

    print_all(choose(_one(run), arm, round_number))


def export(
    run: Saved,
    format: Annotated[ExportFormat, typer.Option("--format", help="perfetto: a trace for ui.perfetto.dev; tables else")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="a file for perfetto, a folder for tables")] = None,
    arm: Arms = [],  # noqa: B006
    round_number: Round = None,
) -> None:
    """Traces and tables for other tools."""
    from cbbench.report.export import export as write
    from cbbench.results.rounds import choose

    for written in write(choose(_one(run), arm, round_number), str(format), out):
        print(written)


def plot(
    run: Saved,
    kind: Annotated[Picture, typer.Argument(help="what to draw")],
    out: Annotated[Path, typer.Option("--out", "-o", help="a .svg, .png or .pdf")],
    arm: Arms = [],  # noqa: B006
    round_number: Round = None,
) -> None:
    """A picture for a paper or a README."""
    from cbbench.report.figure.kinds import plot as draw
    from cbbench.results.rounds import choose

    draw(choose(_one(run), arm, round_number), str(kind), out)
    print(out)


def _one(path: Path) -> Run:
    """The run at a path; of a folder with several the one to name."""
    from cbbench.report.screen import warn
    from cbbench.results.store import read_runs

    runs, problems = read_runs([path])
    warn(*problems)
    if len(runs) > 1:
        raise UserError(f"{path} holds {len(runs)} runs; name one, like {runs[-1].path}")
    return runs[0]
