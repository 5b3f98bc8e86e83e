"""The slot timeline in characters: a line a slot, or a line a request where no steps are known."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from string import ascii_lowercase
from typing import Any

import numpy as np
from rich.text import Text

from cbbench.report.printable import printable
from cbbench.report.terminal.columns import Columns, filled
from cbbench.results.rounds import SavedRound
from cbbench.results.tables import percent
from cbbench.results.timeline import IDLE, Kind, Phase

MARGIN = 8
MAX_LINES = 40  # of requests
BARS, ASCII_BARS = " ▁▂▃▄▅▆▇█", " 12345678"
COLOURS = ("cyan", "green", "yellow", "magenta", "bright_blue")
# The letter of the request stands for decode (small) and prefill (capital); the others have a sign.
SIGNS = {Kind.RECOMPUTE: "%", Kind.STALLED: "~", Kind.HELD: "=", Kind.STARVED: "!", Kind.DRAINED: "."}
STYLES = {Kind.PREFILL: "bold reverse", Kind.RECOMPUTE: "bold reverse", Kind.STALLED: "dim", Kind.HELD: "dim"}
PLAIN = {Kind.STARVED: "bright_red", Kind.DRAINED: "dim"}
MEANINGS = {
    Kind.PREFILL: "A prefill", Kind.DECODE: "a decode", Kind.RECOMPUTE: "% recompute", Kind.STALLED: "~ stalled",
    Kind.HELD: "= held (it has ended)", Kind.STARVED: "! starved (empty, others wait)", Kind.DRAINED: ". drained (empty, none waits)",
}  # fmt: skip


def letter(sequence: int) -> str:
    return ascii_lowercase[sequence % 26]


def slot_lines(recorded: SavedRound, columns: Columns, encoding: str) -> list[Text]:
    """Who sits in each slot, how many wait, who is preempted when, and how fast tokens come."""
    steps, rows = recorded.steps, defaultdict(list)
    for span in recorded.spans:
        rows[span.slot].append((span.start_s, span.end_s, (span.kind, span.sequence)))
    pauses = [(before["end_s"], after["start_s"], None) for before, after in pairwise(steps) if after["start_s"] > before["end_s"]]
    paused = columns.longest(pauses + [(step["start_s"], step["end_s"], True) for step in steps])
    lines = [Text("slots over time (A computes its prompt, a decodes; each letter is a request)", style="bold")]
    for slot in sorted(rows):
        line = Text(f"{slot:>{MARGIN - 1}} ")
        for column, doing in enumerate(columns.longest(rows[slot])):
            line.append(*(_sign(*doing) if doing and paused[column] else (" ", "")))
        lines.append(line)
    waiting = columns.longest((step["start_s"], step["end_s"], step["waiting"]) for step in steps)
    if any(waiting):
        lines.append(Text(f"{'waiting':>{MARGIN - 1}} " + "".join(_digit(num) for num in waiting), style="dim"))
    lines += [*_preempted_line(recorded, columns), _rate_line(recorded, columns, encoding)]
    return [*lines, *axis_lines(columns), *_legend(recorded, MARGIN + columns.num)]


def _sign(kind: Kind, sequence: int | None) -> tuple[str, str]:
    if sequence is None:
        return SIGNS[kind], PLAIN[kind]
    sign = SIGNS.get(kind) or (letter(sequence).upper() if kind is Kind.PREFILL else letter(sequence))
    return sign, f"{STYLES.get(kind, '')} {_colour(sequence)}".strip()


def _colour(sequence: int) -> str:
    return COLOURS[sequence % len(COLOURS)]


def _digit(num: int | None) -> str:
    return " " if not num else str(num) if num < 10 else "+"


def _preempted_line(recorded: SavedRound, columns: Columns) -> list[Text]:
    marks: dict[int, set[int]] = defaultdict(set)
    for step in recorded.steps:
        for sequence in step["preempted"]:
            marks[columns.at(step["start_s"])].add(sequence)
    signs = [" " if not (here := marks.get(column)) else letter(min(here)) if len(here) == 1 else "*" for column in range(columns.num)]
    return [Text(f"{'preempt':>{MARGIN - 1}} " + "".join(signs), style="bold bright_red")] if marks else []


def _rate_line(recorded: SavedRound, columns: Columns, encoding: str) -> Text:
    """Output tokens a second, a step's spread over all of it: one long step is a hole in everybody's output."""
    start_s, end_s = recorded.memory.start_s, recorded.memory.end_s
    times = [time_s for r in recorded.requests for time_s in r["token_times_s"] or []]
    num_tokens = np.bincount(np.minimum(np.searchsorted(end_s, times), len(end_s) - 1), minlength=len(end_s))
    rates = np.nan_to_num(columns.means(start_s, end_s, num_tokens / np.maximum(end_s - start_s, 1e-12)))
    levels = np.ceil(rates / max(rates.max(), 1e-12) * 8).astype(int)
    bars = BARS if encoding.lower().startswith("utf") else ASCII_BARS
    return Text(f"{'tok/s':>{MARGIN - 1}} " + "".join(bars[level] for level in levels), style="cyan")


def axis_lines(columns: Columns) -> list[Text]:
    return [Text(" " * MARGIN + line, style="dim") for line in columns.axis()]


def _legend(recorded: SavedRound, width: int) -> list[Text]:
    """Shares of all slots in all steps, as in the tables: a step counts once, however long it takes."""
    num_steps: Counter[Kind] = Counter()
    for span in recorded.spans:
        num_steps[span.kind] += span.num_steps
    total = sum(num_steps.values())
    said = [f"{MEANINGS[kind]} {percent(num_steps[kind] / total)}" for kind in Kind if num_steps[kind]]
    if any(step["waiting"] >= 10 for step in recorded.steps):
        said.append("+ ten or more wait")
    idle = percent(sum(num_steps[kind] for kind in IDLE) / total)
    return [*map(Text, filled(said, width)), Text(f"slots idle {idle}; shares are of slots times steps, as in the tables", style="dim")]


def request_lines(recorded: SavedRound, columns: Columns) -> list[Text]:
    """For a system that keeps no step records: each request's way."""
    ways: dict[int, list[tuple[float, float, tuple[str, str]]]] = defaultdict(list)
    for stay in recorded.stays:
        mine = letter(stay.sequence)
        sign = {Phase.QUEUED: "-", Phase.PREFILL: mine.upper()}.get(stay.phase, mine)
        ways[stay.sequence].append((stay.start_s, stay.end_s, (sign, "dim" if stay.phase is Phase.QUEUED else _colour(stay.sequence))))
    for r in recorded.requests:
        if not r["token_times_s"] and r.get("ended_s") is not None:
            ways[r["index"]] = [(r["arrival_s"], r["ended_s"], ("*", _colour(r["index"])))]
    lines = [Text("requests over time (this system keeps no step records)", style="bold")]
    for sequence in sorted(ways)[:MAX_LINES]:
        line = Text(f"{letter(sequence):>{MARGIN - 1}} ")
        for here in columns.longest(ways[sequence]):
            line.append(*(here or (" ", "")))
        lines.append(line)
    if len(ways) > MAX_LINES:
        lines.append(Text(f"... and {len(ways) - MAX_LINES:,} more requests", style="dim"))
    signs = ["- queued", "A until its first token", "a decode", "* from arrival to end (it tells no times of tokens)"]
    return [*lines, *axis_lines(columns), *map(Text, filled(signs, MARGIN + columns.num))]


def key_lines(recorded: SavedRound, width: int) -> list[Text]:
    """Which letter is which request; of very many only those that were preempted."""
    named = [r for r in recorded.requests if len(recorded.requests) <= len(ascii_lowercase) or r["num_preemptions"]][:MAX_LINES]
    cells = [Text(_about(r), style=_colour(r["index"])) for r in named]
    if not cells:
        return []
    per_line = max(1, width // (max(cell.cell_len for cell in cells) + 2))
    each = width // per_line
    lines = [Text("requests (prompt + output tokens)", style="bold")]
    for first in range(0, len(cells), per_line):
        line = Text()
        for cell in cells[first : first + per_line]:
            cell.truncate(each - 2, overflow="ellipsis", pad=True)
            line.append_text(cell).append("  ")
        lines.append(line)
    return lines


def _about(r: dict[str, Any]) -> str:
    said = f"{letter(r['index'])} {printable(r['id'])} {r['prompt_tokens']:,}+{len(r['output_ids']):,}"
    if r["num_preemptions"]:
        said += f" preempted {r['num_preemptions']}x"
    return said if r["state"] == "finished" else f"{said} {r['state']}"
