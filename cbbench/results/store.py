"""A run on disk: results/<run>/run.json, <arm>/<round>/{cell.json,steps.jsonl,requests.jsonl}, summary.csv, summary.md.

A round is written beside its place and renamed into it, so a killed run leaves whole rounds. Reads without torch.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cbbench import __version__
from cbbench.atomic import replacing
from cbbench.errors import UserError
from cbbench.results.compared_metrics import METRICS_VERSION
from cbbench.results.metrics import summarize

SCHEMA_VERSION = 1
RECORDS = ("steps", "requests")
NEEDED = {"workload": {"name", "digest"}, "model": {"name", "dtype", "digest"}}  # what a reader of run.json relies on


@dataclass
class Cell:
    """One arm in one round: its metrics, or the reason it has none."""

    arm: str
    round: int
    metrics: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None
    interrupted: bool = False
    notes: tuple[str, ...] = ()  # what a reader of its row has to know


class RunDir:
    """Writes one run. With `resume` it may be there already: whole rounds stay as they are."""

    def __init__(self, path: Path, resume: bool = False) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=resume)

    def write_run(self, data: dict[str, Any]) -> None:
        write_json(self.path / "run.json", {"schema_version": SCHEMA_VERSION, **data})

    def whole(self, arm: str, round_number: int) -> Cell | None:
        """The cell, where it ran to its end; one that failed or was interrupted did not."""
        try:
            cell = read_cell(self.path / arm / str(round_number))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None if cell.interrupted or cell.failed is not None else cell

    @contextmanager
    def making(self, arm: str, round_number: int) -> Iterator[Path]:
        """A folder that takes its place when it is whole."""
        place = self.path / arm / str(round_number)
        half = self.path / arm / f".{round_number}"
        for old in (half, place):
            shutil.rmtree(old, ignore_errors=True)
        try:
            yield half
        except BaseException:
            shutil.rmtree(half, ignore_errors=True)
            raise
        half.rename(place)


def write_records(folder: Path, cell: dict[str, Any], steps: list[Any], requests: list[Any]) -> dict[str, Any]:
    """The records of a cell, and cell.json: how it went (failed, interrupted, bytes per token, peak memory) and its
    metrics. Returns what cell.json says."""
    folder.mkdir(parents=True, exist_ok=True)
    said: dict[str, Any] = {}
    records = {"steps": steps, "requests": requests}
    for name, found in records.items():
        lines = [json.dumps(record, allow_nan=False) + "\n" for record in found]
        (folder / f"{name}.jsonl").write_text("".join(lines))
        said |= {f"num_{name}": len(lines), f"{name}_bytes": (folder / f"{name}.jsonl").stat().st_size}
    if cell.get("failed") is None:
        said |= {"metrics_version": METRICS_VERSION, "metrics": summarize(**records, cell=cell)}
    said |= cell
    write_json(folder / "cell.json", said)
    return said


def name_cell(folder: Path, arm: str, round_number: int) -> None:
    """Writes into cell.json whose it is."""
    cell = json.loads((folder / "cell.json").read_text())
    write_json(folder / "cell.json", {**cell, "arm": arm, "round": round_number})


def write_json(path: Path, data: Any) -> None:
    with replacing(path) as half:
        half.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n")


@dataclass
class Run:
    """A run read back. `problems`: what was damaged and left out."""

    path: Path
    info: dict[str, Any]
    cells: list[Cell]
    problems: list[str]
    alias: str | None = None  # where another run has the same name

    @property
    def name(self) -> str:
        return self.alias or self.path.name


def find_runs(path: Path) -> Iterator[Path]:
    """The run folders at or below a path, oldest first."""
    if (path / "run.json").is_file():
        yield path
        return
    yield from sorted(found.parent for found in path.glob("**/run.json") if "baselines" not in found.relative_to(path).parts)


def read_run(path: Path) -> Run:
    """All whole rounds. Raises ValueError when run.json itself cannot be read."""
    info = json.loads((path / "run.json").read_text())
    check_schema(info)
    for part, keys in NEEDED.items():
        if not isinstance(info.get(part), dict) or not info[part].keys() >= keys:
            raise ValueError(f"{part} lacks one of {', '.join(sorted(keys))}")
    arms = info.get("arms")
    if not isinstance(arms, list) or not all(isinstance(arm, dict) and isinstance(arm.get("label"), str) for arm in arms):
        raise ValueError("arms should be a list of mappings with a label")
    cells, problems = [], []
    for arm in info["arms"]:
        for folder in sorted((path / arm["label"]).glob("[0-9]*"), key=lambda p: int(p.name) if p.name.isdigit() else -1):
            try:
                cells.append(read_cell(folder))
            except (OSError, ValueError, KeyError, TypeError) as error:
                problems.append(f"{folder}: damaged, left out ({type(error).__name__}: {error})")
    return Run(path, info, cells, problems)


class OtherSchema(ValueError):
    """A whole run, made by a version of cbbench that writes runs in another form."""


def check_schema(info: Any) -> None:
    """Raises ValueError for what is no run, OtherSchema for one of another version."""
    if not isinstance(info, dict) or not isinstance(info.get("schema_version"), int):
        raise ValueError("it says no schema_version: not a run of cbbench")
    if info["schema_version"] != SCHEMA_VERSION:
        made = info["versions"].get("cbbench", "?") if isinstance(info.get("versions"), dict) else "?"
        raise OtherSchema(
            f"made by cbbench {made} in schema version {info['schema_version']}; this is {__version__} and reads {SCHEMA_VERSION}"
        )


def read_runs(paths: list[Path]) -> tuple[list[Run], list[str]]:
    """Every run at or below the paths that can be read, and what was damaged: left out whole, or in a part. Raises
    UserError where there is none."""
    runs: list[Run] = []
    problems = []
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        for found in find_runs(path):
            try:
                runs.append(read_run(found))
                problems += runs[-1].problems
            except OtherSchema as error:
                problems.append(f"{found}: left out: {error}")
            except (OSError, ValueError, KeyError, TypeError) as error:
                problems.append(f"{found}: left out, run.json is damaged ({error})")
    if not runs:
        raise UserError("; ".join([*problems, f"no runs in {', '.join(map(str, paths))}"]))
    names = Counter(run.path.name for run in runs)
    for run in runs:
        if names[run.path.name] > 1:
            run.alias = str(run.path)
    return runs, problems


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no number")


def read_cell(folder: Path) -> Cell:
    """The metrics kept in cell.json where the records are the ones they were computed from, else computed anew."""
    data = json.loads((folder / "cell.json").read_text(), parse_constant=_refuse)
    cell = Cell(data["arm"], data["round"], failed=data.get("failed"), interrupted=data.get("interrupted", False))
    cell.notes = tuple(map(str, data.get("notes", ())))
    sizes = [(folder / f"{name}.jsonl").stat().st_size for name in RECORDS]
    is_known = cell.failed is not None or (data.get("metrics_version") == METRICS_VERSION and "metrics" in data)
    if is_known and sizes == [data.get(f"{name}_bytes") for name in RECORDS]:
        cell.metrics = data.get("metrics", {})
        return cell
    if cell.failed is None:
        _, steps, requests = read_records(folder)
        cell.metrics = summarize(steps, requests, data)
    return cell


def read_records(folder: Path) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """cell.json, step records and request records of a cell. Raises OSError, ValueError and KeyError for damage."""
    data = json.loads((folder / "cell.json").read_text(), parse_constant=_refuse)
    steps, requests = (_read_lines(folder, name, data[f"num_{name}"]) for name in RECORDS)
    return data, steps, requests


def _read_lines(folder: Path, name: str, num_lines: int) -> list[Any]:
    lines = (folder / f"{name}.jsonl").read_text().splitlines()
    if len(lines) != num_lines:
        raise ValueError(f"{name}.jsonl has {len(lines)} of {num_lines} lines")
    return [json.loads(line) for line in lines]


def new_run(out: Path, workload: str) -> RunDir:
    """results/<time>-<workload>, with a number behind it where that is taken, perhaps by another process in the same second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1, 10_000):
        path = out / (f"{stamp}-{workload}" + (f"-{number}" if number > 1 else ""))
        with suppress(FileExistsError):
            return RunDir(path)
    raise FileExistsError(out)
