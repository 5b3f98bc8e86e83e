"""Which runs of a folder are meant: an old regression must not fail the runs that came after it."""

from __future__ import annotations

from pathlib import Path

from cbbench.compare.baselines import key_of
from cbbench.results.store import Run


def newest(runs: list[Run], paths: list[Path]) -> tuple[list[Run], list[Run]]:
    """Of each folder that was named the newest run of each workload on each model, and every run that was named itself; then the
    rest."""
    named = [path.resolve() for path in paths]
    best: dict[object, Run] = {}
    for run in runs:
        place = run.path.resolve()
        folder = next((path for path in named if path in place.parents), None)
        group = place if place in named or folder is None else (folder, key_of(run.info))
        if group not in best or _when(run) > _when(best[group]):
            best[group] = run
    kept = {id(run) for run in best.values()}
    return [run for run in runs if id(run) in kept], [run for run in runs if id(run) not in kept]


def _when(run: Run) -> tuple[str, str, str]:
    """Two of the same second are told by their names, of which the later one has a number behind it."""
    return str(run.info.get("created") or ""), run.path.name, str(run.path)
