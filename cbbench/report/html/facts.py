"""With what settings and on which machine a run was made, as rows of text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cbbench.results.store import Run


@dataclass(frozen=True)
class Facts:
    """A title and its rows."""

    title: str
    rows: list[tuple[str, str]]


def run_facts(run: Run) -> Facts:
    """run.json without its arms."""
    return Facts(run.name, list(_flat({key: value for key, value in run.info.items() if key != "arms"})))


def arm_facts(runs: list[Run]) -> list[Facts]:
    """Each arm's own settings; one of several runs stands once where it was the same."""
    found: dict[str, Facts] = {}
    for run in runs:
        for arm in run.info["arms"]:
            rows = list(_flat({key: value for key, value in arm.items() if key != "label"}))
            found.setdefault(f"{arm['label']} {rows}", Facts(arm["label"], rows))
    return list(found.values())


def _flat(data: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
