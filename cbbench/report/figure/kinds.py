"""`cbbench plot`: pictures of a saved run as SVG, PNG or PDF, the same bytes for the same records.

Nothing of pyplot's global state is used, so drawing in one thread or test leaves the next as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from cbbench.atomic import replacing
from cbbench.errors import UserError
from cbbench.report.figure import bars, latency, memory, requests, slots
from cbbench.report.figure.style import RC, where
from cbbench.results.rounds import SavedRound

MAX_ARMS = 6  # one above another: more are too small to read
MAX_LINES = 24  # in one picture; each differs from the others in colour or dashes
DRAWN: dict[str, tuple[str, Callable[[str, list[SavedRound]], Figure]]] = {
    "slots": ("Slots", slots.draw),
    "memory": ("Memory", memory.draw),
    "requests": ("Requests", requests.draw),
    "latency": ("Latency", latency.draw),
    "throughput": ("Throughput", bars.draw_throughput),
    "waste": ("Waste", bars.draw_waste),
}
FROM_STEPS = ("slots", "memory", "waste")
ANY_NUMBER = ("throughput", "waste")
METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": f"cbbench, matplotlib {mpl.__version__}"},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": "cbbench", "Producer": None},
}


def plot(chosen: list[SavedRound], kind: str, out: Path) -> None:
    """Draws one kind of picture of one run's arms to a file, whole or not at all. Raises UserError: a suffix that is not
    svg, png or pdf, no such folder, too many arms, no arm with what the picture shows."""
    suffix = out.suffix.removeprefix(".").lower()
    if suffix not in METADATA:
        raise UserError(f"--out {out}: should end in .svg, .png or .pdf")
    if not out.parent.is_dir() or out.is_dir():
        raise UserError(f"--out {out}: " + ("is a folder" if out.is_dir() else f"there is no folder {out.parent}"))
    with mpl.rc_context(RC), replacing(out) as half:
        figure(chosen, kind).savefig(half, format=suffix, dpi=150, metadata=METADATA[suffix])


def figure(chosen: list[SavedRound], kind: str) -> Figure:
    """The picture before it is written; within `mpl.rc_context(RC)` it looks as it should."""
    said, draw = DRAWN[kind]
    drawn = [recorded for recorded in chosen if recorded.steps] if kind in FROM_STEPS else chosen
    left_out = [recorded.arm for recorded in chosen if recorded not in drawn]
    if not drawn:
        raise UserError(f"plot {kind} is made of step records, and {', '.join(left_out)} kept none")
    most = MAX_LINES if kind == "latency" else MAX_ARMS
    if len(drawn) > most and kind not in ANY_NUMBER:
        raise UserError(f"plot {kind} shows at most {most} arms, not {len(drawn)}; choose with --arm, like --arm {drawn[0].arm}")
    title = f"{said}: {where(drawn[0])}"
    if left_out:
        title += f"\nleft out, no step records: {', '.join(left_out)}"
    return draw(title, drawn)
