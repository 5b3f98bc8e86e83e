"""GuideLLM's files, CSV or JSON, and its column names: what each alias means and of which turn it speaks."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any, BinaryIO, cast

from cbbench.importers.base import json_objects

Records = Iterator[tuple[int, dict[str, Any] | ValueError]]

ALIASES = {
    "text": ("prompt", "instruction", "question", "input", "context", "content", "conversation", "turn", "text"),
    "prompt_tokens": ("prompt_tokens_count", "input_tokens_count"),
    "output_tokens": ("output_tokens_count", "completion_tokens_count"),
    "prefix": ("system_prompt", "system", "prefix"),
    "time": ("relative_timestamp",),
    "delay": ("requeue_delay",),
    "image": ("image", "picture", "photo", "img"),
    "video": ("video", "clip", "movie", "footage", "mp4", "mov", "avi"),
    "audio": ("audio", "sound", "voice", "speech", "wav", "mp3"),
}
OWN = ("prompt_tokens", "output_tokens", "time")  # whose names no other tool uses


def _matches(aliases: Iterable[str], names: Iterable[str]) -> list[re.Match[str]]:
    """Those of the names that are an alias in any case, in the plural or not, with a turn's number or without."""
    pattern = re.compile(rf"((?:{'|'.join(map(re.escape, aliases))})(?:es|s)?)(?:[-_](\d+))?", re.IGNORECASE)
    return [found for name in names if (found := pattern.fullmatch(name))]


@lru_cache(maxsize=64)
def columns(names: tuple[str, ...]) -> dict[str, dict[int, str]]:
    """Kind -> turn -> name. Of several aliases of a kind the file's first counts; one without a number comes in order."""
    kinds: dict[str, dict[int, str]] = {}
    for kind, aliases in ALIASES.items():
        if first := _matches(aliases, names):
            turns: dict[int, str] = {}
            for order, found in enumerate(_matches([first[0][1]], names)):
                turn = order if found[2] is None else int(found[2])
                if turns.setdefault(turn, found[0]) != found[0]:
                    raise ValueError(f"{turns[turn]} and {found[0]} are both turn {turn}")
            kinds[kind] = dict(sorted(turns.items()))
    return kinds


def marked(names: Iterable[str]) -> bool:
    """Whether some name can only be GuideLLM's: a count, an offset, or a prompt with a turn's number."""
    names = list(names)
    return any(_matches(ALIASES[kind], names) for kind in OWN) or any(found[2] for found in _matches(ALIASES["text"], names))


def records(file: BinaryIO) -> Records:
    """(line, row) of JSON where the first line that says something begins as JSON does, of a CSV with a header otherwise."""
    first: list[bytes] = []
    for line in file:
        first.append(line if first else line.removeprefix(b"\xef\xbb\xbf"))
        if first[-1].strip():
            break
    lines = _Lines(chain(first, file))
    return json_objects(cast(BinaryIO, lines)) if first and first[-1].lstrip()[:1] in (b"{", b"[") else _csv_rows(lines)


class _Lines:
    """What `json_objects` asks of a file, of lines some of which were read before."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.lines = iter(lines)

    def __iter__(self) -> Iterator[bytes]:
        return self.lines

    def read(self) -> bytes:
        return b"".join(self.lines)


def _csv_rows(lines: Iterable[bytes]) -> Records:
    """Bytes that are not UTF-8 stay recognisable, as halves of surrogate pairs: another text would be another prompt."""
    csv.field_size_limit(1 << 30)  # a prompt may be longer than csv's 131,072 characters
    rows = csv.reader((line.decode("utf-8", errors="surrogateescape") for line in lines), strict=True)
    header: list[str] = []
    while True:
        try:
            cells = next(rows, None)
        except csv.Error as error:
            yield rows.line_num, ValueError(str(error))
            continue
        if cells is None:
            return
        if not header:
            header = [name.strip() for name in cells]
            if any(header) and "text" not in columns(tuple(header)):
                raise ValueError(f"the header lacks {', '.join(ALIASES['text'])}; it has {', '.join(header)[:200]}")
            header = header if any(header) else []
        elif len(cells) == len(header):
            yield rows.line_num, dict(zip(header, cells, strict=True))
        elif cells:
            yield rows.line_num, ValueError(f"has {len(cells)} of {len(header)} columns")
