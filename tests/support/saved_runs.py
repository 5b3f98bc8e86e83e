"""Saved runs made of bare numbers. Shared by the tests of what is said about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cbbench.results.metrics import summarize
from cbbench.results.store import Cell, Run

NOTHING: dict[str, Any] = dict.fromkeys(summarize([], [], {}))
WHOLE = NOTHING | {
    "requests_completed": 8, "requests_failed": 0, "requests_refused": 0, "requests_cancelled": 0,
    "exact_checked": 8, "exact_matched": 8, "exact_ties": 0, "exact_wrong": 0,
}  # fmt: skip
MACHINE = {"cpu": "a", "cores": 2}


def arm(label: str, **more: Any) -> dict[str, Any]:
    """As run.json describes it; a label without a plus is another system."""
    parts = label.split("@")[0].split("#")[0].split("+")
    if len(parts) == 1:
        return {"label": label, "peer": label, **more}
    return {"label": label, **{axis: {"name": name} for axis, name in zip(("scheduler", "attn", "kv"), parts, strict=True)}, **more}


def saved(arms: dict[str, list[dict[str, Any]] | str], name: str = "run", model: str | None = "abc", **info: Any) -> Run:
    """Label -> the metrics of each round over WHOLE, or why it failed. `info` goes into run.json; `marks` into arms by label."""
    marks = info.pop("marks", {})
    cells = []
    for label, rounds in arms.items():
        if isinstance(rounds, str):
            cells.append(Cell(label, 1, failed=rounds))
        else:
            cells += [Cell(label, number, WHOLE | metrics) for number, metrics in enumerate(rounds, 1)]
    about = {
        "arms": [arm(label, **marks.get(label, {})) for label in arms], "finished": True, "rounds": 1, "machine": MACHINE,
        "versions": {"torch": "2"}, "model": {"name": "m", "dtype": "float32", "digest": model},
        "workload": {"name": "w", "digest": "d", "arrivals": "offline"},
    }  # fmt: skip
    return Run(Path(name), about | info, cells, [])


def timed(tok_per_s: list[float], ttft_s: float = 1.0, **more: Any) -> list[dict[str, Any]]:
    """A round each."""
    return [{"output_tok_per_s": speed, "ttft_s_p50": ttft_s, **more} for speed in tok_per_s]
