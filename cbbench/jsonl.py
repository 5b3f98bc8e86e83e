"""JSON lines that remember where they stood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cbbench.errors import UserError

Raw = list[tuple[str, Any]]  # place (file:line), value


def read_jsonl(path: Path, asked_at: str = "") -> Raw:
    """(file:line, value) of each line that is not blank."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise UserError(f"{asked_at}{path}: {reason}") from error
    lines = enumerate(text.split("\n"), 1)  # splitlines would also cut at U+2028 inside a prompt
    return [(f"{path}:{number}", _parse(f"{path}:{number}", line)) for number, line in lines if line.strip()]


def _parse(place: str, line: str) -> Any:
    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise UserError(f"{place}: a key is given twice")
        return found

    try:
        return json.loads(line, object_pairs_hook=no_twins)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}:{error.colno}: not valid JSON: {error.msg}") from error
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not readable as JSON: {error}") from error
