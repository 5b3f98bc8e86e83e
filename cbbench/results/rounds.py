"""One arm's round read back with its records: what every picture is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cbbench.errors import UserError
from cbbench.results import timeline
from cbbench.results.metrics import ended_s
from cbbench.results.store import Cell, Run, read_records


@dataclass
class SavedRound:
    """A whole round of an arm. Peers keep no step records: their `steps` are empty."""

    run: Run
    arm: str
    round: int
    said: dict[str, Any]  # cell.json
    steps: list[dict[str, Any]]
    requests: list[dict[str, Any]]

    @property
    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = self.said["metrics"]
        return found

    @property
    def title(self) -> str:
        return f"{self.arm}, round {self.round} of {self.run.name}"

    @property
    def completed(self) -> list[dict[str, Any]]:
        return [r for r in self.requests if r["state"] == "finished"]

    @property
    def end_s(self) -> float:
        """When the last step or request ended; 0 where nothing ran."""
        ends = [step["end_s"] for step in self.steps[-1:]] + [end_s for r in self.requests if (end_s := ended_s(r)) is not None]
        return max(ends, default=0.0)

    @cached_property
    def spans(self) -> list[timeline.Span]:
        return timeline.slot_spans(self.steps, self.requests)

    @cached_property
    def stays(self) -> list[timeline.Stay]:
        return timeline.stays(self.steps, self.requests)

    @cached_property
    def memory(self) -> timeline.Memory:
        return timeline.memory(self.steps, self.requests)


def choose(run: Run, arms: Sequence[str] = (), round_number: int | None = None) -> list[SavedRound]:
    """A round of every arm, or of those named: the round asked for, else the one in the middle by output tokens a second
    (the earlier of two). An arm without a whole round is left out. Raises UserError: an unknown arm, nothing left."""
    known = [arm["label"] for arm in run.info["arms"]]
    for arm in arms:
        if arm not in known:
            raise UserError(f"--arm {arm}: {run.name} has {', '.join(known)}")
    found = []
    for arm in dict.fromkeys(arms or known):
        whole = [c for c in run.cells if c.arm == arm and c.failed is None and not c.interrupted and round_number in (None, c.round)]
        if whole:
            found.append(_read(run, _middle(whole)))
    if not found:
        wanted = "" if round_number is None else f" {round_number}"
        raise UserError(f"{run.path} has no whole round{wanted} of {', '.join(arms) or 'any arm'}")
    return found


def _middle(cells: list[Cell]) -> Cell:
    by_speed = sorted(cells, key=lambda cell: (cell.metrics.get("output_tok_per_s") or 0.0, cell.round))
    return by_speed[(len(by_speed) - 1) // 2]


def _read(run: Run, cell: Cell) -> SavedRound:
    try:
        said, steps, requests = read_records(run.path / cell.arm / str(cell.round))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run.path / cell.arm / str(cell.round)}: damaged ({type(error).__name__}: {error})") from error
    return SavedRound(run, cell.arm, cell.round, {**said, "metrics": cell.metrics}, steps, requests)
