"""Going on with an interrupted run: the stored command, and that it still means the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cbbench.errors import UserError


def _stored(path: Path) -> dict[str, Any]:
    try:
        info = json.loads((path / "run.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"--resume {path}: no run that can be read there: {error}") from error
    if not isinstance(info, dict):
        raise UserError(f"--resume {path}: run.json is damaged")
    return info


def stored_command(path: Path) -> list[str]:
    """The words behind `cbbench`, without an earlier --resume."""
    words = _stored(path).get("command")
    if not isinstance(words, list) or len(words) < 2 or not all(isinstance(word, str) for word in words):
        raise UserError(f"--resume {path}: run.json does not say how the run was begun; give the workload and its flags")
    words = words[1:]
    if "--resume" in words:
        at = words.index("--resume")
        words = words[:at] + words[at + 2 :]
    return words


def check_same(path: Path, info: dict[str, Any]) -> None:
    """Raises UserError where the rounds to come would not belong to those that are there."""
    before = _stored(path)
    differing = [name for name in ("arms", "device", "machine", "warmup", "isolated") if before.get(name) != info[name]]
    for part, keys in (("workload", ("digest", "arrivals")), ("model", ("digest", "dtype"))):
        differing += [f"{part} {key}" for key in keys if (before.get(part) or {}).get(key) != info[part][key]]
    if differing:
        raise UserError(f"--resume {path}: that run was another: its {', '.join(differing)} differ")
