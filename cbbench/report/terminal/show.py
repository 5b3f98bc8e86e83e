"""`cbbench show`: a saved run in characters. See it: `cbbench show docs/records/tutorial --arm static+padded+cat`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from rich.console import Console
from rich.text import Text

from cbbench.report import screen
from cbbench.report.histogram import bar, histogram
from cbbench.report.printable import printable
from cbbench.report.terminal.columns import Columns
from cbbench.report.terminal.memory import memory_lines
from cbbench.report.terminal.slots import MARGIN, key_lines, request_lines, slot_lines
from cbbench.results.metrics import pooled_latencies
from cbbench.results.rounds import SavedRound
from cbbench.results.tables import number, percent, seconds, status

PIPE_WIDTH, MIN_WIDTH = 80, 60
FEWEST_COLUMNS = 4  # of a picture drawn to the scale of a slower arm, one in so many
NUM_BINS = 7


def print_all(chosen: Sequence[SavedRound]) -> None:
    """Every arm on the scale of the slowest, so that a faster one is visibly shorter, and all of them in a table before."""
    if len(chosen) > 1:
        _print(_comparison(chosen, _width()))
    for recorded in chosen:
        print_recorded(recorded, max(each.end_s for each in chosen))


def print_recorded(recorded: SavedRound, until_s: float | None = None) -> None:
    """Slots over time, memory over the same time, latencies. The time axis ends at `until_s`, unless the arm would be
    left with less than a quarter of it."""
    width, own_s = _width(), recorded.end_s
    end_s = own_s if until_s is None or until_s > FEWEST_COLUMNS * own_s else until_s
    lines = _head(recorded)
    if not own_s:
        _print([*lines, Text("nothing ran: " + ("every request was refused" if recorded.requests else "no requests"))])
        return
    columns = Columns(width - MARGIN - 1, end_s)
    if recorded.steps:
        encoding = screen.stdout().encoding
        lines += [*slot_lines(recorded, columns, encoding), Text(), *memory_lines(recorded, columns, encoding)]
    else:
        lines += request_lines(recorded, columns)
    _print([*lines, Text(), *_latency_lines(recorded, width), *key_lines(recorded, width), Text()])


def _width() -> int:
    return max(screen.stdout().width, MIN_WIDTH) if sys.stdout.isatty() else PIPE_WIDTH


def _print(lines: list[Text]) -> None:
    """Folded where a line is too long; nothing is cut. What the terminal's encoding lacks becomes a question mark."""
    console, width = screen.stdout(), _width()
    for text in lines:
        for line in text.wrap(Console(width=width), width) or [Text()]:
            line.rstrip()
            line.plain = line.plain.encode(console.encoding, "replace").decode(console.encoding)
            console.print(line, soft_wrap=True)


def _head(recorded: SavedRound) -> list[Text]:
    cells = [cell for cell in recorded.run.cells if (cell.arm, cell.round) == (recorded.arm, recorded.round)]
    metrics, said = recorded.metrics, [status(cells)]
    if metrics["output_tok_per_s"]:
        said.append(f"{number(metrics['output_tok_per_s'])} output tok/s over {seconds(metrics['duration_s'])}")
    if recorded.run.info["model"]["digest"] is None:
        said.append("on a virtual clock")
    where = f"round {recorded.round} of {printable(recorded.run.name)}: {', '.join(said)}"
    return [Text(printable(recorded.arm), style="bold reverse"), Text(where)]


def _comparison(chosen: Sequence[SavedRound], width: int) -> list[Text]:
    """Output rate, idle slots and duration of each, the duration as a bar."""
    names = [Text(printable(recorded.arm)) for recorded in chosen]
    name_width = min(max(name.cell_len for name in names), width - 48)
    longest_s = max(recorded.metrics["duration_s"] or 0.0 for recorded in chosen)
    lines = [Text(f"{'':{name_width}}  output tok/s  slots idle  duration", style="bold")]
    for name, recorded in zip(names, chosen, strict=True):
        name.truncate(name_width, overflow="ellipsis", pad=True)
        metrics = recorded.metrics
        rate, idle, duration_s = metrics["output_tok_per_s"], metrics["slot_idle_frac"], metrics["duration_s"]
        drawn = f"{bar(duration_s / longest_s, 12)} {seconds(duration_s)}" if duration_s else "-"
        lines.append(name.append(f"  {'-' if rate is None else number(rate):>12}  {'-' if idle is None else percent(idle):>10}  {drawn}"))
    return [*lines, Text()]


def latencies_s(recorded: SavedRound) -> dict[str, list[float]]:
    """The populations behind the latency table: completed requests."""
    pooled = pooled_latencies(recorded.completed)
    return {title: values for title in ("TTFT", "TPOT", "ITL") if (values := pooled[f"{title.lower()}_s"])}


def _latency_lines(recorded: SavedRound, width: int) -> list[Text]:
    """Histograms in milliseconds, side by side."""
    found = latencies_s(recorded)
    each = width // 3 - 2
    blocks = []
    for name, values in found.items():
        p50, p90 = np.percentile(values, [50, 90])
        overhead = len(histogram([1000 * value for value in values], NUM_BINS, 1)[0]) - 1
        drawn = histogram([1000 * value for value in values], NUM_BINS, max(each - overhead, 1))
        blocks.append([f"{name} {seconds(p50)} / {seconds(p90)}", *drawn])
    if not blocks:
        return []
    lines = [Text("latencies in ms, with p50 / p90 (TTFT and TPOT of requests, ITL of gaps)", style="bold")]
    return lines + [Text("  ".join(f"{cell:<{each}}" for cell in row)) for row in zip_longest(*blocks, fillvalue="")]
