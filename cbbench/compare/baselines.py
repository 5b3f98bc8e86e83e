"""Baselines: small JSON files under results/baselines/NAME/, one a workload, committed, moved only by `baseline save`."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cbbench.compare.verdicts import middle
from cbbench.errors import UserError
from cbbench.plugins import AXES
from cbbench.results.compared_metrics import EXACT, METRICS_VERSION, TIMED
from cbbench.results.store import Run, write_json

SCHEMA_VERSION = 1
MAX_HISTORY = 10
OLD_DAYS = 30
FOLDER = Path("results/baselines")

Series = dict[str, dict[int, Any]]  # metric -> round -> value


def key_of(info: dict[str, Any]) -> str:
    """Which workload on which model; the file's name."""
    model = info["model"]
    return f"{info['workload']['name']}{'' if model['digest'] else '-virtual'}"


def arm_work(info: dict[str, Any], arm: dict[str, Any]) -> dict[str, Any]:
    """Everything that decides what is computed; no name, no path, no machine, no number of rounds."""
    model = info["model"]
    work = {"workload": info["workload"]["digest"], "model": model["digest"], "dtype": model["dtype"]}
    work |= {"prepared": model.get("prepared"), "metrics": METRICS_VERSION}
    return work | {name: arm.get(name) for name in ("scheduler", "attn", "kv", "max_num_seqs", "budget_tokens")}


def work_difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What differs between two arms of one label, with both values. An option that only one side knows came later and is at
    its default there: at another value it would stand in the label."""
    before, after = dict(before), dict(after)
    for axis in AXES:
        one, other = before.get(axis), after.get(axis)
        if isinstance(one, dict) and isinstance(other, dict):
            before[axis], after[axis] = ({key: side[key] for key in side if key in one and key in other} for side in (one, other))
    return difference(before, after)


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The fields that differ, with both values."""
    fields = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {before.get(name)!r} -> {after.get(name)!r}" for name in fields)


@dataclass(frozen=True)
class Baseline:
    """What one run, or several saved one after the other, measured. `runs` oldest first."""

    name: str
    path: Path
    saved: str
    reason: str
    arms: dict[str, dict[str, Any]]  # label -> work
    runs: list[dict[str, Any]]

    @property
    def machine(self) -> dict[str, Any]:
        machine: dict[str, Any] = self.runs[-1]["machine"]
        return machine

    def newest(self, label: str, machine: dict[str, Any] | None = None) -> Series:
        """Of the newest run, on that machine where one was."""
        mine = [run for run in self.runs if run["machine"] == machine]
        return _series((mine or self.runs)[-1]["arms"].get(label, {}))

    def knows(self, machine: dict[str, Any]) -> bool:
        return any(run["machine"] == machine for run in self.runs)

    def history(self, label: str, metric: str, machine: dict[str, Any] | None) -> list[float]:
        """The medians of the runs, of one machine where it is given."""
        kept = [run for run in self.runs if machine is None or run["machine"] == machine]
        found = [middle(_series(run["arms"].get(label, {})).get(metric, {})) for run in kept]
        return [value for value in found if value is not None]

    @property
    def age_days(self) -> float:
        return (datetime.now(UTC) - datetime.fromisoformat(self.saved)).total_seconds() / 86_400


def _series(stored: dict[str, dict[str, Any]]) -> Series:
    return {metric: {int(number): value for number, value in values.items()} for metric, values in stored.items()}


def measured(run: Run, exact_only: bool = False) -> dict[str, Any]:
    """A run as a baseline keeps it: the judged metrics of every whole round."""
    arms: dict[str, Any] = {}
    for cell in run.cells:
        if not cell.interrupted and not cell.failed:
            for metric in EXACT if exact_only else (*EXACT, *TIMED):
                if (value := cell.metrics.get(metric.key)) is not None:
                    arms.setdefault(cell.arm, {}).setdefault(metric.key, {})[str(cell.round)] = value
    return {"run": run.name, "created": run.info["created"], "machine": run.info["machine"], "versions": run.info["versions"], "arms": arms}


def of_run(run: Run, exact_only: bool = False) -> Baseline:
    """A run as it is, as a baseline for another."""
    arms = {arm["label"]: arm_work(run.info, arm) for arm in run.info["arms"]}
    return Baseline(run.name, run.path, run.info["created"], "", arms, [measured(run, exact_only)])


def save(name: str, run: Run, reason: str, folder: Path, exact_only: bool = False) -> Path:
    """Adds the run to the baseline where it did the same work, else begins it anew. Raises UserError for a run with holes."""
    if name in ("", ".", "..") or name != Path(name).name:
        raise UserError(f"baseline save {name!r}: should be a plain name")
    whole = {cell.arm for cell in run.cells if cell.metrics and not cell.interrupted}
    broken = {cell.arm for cell in run.cells if cell.failed}
    if holes := [arm["label"] for arm in run.info["arms"] if arm["label"] not in whole - broken] or run.problems:
        raise UserError(f"{run.path}: cannot become a baseline: {', '.join(map(str, holes))} not measured whole")
    path = folder / name / f"{key_of(run.info)}.json"
    fresh = of_run(run, exact_only)
    before = read(path) if path.is_file() else None
    runs = [kept for kept in before.runs if kept["run"] != run.name] if before is not None and _same_work(before, fresh) else []
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "schema_version": SCHEMA_VERSION, "name": name, "saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "reason": reason, "commit": _commit(), "workload": run.info["workload"]["name"], "arms": fresh.arms,
            "runs": [*runs, *fresh.runs][-MAX_HISTORY:],
        },
    )  # fmt: skip
    return path


def _same_work(one: Baseline, other: Baseline) -> bool:
    return one.arms.keys() == other.arms.keys() and not any(work_difference(work, other.arms[label]) for label, work in one.arms.items())


def read(path: Path) -> Baseline:
    try:
        data = json.loads(path.read_text())
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {data['schema_version']}, this reads {SCHEMA_VERSION}")
        baseline = Baseline(data["name"], path, data["saved"], data["reason"], data["arms"], data["runs"])
        _ = baseline.age_days, baseline.arms.items(), baseline.machine
        for run in baseline.runs:
            _ = run["run"], run["machine"], {label: _series(arm) for label, arm in run["arms"].items()}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError(f"{path}: no baseline that can be read ({type(error).__name__}: {error})") from error
    return baseline


def read_all(folder: Path) -> dict[str, Baseline]:
    """Of one name: workload key -> baseline."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def _commit() -> str | None:
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
