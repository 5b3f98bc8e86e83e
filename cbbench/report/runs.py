"""The tables of saved runs on stdout, in the format that was asked for."""

from __future__ import annotations

from pathlib import Path

from cbbench.report.screen import print_grid, stdout, warn
from cbbench.results import tables
from cbbench.results.store import Run


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
        print_groups(grids)


def print_groups(grids: dict[str, list[tables.Grid]]) -> None:
    for title, group in grids.items():
        stdout().print(title, markup=False)
        for grid in group:
            print_grid(grid)
        print()
