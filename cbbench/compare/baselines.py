"""Baselines: small JSON files under results/baselines/NAME/, one a workload and model, committed, moved only by `baseline save`."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cbbench.compare.verdicts import Values, middle
from cbbench.compare.work import arm_work, changed_defaults, work_difference
from cbbench.errors import UserError
from cbbench.results.compared_metrics import EXACT, TIMED
from cbbench.results.store import Run, write_json

SCHEMA_VERSION = 1
MAX_HISTORY = 10
OLD_DAYS = 30
FOLDER = Path("results/baselines")

Series = dict[str, Values]  # metric -> round -> value
Arms = dict[str, dict[str, Any]]  # label -> what it says


class Key(NamedTuple):
    """What a file of a baseline is about."""

    workload: str
    model: str | None  # its digest; None: a virtual clock
    dtype: str


def key_of(info: dict[str, Any]) -> Key:
    return Key(info["workload"]["name"], info["model"]["digest"], info["model"]["dtype"])


def describe_key(key: Key, model: str) -> str:
    return f"{key.workload} on a virtual clock" if key.model is None else f"{key.workload} on {model} ({key.model}) in {key.dtype}"


def file_name(info: dict[str, Any]) -> str:
    key = key_of(info)
    if key.model is None:
        return f"{key.workload}-virtual.json"
    name = Path(info["model"]["name"]).name.removesuffix(".json").removesuffix(".gguf")
    model = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:40]
    return f"{key.workload}-{model}-{key.model[:8]}{'' if key.dtype == 'float32' else f'-{key.dtype}'}.json"


@dataclass(frozen=True)
class Baseline:
    """What one run, or several saved one after the other, measured. `runs` oldest first; not each has every arm."""

    name: str
    path: Path
    saved: str
    reason: str
    arms: Arms  # label -> work
    runs: list[dict[str, Any]]
    workload: str = ""
    broken: dict[str, str] = field(default_factory=dict)  # label -> why it is no measure: of a run that is not a saved baseline

    @property
    def key(self) -> Key:
        work: dict[str, Any] = next(iter(self.arms.values()), {})
        return Key(self.workload, work.get("model"), work.get("dtype", ""))

    @property
    def machine(self) -> dict[str, Any]:
        machine: dict[str, Any] = self.runs[-1]["machine"]
        return machine

    def newest(self, label: str, metric: str) -> Values:
        """Of the newest run that has it, whatever its machine."""
        return next((values for run in reversed(self.runs) if (values := _values(run, label, metric))), {})

    def knows(self, machine: dict[str, Any]) -> bool:
        return any(run["machine"] == machine for run in self.runs)

    def history(self, label: str, metric: str, machine: dict[str, Any] | None, most_rounds: int) -> tuple[list[float], int]:
        """The medians of the runs, of one machine where it is given, that had at most so many rounds; and how many had more."""
        kept = [_values(run, label, metric) for run in self.runs if machine is None or run["machine"] == machine]
        found = [(len(values), middle(values)) for values in kept if middle(values) is not None]
        return [value for num, value in found if num <= most_rounds], sum(num > most_rounds for num, _ in found)

    @property
    def age_days(self) -> float:
        return (datetime.now(UTC) - datetime.fromisoformat(self.saved)).total_seconds() / 86_400


def _values(run: dict[str, Any], label: str, metric: str) -> Values:
    return {int(number): value for number, value in run["arms"].get(label, {}).get(metric, {}).items()}


def measured(run: Run, exact_only: bool = False) -> dict[str, Any]:
    """A run as a baseline keeps it: the judged metrics of every whole round."""
    arms: dict[str, Any] = {}
    for cell in run.cells:
        if not cell.interrupted and not cell.failed:
            for metric in EXACT if exact_only else (*EXACT, *TIMED):
                if (value := cell.metrics.get(metric.key)) is not None:
                    arms.setdefault(cell.arm, {}).setdefault(metric.key, {})[str(cell.round)] = value
    return {"run": run.name, "created": run.info["created"], "machine": run.info["machine"], "versions": run.info["versions"], "arms": arms}


def faults(run: Run) -> dict[str, str]:
    """Arm -> why its rounds are no measure for others."""
    found = {}
    for arm in run.info["arms"]:
        cells = [cell for cell in run.cells if cell.arm == arm["label"]]
        if failed := next((cell.failed for cell in cells if cell.failed), None):
            found[arm["label"]] = failed
        elif not any(cell.metrics and not cell.interrupted for cell in cells):
            found[arm["label"]] = "not measured whole"
        elif wrong := max(cell.metrics.get("exact_wrong") or 0 for cell in cells):
            found[arm["label"]] = f"{wrong} requests with wrong tokens"
    return found


def of_run(run: Run, exact_only: bool = False) -> Baseline:
    """A run as it is, as a baseline for another."""
    arms = {arm["label"]: arm_work(run.info, arm) for arm in run.info["arms"]}
    name = run.info["workload"]["name"]
    return Baseline(run.name, run.path, run.info["created"], "", arms, [measured(run, exact_only)], name, faults(run))


def save(name: str, run: Run, reason: str, folder: Path, exact_only: bool = False, replace: bool = False) -> tuple[Path, str]:
    """Adds the run to the baseline; returns the file, and what was replaced in it. Arms that this run has not stay as they are. Raises
    UserError for a run with holes, and for arms that did other work than is kept, unless `replace` begins those anew."""
    if name in ("", ".", "..") or name != Path(name).name:
        raise UserError(f"baseline save {name!r}: should be a plain name")
    if (found := faults(run)) or run.problems:
        said = "; ".join(f"{label}: {why}" for label, why in found.items()) or "; ".join(run.problems)
        raise UserError(f"{run.path}: cannot become a baseline: {said}")
    before = read_all(folder / name).get(key_of(run.info))
    path = before.path if before else folder / name / file_name(run.info)
    fresh = of_run(run, exact_only)
    old = _other_work(before.arms, fresh.arms) if before else {}
    if old and not replace:
        said = "; ".join(f"{label} ({why})" for label, why in old.items())
        raise UserError(f"{path}: keeps other work: {said}; --replace begins these arms anew, another name keeps both")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "schema_version": SCHEMA_VERSION, "name": name, "saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "reason": reason, "commit": _commit(), "workload": fresh.workload,
            "arms": {**(before.arms if before else {}), **fresh.arms}, "runs": _added(before, fresh, old.keys() if replace else ()),
        },
    )  # fmt: skip
    return path, "; ".join(f"{label}: {why}" for label, why in old.items())


def _other_work(before: Arms, after: Arms) -> dict[str, str]:
    pairs = {label: (before[label], work) for label, work in after.items() if label in before}
    found = {label: work_difference(*pair) or changed_defaults(*pair) for label, pair in pairs.items()}
    return {label: why for label, why in found.items() if why}


def _added(before: Baseline | None, fresh: Baseline, anew: Any) -> list[dict[str, Any]]:
    """The runs with this one behind them: of each arm the newest ten, of arms that begin anew this one alone. The same run saved
    again takes its own place."""
    (now,) = fresh.runs
    runs = [run for run in (before.runs if before else []) if (run["run"], run["created"]) != (now["run"], now["created"])]
    kept = [{**run, "arms": {label: arm for label, arm in run["arms"].items() if label not in anew}} for run in runs] + [now]
    num: dict[str, int] = {}
    for run in reversed(kept):
        for label in [*run["arms"]]:
            num[label] = num.get(label, 0) + 1
            if num[label] > MAX_HISTORY:
                run["arms"] = {other: arm for other, arm in run["arms"].items() if other != label}
    return [run for run in kept if run["arms"]]


def read(path: Path) -> Baseline:
    try:
        data = json.loads(path.read_text())
        if data["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {data['schema_version']}, this reads {SCHEMA_VERSION}")
        baseline = Baseline(data["name"], path, data["saved"], data["reason"], data["arms"], data["runs"], data["workload"])
        _ = baseline.age_days, baseline.key, baseline.machine
        for run in baseline.runs:
            _ = run["run"], run["machine"], run["created"]
            _ = [_values(run, label, metric) for label, arm in run["arms"].items() for metric in arm]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: no baseline that can be read ({type(error).__name__}: {error})") from error
    return baseline


def read_all(folder: Path) -> dict[Key, Baseline]:
    """Of one name: what it is about -> baseline."""
    return {baseline.key: baseline for baseline in map(read, sorted(folder.glob("*.json")))}


def _commit() -> str | None:
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
