"""JSON lines that remember where they stood, read one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbbench.errors import UserError


@dataclass(frozen=True)
class Lines:
    """Numbered values, and in words where a number stands."""

    values: Callable[[], Iterator[tuple[int, Any]]]
    where: Callable[[int], str]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self.values()


def read_jsonl(path: Path, asked_at: str = "") -> Lines:
    """The value of each line that is not blank. Iterating raises UserError with file:line."""
    return Lines(lambda: _values(path, asked_at), lambda number: f"{path}:{number}")


def _values(path: Path, asked_at: str) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:  # other ways to end a line may stand inside a prompt
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _parse(path, number, line)
    except (OSError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise UserError(f"{asked_at}{path}: {reason}") from error


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise KeyError
    return found


decode = json.JSONDecoder(object_pairs_hook=_no_twins).decode  # raises KeyError where a key is given twice


def _parse(path: Path, number: int, line: str) -> Any:
    place = f"{path}:{number}"
    try:
        return decode(line)
    except KeyError as error:
        raise UserError(f"{place}: a key is given twice") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{place}:{error.colno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not readable as JSON: {error}") from error
