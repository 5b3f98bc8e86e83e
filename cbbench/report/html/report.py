"""One page over saved runs. It carries everything it needs and loads nothing: its content security policy forbids it.

The page is a Jinja template that escapes whatever is data; the figures are plotly's JSON in a script of data; plotly and
page/*.js are the only scripts that may run, named by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cbbench.atomic import replacing
from cbbench.compare.slo import Slo
from cbbench.errors import UserError
from cbbench.report.html import over_time
from cbbench.report.html.group import Group, draw, groups
from cbbench.report.html.over_time import Drawing
from cbbench.report.html.requests import COLUMNS, describe, followed
from cbbench.results.store import Run

BARS_PER_PAGE, MAX_BARS = 8_000, 3_000  # on a page, in a timeline
POINTS_PER_PAGE, MAX_POINTS = 6_000, 800  # on a page, in each line of a panel
FOLLOWED_PER_PAGE, MAX_FOLLOWED = 1_600, 120  # rows of requests on a page, in a panel
SCRIPTS = ("time.js", "draw.js", "follow.js", "keys.js", "sort.js", "print.js")


def write_report(runs: list[Run], out: Path, slos: Sequence[Slo] = ()) -> None:
    """Whole or not at all. Raises UserError where `out` cannot be written."""
    if out.is_dir():
        raise UserError(f"-o {out}: is a folder; give a file, like {out / 'report.html'}")
    page = render(runs, slos)
    try:
        with replacing(out) as half:
            half.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"-o {out}: cannot be written ({error.strerror})") from error


def render(runs: list[Run], slos: Sequence[Slo] = ()) -> str:
    """The page's HTML."""
    found = groups(runs, list(slos))
    num_panels = max(sum(len(group.panels) for group in found), 1)
    data = {}
    for group in found:
        group.followed = followed(group.panels, min(MAX_FOLLOWED, FOLLOWED_PER_PAGE // num_panels))
        limits = min(MAX_BARS, BARS_PER_PAGE // num_panels), min(MAX_POINTS, POINTS_PER_PAGE // num_panels)
        drawing = Drawing(over_time.reach_s(group.panels), group.followed, *limits, group.is_virtual)
        draw(group, drawing)
        data[group.id] = _data(group, drawing)
    scripts = [Markup(text) for text in (_page("theme.js"), _plotly(), "\n".join(map(_page, SCRIPTS)))]
    return _environment().get_template("report.html").render(
        groups=found, scripts=scripts, style=Markup(_page("report.css")), data=Markup(_json(data)),
        policy=f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'",
        num_runs=len(runs), newest=max(run.info.get("created", "") for run in runs),
    )  # fmt: skip


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("cbbench.report.html", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["breakable"] = breakable
    made.globals["mark"] = mark
    return made


def _data(group: Group, drawing: Drawing) -> dict[str, Any]:
    """For the scripts."""
    return {
        "figures": {f.id: {"kind": f.kind, "panel": f.panel, "data": f.data, "layout": f.layout} for f in group.all_figures},
        "arms": group.names, "styles": group.styles, "shown": group.shown, "clock": "steps" if group.is_virtual else "s",
        "requests": describe(group.panels, group.followed, drawing.time), "columns": COLUMNS,
    }  # fmt: skip


def _json(data: dict[str, Any]) -> str:
    """No `<` is left in it, so no text of a run can end the element."""
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
