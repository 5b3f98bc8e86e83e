"""A workload on the page: its runs, the arms drawn over time, and their pictures."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cbbench.compare.answer import answer
from cbbench.compare.slo import Slo
from cbbench.errors import UserError
from cbbench.report.html import charts, latency, over_time
from cbbench.report.html.facts import Facts, arm_facts, run_facts
from cbbench.report.html.over_time import Drawing, Figure
from cbbench.report.html.tables import Comparison, Table, comparisons, table
from cbbench.results import tables
from cbbench.results.rounds import SavedRound, choose
from cbbench.results.store import Run
from cbbench.results.tables import TableRow

MAX_PANELS = 48  # arms drawn over time on a page
SHOWN_AT_FIRST = 6  # of a group; the reader chooses others


@dataclass
class Group:
    """Runs that computed the same thing. `panels` are the arms drawn over time, one round each."""

    id: str
    title: str
    runs: list[Run]
    rows: list[TableRow]
    answer: list[str]
    headline: Table
    grids: list[Table]
    comparisons: list[Comparison]
    panels: list[SavedRound]
    names: list[str]  # of the panels
    left_out: list[str]
    facts: list[Facts]  # of each run
    arms: list[Facts]
    followed: list[int] = field(default_factory=list)  # filled by `render`, when it knows how much stands on the page
    figures: dict[str, list[Figure]] = field(default_factory=dict)

    @property
    def is_virtual(self) -> bool:
        """A time is a number of steps: there was no model, and every step took 1."""
        return all(row.counts_steps for row in self.rows)

    @property
    def shown(self) -> list[int]:
        """Panels seen at first: the base and the fastest, which are the story, and others spread over the arms."""
        if not self.panels:
            return [0]
        num = len(self.panels)
        speeds = [recorded.metrics.get("output_tok_per_s") or 0.0 for recorded in self.panels]
        bases = {(row.run, row.arm) for row in self.rows if row.is_base}
        first = [i for i, recorded in enumerate(self.panels) if (recorded.run.name, recorded.arm) in bases][:1]
        spread = [round(place) for place in np.linspace(0, num - 1, SHOWN_AT_FIRST)]
        return sorted([*dict.fromkeys([*first, int(np.argmax(speeds)), *spread, *range(num)])][:SHOWN_AT_FIRST])

    @property
    def styles(self) -> list[int]:
        """The number of each panel among the lines' colours and dashes: those seen at first come first."""
        in_order = sorted(range(len(self.panels)), key=lambda panel: (panel not in self.shown, panel))
        return [in_order.index(panel) for panel in range(len(self.panels))]

    @property
    def all_figures(self) -> list[Figure]:
        return [figure for found in self.figures.values() for figure in found]


def groups(runs: list[Run], slos: list[Slo]) -> list[Group]:
    found: list[Group] = []
    room = MAX_PANELS
    for title, members in tables.groups(runs).items():
        rows = tables.table_rows(members)
        panels, left_out = _panels(members, room)
        room -= len(panels)
        several = len(members) > 1
        names = [f"{recorded.arm} ({recorded.run.name})" if several else recorded.arm for recorded in panels]
        grids = [table(grid) for grid in tables.grids(rows)]
        said = answer(members), table(tables.main_grid(rows), "Results"), grids, comparisons(members, slos)
        facts, arms = [run_facts(run) for run in members], arm_facts(members)
        found.append(Group(f"g{len(found)}", title, members, rows, *said, panels, names, left_out, facts, arms))
    return found


def _panels(runs: list[Run], room: int) -> tuple[list[SavedRound], list[str]]:
    """A round of each arm while there is room, and why others are not drawn."""
    panels: list[SavedRound] = []
    left_out = []
    for run in runs:
        for arm in dict.fromkeys(arm["label"] for arm in run.info["arms"]):
            label = f"{arm} of {run.name}"
            if len(panels) >= room:
                left_out.append(f"{label} is not drawn over time: the page holds {MAX_PANELS} arms; give fewer runs")
                continue
            try:
                panels += choose(run, [arm])
            except UserError as error:
                damage = str(error).partition(": damaged")[2]
                left_out.append(f"{label} is not drawn: " + (f"its records are damaged{damage}" if damage else "it has no whole round"))
    return panels, left_out


def draw(group: Group, drawing: Drawing) -> None:
    """All figures of a group, by the part of the page they stand in."""
    panels = group.panels
    stepped = [(i, recorded) for i, recorded in enumerate(panels) if recorded.steps]
    highest = max((float(np.sum([*recorded.memory.parts.values()], 0).max()) for _, recorded in stepped), default=1.0)
    longest_s = max((step["end_s"] - step["start_s"] for _, recorded in stepped for step in recorded.steps), default=1.0)
    group.figures = {
        "slots": [over_time.slots(recorded, i, drawing) for i, recorded in stepped],
        "memory": [over_time.memory(recorded, i, drawing, highest) for i, recorded in stepped],
        "latency": latency.latencies(panels, drawing),
        "requests": [over_time.requests(recorded, i, drawing) for i, recorded in enumerate(panels)],
        "throughput": [charts.throughput(group.rows, group.runs)],
        "waste": charts.waste(group.rows),
    }
    if not group.is_virtual:
        group.figures["time"] = [charts.host_time(group.rows)]
        group.figures["steps"] = [over_time.steps(recorded, i, drawing, longest_s) for i, recorded in stepped]
    for number, figure in enumerate(group.all_figures):
        figure.id = f"{group.id}-f{number}"
