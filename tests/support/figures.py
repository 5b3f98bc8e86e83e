"""Figures read back, and runs to draw. Shared by the tests of pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from cbbench.engine.loop import Engine
from cbbench.results.rounds import SavedRound, choose
from cbbench.results.store import Run, read_run
from tests.support.places import RECORDS
from tests.support.virtual_runs import metrics

ARMS = ["static+padded+preallocated", "continuous+varlen+paged"]


def geometry(drawn: Figure) -> dict[str, Any]:
    """What each artist with an id shows, in data coordinates: [x0, x1, y0, y1] for boxes, corners for areas and lines."""
    shown: dict[str, Any] = {}
    for artist in drawn.findobj(lambda artist: bool(artist.get_gid())):
        gid = str(artist.get_gid())
        if isinstance(artist, Rectangle):
            x, y = artist.get_xy()
            shown[gid] = [x, x + artist.get_width(), y, y + artist.get_height()]
        elif isinstance(artist, Line2D):
            shown[gid] = artist.get_xydata().tolist()
        elif isinstance(artist, Collection) and not gid.startswith("memory"):
            corners = [path.vertices for path in artist.get_paths()]
            shown[gid] = [[c[:, 0].min(), c[:, 0].max(), c[:, 1].min(), c[:, 1].max()] for c in corners]
        elif isinstance(artist, Collection):
            shown[gid] = artist.get_paths()[0].vertices.tolist()
    return {gid: rounded(values) for gid, values in sorted(shown.items())}


def rounded(values: Any) -> Any:
    return [rounded(value) for value in values] if isinstance(values, list) else round(float(values), 6)


def recorded(name: str, *arms: str) -> list[SavedRound]:
    return choose(read_run(RECORDS / name), arms)


def engine_recorded(engine: Engine) -> SavedRound:
    """A run of the virtual clock, as if read from disk."""
    steps, requests = (json.loads(json.dumps(lines)) for lines in (engine.record().step_lines(), engine.record().request_lines()))
    info = {"workload": {"name": "w", "digest": "0"}, "model": {"name": "none", "dtype": "float32", "digest": None}}
    return SavedRound(Run(Path("w"), info, [], []), "a+b+c", 1, {"metrics": metrics(engine), "bytes_per_token": None}, steps, requests)


def as_peer(found: SavedRound, name: str = "hf-generate") -> SavedRound:
    """The same requests as another system tells of them: no steps, no first scheduling, no times of tokens."""
    lines = [{**r, "ended_s": r["token_times_s"][-1], "first_scheduled_s": None, "token_times_s": None} for r in found.requests]
    nothing = dict.fromkeys(found.metrics) | {"output_tok_per_s": 3.0}
    return replace(found, arm=name, said={"peer": name, "metrics": nothing}, steps=[], requests=lines)


def texts(drawn: Figure) -> str:
    return "\n".join(text.get_text() for text in drawn.findobj(Text))
