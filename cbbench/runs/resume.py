"""Going on with an interrupted run: the stored command, and that it still means the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cbbench.errors import UserError
from cbbench.results.store import check_schema


def _stored(path: Path) -> dict[str, Any]:
    try:
        info: Any = json.loads((path / "run.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"--resume {path}: no run that can be read there: {error}") from error
    parts = [info.get(name) for name in ("workload", "model")] if isinstance(info, dict) else [None]
    try:
        check_schema(info)
    except ValueError as error:
        raise UserError(f"--resume {path}: {error}") from error
    if not all(isinstance(part, dict) for part in parts):
        raise UserError(f"--resume {path}: run.json is damaged")
    stored: dict[str, Any] = info
    return stored


def stored_command(path: Path) -> list[str]:
    """The words behind `cbbench`, without an earlier --resume."""
    words = _stored(path).get("command")
    if not isinstance(words, list) or len(words) < 3 or not all(isinstance(word, str) for word in words):
        raise UserError(f"--resume {path}: run.json does not say how the run was begun; give the workload and its flags")
    return without_resume(words[1:])


def without_resume(words: list[str]) -> list[str]:
    at = next((i for i, word in enumerate(words) if word == "--resume" or word.startswith("--resume=")), None)
    return words if at is None else words[:at] + words[at + 1 + (words[at] == "--resume") :]


def _changed(before: dict[str, Any], info: dict[str, Any]) -> str:
    """Which versions, with both values."""
    said = []
    for part in ("versions", "code"):
        old = before.get(part) or {}
        said += [f"{name} {old.get(name)} -> {now}" for name, now in info[part].items() if old.get(name) != now]
    return f" ({', '.join(said)})" if said else ""


def check_same(path: Path, info: dict[str, Any]) -> dict[str, Any]:
    """What run.json said. Raises UserError where the rounds to come would not belong to those that are there."""
    before = _stored(path)
    differing = [name for name in ("arms", "device", "machine", "versions", "code", "warmup", "isolated") if before.get(name) != info[name]]
    for part, keys in (("workload", ("digest", "arrivals")), ("model", ("digest", "dtype", "prepared"))):
        differing += [f"{part} {key}" for key in keys if (before.get(part) or {}).get(key) != info[part][key]]
    if differing:
        raise UserError(f"--resume {path}: that run was another: its {', '.join(differing)} differ{_changed(before, info)}")
    return before
