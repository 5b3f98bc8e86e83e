"""Saved runs on stdout: the answer, the first table, and all the others where they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cbbench.atomic import replacing
from cbbench.compare.answer import answer
from cbbench.report.screen import print_grid, print_sentences, stdout, warn
from cbbench.results import tables
from cbbench.results.store import Run

ALL = "all"  # of --columns: every table
MORE = "--columns all prints every column; cbbench list metrics says what they mean"


def print_runs(runs: list[Run], format: str, columns: Sequence[str] = (), save_in: Path | None = None) -> None:
    """`columns`: metrics for the first table, or ALL. `save_in` also writes summary.csv and summary.md there."""
    for run in runs:
        warn(*run.problems)
    if save_in is not None:
        with replacing(save_in / "summary.csv") as half:
            tables.as_frame(runs).to_csv(half, index=False)
        with replacing(save_in / "summary.md") as half:
            half.write_text(as_markdown(runs), encoding="utf-8")
    if format == "csv":
        print(tables.as_frame(runs).to_csv(index=False), end="")
    elif format == "json":
        print(tables.as_json(runs))
    elif format == "markdown":
        print(as_markdown(runs))
    else:
        print_groups(runs, columns)


def as_markdown(runs: list[Run], base: str | None = None) -> str:
    """The answer and every column."""
    parts = []
    for title, group in tables.groups(runs).items():
        rows = tables.table_rows(group, base)
        said = "\n".join(f"- {sentence}" for sentence in answer(group, base))
        parts.append(f"## {title}\n\n{said}\n\n{tables.as_markdown('', [tables.main_grid(rows), *tables.grids(rows)])}")
    return "\n".join(parts)


def print_groups(runs: list[Run], columns: Sequence[str] = (), base: str | None = None) -> None:
    for title, group in tables.groups(runs).items():
        rows = tables.table_rows(group, base)
        stdout().print(title, markup=False, style="dim")
        print_sentences(answer(group, base))
        print_grid(tables.main_grid(rows, () if ALL in columns else columns))
        if ALL in columns:
            for grid in tables.grids(rows):
                print_grid(grid)
        elif not columns:
            stdout().print(MORE, markup=False, style="dim")
        print()
