"""A run at work: on a terminal a live line with tokens a second and the time left; a line for each arm and round as it ends, which is
all that a pipe or a log gets; after the first of them how long the others will take.

Drawn between steps, twice a second, by no thread of its own: what is measured is disturbed as little as can be.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from cbbench.clock import RealClock
from cbbench.results import tables
from cbbench.results.store import Cell

if TYPE_CHECKING:
    from cbbench.engine.record import StepRecord

REFRESH_S = 0.5
LONG_S = 20.0  # of a run that is worth an estimate
WIDE = 120  # columns, from which on slots and memory stand in the live line too
FIXED = 46  # columns of bar, percent, rate and time left


class LiveProgress:
    """Usable as the runner's Progress."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        width = self.console.width
        name = Column(no_wrap=True, overflow="ellipsis", max_width=max(width - FIXED - (WIDE - FIXED) // 2 * (width >= WIDE), 12))
        columns = (
            TextColumn("{task.description}", table_column=name), BarColumn(12), TaskProgressColumn(),
            TextColumn("{task.fields[now]}", table_column=Column(no_wrap=True)), TimeRemainingColumn(), TextColumn("left"),
        )  # fmt: skip
        self.bars = Progress(*columns, console=self.console, disable=not self.console.is_terminal, auto_refresh=False, transient=True)
        self.clock = RealClock()
        self.drawn_s = 0.0

    def __enter__(self) -> LiveProgress:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bars.stop()

    def say(self, text: str) -> None:
        if self.console.is_terminal:
            self.bars.console.print(text, markup=False)
            self.bars.refresh()
        else:
            print(text, file=sys.stderr, flush=True)

    def run_started(self, num_cells: int, tokens_per_cell: int) -> None:
        self.cell_tokens, self.num_cells = tokens_per_cell, num_cells
        self.whole = self.bars.add_task("whole run", total=num_cells * tokens_per_cell, now="")
        self.num_cells_done = 0
        self.cell = self.bars.add_task("", total=tokens_per_cell, now="")

    def cell_started(self, arm: str, round_number: int) -> None:
        self.arm, self.round = arm, round_number
        self.bars.reset(self.cell, description=escape(f"round {round_number} {arm}"), total=self.cell_tokens, now="")
        self.cell_started_s = self.clock.now()
        self.started_s: float | None = None  # of the first step: the warm-up is no part of the rate
        self.bars.refresh()

    def stepped(self, num_tokens: int, step: StepRecord) -> None:
        """After each step; most are not drawn."""
        now_s = self.clock.now()
        if self.started_s is None:
            self.started_s = now_s - (step.end_s - step.start_s)
        if now_s - self.drawn_s < REFRESH_S or not self.console.is_terminal:
            return
        self.drawn_s = now_s
        now = f"{tables.number(num_tokens / max(now_s - self.started_s, 1e-9))} tok/s"
        if self.console.width >= WIDE:
            reserved = sum(reserved for _, reserved, _ in step.kv) - step.extra_tokens
            size = reserved + step.free_tokens
            now += f", slots {step.live}/{step.slots}, waiting {step.waiting}, KV {tables.percent(reserved / size if size else 0)}"
        self.bars.update(self.cell, completed=num_tokens, now=now)
        self.bars.update(self.whole, completed=self.num_cells_done * self.cell_tokens + num_tokens)
        self.bars.refresh()

    def cell_ended(self, cell: dict[str, Any]) -> None:
        """A cell counts as all its tokens: a model that says end-of-sequence produces fewer than were allowed."""
        self.num_cells_done += 1
        self.bars.update(self.whole, completed=self.num_cells_done * self.cell_tokens)
        if failed := cell.get("failed"):
            self.say(f"{self.arm} failed in round {self.round}: {failed}")
            return
        metrics = cell["metrics"]
        outcome = tables.status([Cell(self.arm, self.round, metrics, interrupted=cell.get("interrupted", False))])
        rate = metrics["output_tok_per_s"]
        measured = f", {tables.number(rate)} output tok/s" if rate else ""
        if cell.get("bytes_per_token") == 0:  # no model: nothing took time
            outcome, measured = outcome.replace("unverified", f"{metrics['requests_completed']:,} done"), f", {metrics['steps']:,} steps"
        self.say(f"{self.arm} round {self.round}: {outcome}{measured}")
        self._estimate()

    def _estimate(self) -> None:
        """Once, after the first: how long the whole run takes if the others are like it."""
        took_s = self.clock.now() - self.cell_started_s
        left = self.num_cells - self.num_cells_done
        if self.num_cells_done == 1 and left * took_s > LONG_S:
            self.say(f"that took {duration(took_s)}; {left} more of its kind take about {duration(left * took_s)}")


def duration(time_s: float) -> str:
    """As a person says it."""
    if time_s < 90:
        return f"{time_s:.0f} s"
    return f"{time_s / 60:.0f} min" if time_s < 5400 else f"{time_s / 3600:.1f} h"
