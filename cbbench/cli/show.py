"""The commands that draw saved runs: report, show, export and plot."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbbench.cli.options import make_room
from cbbench.errors import UserError

if TYPE_CHECKING:
    from cbbench.results.store import Run

Saved = Annotated[Path, typer.Argument(help="a saved run, or a folder with one saved run", metavar="RUN")]
Arms = Annotated[list[str], typer.Option("--arm", metavar="ARM", help="as the tables name it; may be repeated; default: all arms")]
Round = Annotated[int | None, typer.Option("--round", min=1, metavar="N", help="default: the one with the median throughput")]


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
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="the page to write")] = Path("report.html"),
    slo: Annotated[
        list[str], typer.Option(metavar="BOUND", help="like ttft_p90=2s: also show which arms keep it, and their goodput; may be repeated")
    ] = [],  # noqa: B006
) -> None:
    """Write one HTML page about saved runs: the answer, tables, timelines of slots and memory, verdicts. It needs no network."""
    from cbbench.compare.slo import parse_slos
    from cbbench.report.html.report import write_report
    from cbbench.report.screen import warn
    from cbbench.results.store import read_runs

    slos = parse_slos(slo)
    runs, problems = read_runs(paths)
    warn(*problems)
    make_room(out)
    write_report(runs, out, slos)
    print(out)


def show(run: Saved, arm: Arms = [], round_number: Round = None) -> None:  # noqa: B006
    """Draw a saved run in the terminal: slots and memory over time, latencies."""
    from cbbench.report.terminal.show import print_all
    from cbbench.results.rounds import choose

    print_all(choose(_one(run), arm, round_number))


def export(
    run: Saved,
    format: Annotated[
        ExportFormat, typer.Option("--format", metavar="FORMAT", help="perfetto (a trace for ui.perfetto.dev), parquet or csv")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="PATH", help="a file for perfetto, a folder for tables")] = None,
    arm: Arms = [],  # noqa: B006
    round_number: Round = None,
) -> None:
    """Convert a saved run for other tools: a Perfetto trace, parquet or CSV tables."""
    from cbbench.report.export import export as write
    from cbbench.results.rounds import choose

    chosen = choose(_one(run), arm, round_number)
    make_room(out)
    for written in write(chosen, str(format), out):
        print(written)


def plot(
    run: Saved,
    kind: Annotated[Picture, typer.Argument(help="what to draw")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="a .svg, .png or .pdf file")],
    arm: Arms = [],  # noqa: B006
    round_number: Round = None,
) -> None:
    """Draw a picture of a saved run as .svg, .png or .pdf."""
    from cbbench.report.figure.kinds import plot as draw
    from cbbench.results.rounds import choose

    chosen = choose(_one(run), arm, round_number)
    make_room(out)
    draw(chosen, str(kind), out)
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
