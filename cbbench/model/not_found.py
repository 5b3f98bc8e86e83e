"""A model that is not there, in our own words: what was looked for, where, and the nearest name that exists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from cbbench.errors import UserError

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
MAX_LISTED = 1000  # entries of a folder to look for a near name in


def check_place(name: str, base_dir: Path, known: Iterable[str]) -> None:
    """Refuses a name that can be no hub id and is no folder either. Raises UserError."""
    path = base_dir / Path(name).expanduser()
    if path.is_dir():
        return
    if path.is_file():
        raise UserError(
            f"model {name}: is a file; should be a folder with config.json and safetensors, or a .gguf file{near(name, base_dir, known)}"
        )
    if name.startswith((".", "/", "~")) or not HUB_ID.fullmatch(name) or "--" in name or ".." in name:
        raise UserError(f"model {name}: there is no folder {path}{near(name, base_dir, known)}")


def not_loaded(name: str, base_dir: Path, known: Iterable[str], error: Exception, hint: str) -> UserError:
    """Why a folder, or a name taken for a hub id, gave no model."""
    lines = str(error).strip().splitlines()
    reason = lines[0].rstrip(".:") if lines else type(error).__name__
    if (base_dir / name).is_dir():
        return UserError(f"model {name!r} cannot be loaded: {reason}. {hint}")
    looked = f"no folder {base_dir / name}, and nothing of that name in the Hugging Face cache or on the hub (if it can be reached)"
    if not isinstance(error, OSError):
        looked = reason
    return UserError(f"model {name!r} cannot be loaded: {looked}{near(name, base_dir, known)}. {hint}")


def near(name: str, base_dir: Path, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing."""
    parent = (base_dir / Path(name).expanduser()).parent
    beside = [path.name for path, _ in zip(sorted(parent.iterdir()), range(MAX_LISTED), strict=False)] if parent.is_dir() else []
    found = {entry.lower(): name.removesuffix(Path(name).name) + entry for entry in beside} | {one.lower(): one for one in known}
    nearest = [found[one] for one in difflib.get_close_matches(name.lower(), found, n=1)]
    nearest = nearest or [found[one] for one in difflib.get_close_matches(Path(name).name.lower(), found, n=1)]
    return f"; did you mean {nearest[0]}?" if nearest and nearest[0] != name else ""
