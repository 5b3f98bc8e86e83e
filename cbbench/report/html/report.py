"""One page over saved runs. It carries everything it needs and loads nothing: its content security policy forbids it.

The page is a Jinja template that escapes whatever is data; the figures are plotly's JSON in a script of data; plotly and
page/*.js are the only scripts that may run, named by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cbbench.atomic import replacing
from cbbench.errors import UserError
from cbbench.report.html import charts, over_time
from cbbench.report.html.facts import Facts, arm_facts, run_facts
from cbbench.report.html.over_time import Drawing, Figure
from cbbench.report.html.requests import COLUMNS, describe, followed
from cbbench.results import tables
from cbbench.results.rounds import SavedRound, choose
from cbbench.results.store import Run
from cbbench.results.tables import Grid, TableRow

MAX_PANELS = 48  # arms drawn over time on a page
SHOWN_AT_FIRST = 6  # of a group; the reader chooses others
BARS_PER_PAGE, MAX_BARS = 8_000, 3_000  # on a page, in a timeline
POINTS_PER_PAGE, MAX_POINTS = 6_000, 800  # on a page, in each line of a panel
FOLLOWED_PER_PAGE, MAX_FOLLOWED = 1_600, 120  # rows of requests on a page, in a panel
SCRIPTS = ("draw.js", "follow.js", "keys.js")


@dataclass
class Group:
    """Runs that computed the same thing. `panels` are the arms drawn over time, one round each."""

    id: str
    title: str
    runs: list[Run]
    rows: list[TableRow]
    grids: list[Grid]
    panels: list[SavedRound]
    names: list[str]  # of the panels
    left_out: list[str]
    facts: list[Facts]  # of each run
    arms: list[Facts]
    followed: list[int] = field(default_factory=list)  # filled by `render`, when it knows how much stands on the page
    figures: dict[str, list[Figure]] = field(default_factory=dict)

    @property
    def shown(self) -> list[int]:
        """Panels seen at first, spread over the arms, the first among them."""
        return sorted({round(place) for place in np.linspace(0, len(self.panels) - 1, SHOWN_AT_FIRST)} if self.panels else {0})

    @property
    def all_figures(self) -> list[Figure]:
        return [figure for found in self.figures.values() for figure in found]


def write_report(runs: list[Run], out: Path) -> None:
    """Whole or not at all. Raises UserError where `out` cannot be written."""
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"-o {out}: should be a file in a folder that exists, like report.html")
    page = render(runs)
    try:
        with replacing(out) as half:
            half.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"-o {out}: cannot be written ({error.strerror})") from error


def render(runs: list[Run]) -> str:
    """The page's HTML."""
    groups = _groups(runs)
    num_panels = max(sum(len(group.panels) for group in groups), 1)
    for group in groups:
        group.followed = followed(group.panels, min(MAX_FOLLOWED, FOLLOWED_PER_PAGE // num_panels))
        reach_s = over_time.reach_s(group.panels)
        limits = min(MAX_BARS, BARS_PER_PAGE // num_panels), min(MAX_POINTS, POINTS_PER_PAGE // num_panels)
        group.figures = _figures(group, Drawing(reach_s, group.followed, *limits))
    scripts = [Markup(text) for text in (_page("theme.js"), _plotly(), "\n".join(map(_page, SCRIPTS)))]
    environment = Environment(
        loader=PackageLoader("cbbench.report.html", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    return environment.get_template("report.html").render(
        groups=groups, scripts=scripts, style=Markup(_page("report.css")), data=Markup(_data(groups)),
        policy=f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'",
        mark=mark, num_runs=len(runs), newest=max(run.info.get("created", "") for run in runs),
    )  # fmt: skip


def _groups(runs: list[Run]) -> list[Group]:
    groups: list[Group] = []
    room = MAX_PANELS
    for title, members in tables.groups(runs).items():
        rows = tables.table_rows(members)
        panels, left_out = _panels(members, room)
        room -= len(panels)
        several = len(members) > 1
        names = [f"{recorded.arm} ({recorded.run.name})" if several else recorded.arm for recorded in panels]
        facts, arms = [run_facts(run) for run in members], arm_facts(members)
        groups.append(Group(f"g{len(groups)}", title, members, rows, tables.grids(rows), panels, names, left_out, facts, arms))
    return groups


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


def _figures(group: Group, drawing: Drawing) -> dict[str, list[Figure]]:
    """All figures of a group, by the part of the page they stand in."""
    panels = group.panels
    stepped = [(i, recorded) for i, recorded in enumerate(panels) if recorded.steps]
    highest = max((float(np.sum([*recorded.memory.parts.values()], 0).max()) for _, recorded in stepped), default=1.0)
    longest_ms = max((1000 * (step["end_s"] - step["start_s"]) for _, recorded in stepped for step in recorded.steps), default=1.0)
    figures = {
        "throughput": [charts.throughput(group.rows, group.runs)],
        "slots": [over_time.slots(recorded, i, drawing) for i, recorded in stepped],
        "requests": [over_time.requests(recorded, i, drawing) for i, recorded in enumerate(panels)],
        "memory": [over_time.memory(recorded, i, drawing, highest) for i, recorded in stepped],
        "latency": charts.latencies(panels, drawing),
        "waste": charts.waste(group.rows),
        "time": [charts.host_time(group.rows)],
        "steps": [over_time.steps(recorded, i, drawing, longest_ms) for i, recorded in stepped],
    }
    for number, figure in enumerate(figure for found in figures.values() for figure in found):
        figure.id = f"{group.id}-f{number}"
    return figures


def _data(groups: list[Group]) -> str:
    """For the scripts. No `<` is left in it, so no text of a run can end the element."""
    data: dict[str, Any] = {}
    for group in groups:
        figures = {f.id: {"kind": f.kind, "panel": f.panel, "data": f.data, "layout": f.layout} for f in group.all_figures}
        told = describe(group.panels, group.followed)
        data[group.id] = {"figures": figures, "arms": group.names, "requests": told, "columns": COLUMNS, "shown": group.shown}
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def mark(status: str) -> tuple[str, str]:
    """A sign and a class for a row's exactness: `good`, `bad` or `open`."""
    if "WRONG" in status or status.startswith("failed"):
        return "✗", "bad"
    if "exact" in status and not any(word in status for word in ("tie", "refused", "unfinished", "unverified")):
        return "✓", "good"
    return "○", "open"


def breakable(name: str) -> Markup:
    """An arm's name may be broken behind its pluses."""
    return Markup("+<wbr>").join(name.split("+"))


def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped,unused-ignore]

    return str(get_plotlyjs())


def _page(name: str) -> str:
    return resources.files("cbbench.report.html").joinpath("page", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
