"""The tables of the page: the first one, all columns, and what `compare` says of the runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cbbench.compare.arms import Rules, compare_within
from cbbench.compare.effects import as_grid as effects_grid
from cbbench.compare.effects import effects
from cbbench.compare.gate import judge
from cbbench.compare.slo import Slo, score
from cbbench.compare.slo import as_grid as slo_grid
from cbbench.compare.verdict_report import as_grid as verdicts_grid
from cbbench.compare.verdict_report import worst_first
from cbbench.compare.verdicts import Outcome, Verdict
from cbbench.compare.worth_a_row import worth_a_row
from cbbench.results.store import Run
from cbbench.results.tables import Grid


@dataclass(frozen=True)
class Table:
    """A grid on the page. `arm` and `status` are the columns that name a row and say how its requests ended, where it has them."""

    title: str
    headers: list[str]
    lines: list[list[str]]
    num_text: int
    notes: list[str]
    best: frozenset[tuple[int, int]]
    arm: int | None
    status: int | None


@dataclass(frozen=True)
class Comparison:
    """A part of the page that is there only if the runs have something to compare."""

    title: str
    what: str
    tables: list[Table]


def table(grid: Grid, title: str = "") -> Table:
    notes = [text.replace("* the best", "Bold: the best").replace("\n", "; ") for text in (grid.note, grid.legend) if text]
    places = {header: place for place, header in enumerate(grid.headers)}
    return Table(title or grid.title, grid.headers, grid.lines, grid.num_text, notes, grid.best, places.get("arm"), places.get("requests"))


def comparisons(runs: list[Run], slos: list[Slo]) -> list[Comparison]:
    """Of runs that computed the same thing: verdicts, what each choice buys, and the objectives."""
    verdicts = worst_first([verdict for run in runs for verdict in compare_within(run, None, Rules())])
    bought = [table(effects_grid(steps), _of(run, runs, "What each choice buys")) for run in runs if (steps := effects(run))]
    scored = [table(slo_grid(score(run, slos), slos), _of(run, runs, "Under the objective")) for run in runs] if slos else []
    found = [
        Comparison("Verdicts", "Each arm against the baseline, round by round, as cbbench compare judges it.", _judged(verdicts)),
        Comparison("What each choice buys", "One choice changed, the others the same; the mean over all such pairs of arms.", bought),
        Comparison(
            "Under the objective", f"Which arms keep {', '.join(slo.text for slo in slos)}, and how many requests a second do.", scored
        ),
    ]
    return [part for part in found if part.tables]


def _judged(verdicts: list[Verdict]) -> list[Table]:
    """Rows where there is a verdict, and a line about the others. Nothing is gated on a page."""
    if not verdicts:
        return []
    rows = [verdict for verdict in verdicts if verdict.outcome is not Outcome.unresolved]
    said = worth_a_row(verdicts)[1][: len(rows) < len(verdicts)]
    grid = verdicts_grid(rows, judge(verdicts, [], False), verdicts)
    counted = [line for line in grid.note.split("\n") if not line.startswith("gate:")]
    return [table(replace(grid, note="\n".join([*said, *counted])))]


def _of(run: Run, runs: list[Run], title: str) -> str:
    return f"{title}: {run.name}" if len(runs) > 1 else title
