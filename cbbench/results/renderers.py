"""A table ready to print, and how it is drawn: in a terminal of any width, in plain text, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text
from tabulate import tabulate

GAPS = (2, 1)  # between columns: the wide one where there is room
BREAK = re.compile(r"(?<=[ +,(])")  # behind these a cell may go on in the next line


@dataclass(frozen=True)
class Grid:
    """Text only."""

    title: str
    headers: list[str]
    lines: list[list[str]]
    note: str
    num_text: int  # leading columns that are text, not numbers
    legend: str = ""  # what titles mean that are no standard terms
    turns: bool = True  # may stand on its side where it is too wide
    best: frozenset[tuple[int, int]] = frozenset()  # (line, column) of values to mark


def _below(grid: Grid) -> str:
    return "\n\n".join(part for part in (grid.note, grid.legend) if part)


def as_rich(grid: Grid, width: int) -> RenderableType:
    """For a terminal: a row an arm where that fits the width, else a column an arm, else cells of several lines and, at last, several
    tables below each other. No word is broken that fits a line."""
    parts: list[RenderableType] = [Text(grid.title, style="bold")] if grid.title else []
    parts += [_rich(piece, gap) for piece, gap in _fitting(_marked(grid), width)]
    return Group(*parts, *(Text(f"\n{text}", style="dim") for text in (grid.note, grid.legend) if text))


def _fitting(grid: Grid, width: int) -> Iterator[tuple[Grid, int]]:
    """The tables to draw, each with its gap."""
    for shape in [grid, *([_turned(grid)] if grid.turns else [])]:
        for gap in GAPS:
            if _width([*map(_cell_width, _columns(shape))], gap) <= width:
                yield shape, gap
                return
    for piece in _pieces(grid, width):
        widths = _low_widths(piece)
        gap = next((gap for gap in GAPS if _width(widths, gap) <= width), GAPS[-1])
        yield _narrowed(piece, widths, width, gap), gap


def _turned(grid: Grid) -> Grid:
    """A column an arm."""
    at = grid.num_text - 1
    names = [" ".join(line[:at]) for line in grid.lines]
    turned = [list(line) for line in zip(grid.headers[at:], *(line[at:] for line in grid.lines), strict=True)]
    return replace(grid, headers=["", *names], lines=turned, num_text=1)


def _columns(grid: Grid) -> list[list[str]]:
    return [[header, *(line[i] for line in grid.lines)] for i, header in enumerate(grid.headers)]


def _cell_width(column: list[str]) -> int:
    return max(len(part) for cell in column for part in cell.split("\n"))


def _least(column: list[str]) -> int:
    """The longest part that is not broken."""
    return max(len(part.rstrip()) for cell in column for part in BREAK.split(cell))


def _width(widths: list[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _pieces(grid: Grid, width: int) -> Iterator[Grid]:
    """As many columns as fit, behind those that name the row; the others in tables of their own."""
    least = [_least(column) for column in _columns(grid)]
    names = list(range(min(grid.num_text, 2) if len(grid.headers) > 2 else 1))
    rest = [i for i in range(len(grid.headers)) if i not in names]
    while rest:
        chosen = [*names, rest.pop(0)]
        while rest and _width([least[i] for i in [*chosen, rest[0]]], 1) <= width:
            chosen.append(rest.pop(0))
        num_text = sum(i < grid.num_text for i in chosen)
        yield replace(
            grid, headers=[grid.headers[i] for i in chosen], lines=[[line[i] for i in chosen] for line in grid.lines], num_text=num_text
        )
        names = names[:1]


def _low_widths(grid: Grid) -> list[int]:
    """With headings in several lines."""
    return [max(_cell_width(column[1:] or [""]), _least(column[:1])) for column in _columns(grid)]


def _narrowed(grid: Grid, widths: list[int], width: int, gap: int) -> Grid:
    """The widest columns in several lines, until all fit."""
    widths, least = [*widths], [_least(column) for column in _columns(grid)]
    while _width(widths, gap) > width:
        able = [i for i in range(len(widths)) if widths[i] > least[i]]
        if not able:
            break
        widths[max(able, key=lambda i: widths[i])] -= 1
    headers = [_folded(header, widths[i]) for i, header in enumerate(grid.headers)]
    return replace(grid, headers=headers, lines=[[_folded(cell, widths[i]) for i, cell in enumerate(line)] for line in grid.lines])


def _folded(text: str, width: int) -> str:
    lines = [""]
    for part in BREAK.split(text):
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _rich(grid: Grid, gap: int) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for index, header in enumerate(grid.headers):
        text = index < grid.num_text or index in _wordy(grid)
        table.add_column(Text(header), justify="left" if text else "right", overflow="fold")
    for line in grid.lines:
        table.add_row(*(Text(cell, style="bold" if cell.startswith("*") else "") for cell in line))
    return table


def _wordy(grid: Grid) -> set[int]:
    """Columns behind the numbers that hold sentences."""
    return {i for i in range(grid.num_text, len(grid.headers)) if grid.headers[i] in ("verdict", "why", "reason")}


def _marked(grid: Grid, before: str = "*", behind: str = "") -> Grid:
    lines = [
        [f"{before}{cell}{behind}" if (row, i) in grid.best else cell for i, cell in enumerate(line)] for row, line in enumerate(grid.lines)
    ]
    return replace(grid, lines=lines)


def as_plain(grid: Grid) -> str:
    """A long table, fast."""
    align = ["left"] * grid.num_text + ["right"] * (len(grid.headers) - grid.num_text)
    table = tabulate(_marked(grid).lines, grid.headers, tablefmt="simple", colalign=align, disable_numparse=True)
    return "\n".join(part for part in (grid.title, table, _below(grid)) if part)


def as_markdown(title: str, grids: list[Grid]) -> str:
    parts = [f"## {title}\n"] if title else []
    for grid in grids:
        lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in _marked(grid, "**", "**").lines]
        frame = pd.DataFrame(lines, columns=range(len(grid.headers)))
        num_text = grid.num_text
        align = ["left"] * num_text + ["right"] * (len(grid.headers) - num_text)
        table = frame.to_markdown(index=False, headers=grid.headers, colalign=align, disable_numparse=True)
        below = _below(grid).replace("* the best", "bold: the best")
        parts.append((f"### {grid.title}\n\n" if grid.title else "") + f"{table}\n" + (f"\n{below}\n" if below else ""))
    return "\n".join(parts)
