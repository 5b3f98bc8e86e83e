"""Writing to a person: tables and pairs on stdout, warnings and bars on stderr. Colours only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from cbbench.report.printable import printable
from cbbench.results import tables

LONG_TABLE = 200  # rows; rich takes seconds for thousands
PIPE_WIDTH = 240  # a pipe has no width; nothing may be cut there


def stdout() -> Console:
    return Console(highlight=False) if sys.stdout.isatty() else Console(width=PIPE_WIDTH, highlight=False, color_system=None)


def warn(*texts: str) -> None:
    for text in texts:
        print(f"cbbench: {printable(text)}", file=sys.stderr)


def track(items: list[Any]) -> Iterable[Any]:
    """A bar over items on a terminal, silent elsewhere."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        yield from bars.track(items)


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


def print_pairs(title: str, pairs: list[tuple[str, str]]) -> None:
    if title:
        print(title)
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print(f"  {name:<{width}}  {value}")
