"""Writing to a person: tables and pairs on stdout, warnings and bars on stderr. Colours only on a terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from cbbench.report.printable import printable
from cbbench.results import tables

LONG_TABLE = 200  # rows; rich takes seconds for thousands
PIPE_WIDTH = 240  # a pipe has no width; nothing may be cut there
MIN_WIDTH = 40
MAX_SENTENCE = 100  # columns: longer lines are hard to read


def stdout() -> Console:
    """As wide as the terminal; a pipe is as wide as COLUMNS says, else nothing is cut there."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) >= MIN_WIDTH else PIPE_WIDTH
    return Console(width=width, highlight=False, color_system=None)


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


def print_sentences(sentences: list[str]) -> None:
    """A paragraph each, the first one bold."""
    console = stdout()
    for number, sentence in enumerate(sentences):
        style = "bold" if number == 0 else ""
        whole = sentence.replace(" %", "\xa0%").replace(" x ", "\xa0x ")  # a number stays with its unit
        for line in textwrap.wrap(whole, min(console.width, MAX_SENTENCE), break_on_hyphens=False):
            console.print(line.replace("\xa0", " "), style=style, markup=False, soft_wrap=True)


def print_pairs(title: str, pairs: list[tuple[str, str]]) -> None:
    if title:
        print(title)
    width = max(len(name) for name, _ in pairs)
    room = max(stdout().width - width - 4, 20)
    for name, value in pairs:
        first, *rest = textwrap.wrap(value, room, break_on_hyphens=False) or [""]
        print(f"  {name:<{width}}  {first}")
        for line in rest:
            print(f"  {'':<{width}}  {line}")
