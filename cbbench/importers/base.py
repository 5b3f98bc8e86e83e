"""The importer contract: a file in somebody's format -> one `TraceRow` a request, read as a stream.

An importer says how a row reads and nothing else: windows, clocks, lengths and token ids are the business of
importing.py and the same for every format. Columns and keys are found by name, never by position; extra ones are
ignored. A row that makes no sense raises ValueError with the reason: it is counted, named and left out.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, ClassVar

from cbbench.strategy import Strategy, StrictOptions

Message = dict[str, Any]
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
MAX_TOKENS = 100_000_000  # more is no length but a slip


@dataclass(slots=True)
class TraceRow:
    """One request as a trace has it. Text formats fill one of `prompt`, `messages`, `prompt_ids`; length traces fill
    `prompt_tokens`. What a format does not know stays as it is here."""

    line: int  # of the file, from 1; in a JSON document the number of the record
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    time_us: int | None = None  # on the trace's own clock
    prompt: str | None = None
    messages: list[Message] | None = None
    prompt_ids: list[int] | None = None
    answer: str | None = None  # its tokens are the output length where the format gives none
    blocks: Sequence[int] | None = None  # ids of the importer's `block_tokens` each; equal leading ids are equal tokens
    has_tail: bool = False  # the prompt goes on behind its last whole block
    scope: str = ""  # block ids hold within it: a session's name, or the whole file
    session: str | None = None
    key: str | None = None  # what another row's `parent` names
    parent: str | None = None  # the turn before
    continues: bool = False  # the prompt is only what comes behind the parent's prompt and answer
    think_s: float = 0.0  # between the end of the turn before and this one
    id: str = ""  # the request's name in the workload; trace.py fills it
    drop: str | None = None  # why a request that reads well should not be replayed: failed, has images


@dataclass(frozen=True, slots=True)
class Malformed:
    """A row that cannot be read."""

    line: int
    reason: str


def malformed(line: int, error: Exception) -> Malformed:
    """Nested so deep that no message can quote it is a mistake like any other."""
    return Malformed(line, "is nested too deep" if isinstance(error, RecursionError) else str(error))


@dataclass(frozen=True)
class Head:
    """What a file begins with, for `--format auto`: the columns of a CSV's header, or the first JSON object."""

    columns: frozenset[str] = frozenset()
    record: dict[str, Any] | None = None

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self.record or ())


Read = Iterator[TraceRow | Malformed]


class Importer(Strategy, ABC):
    """One format. The docstring says what it is; `Cost:` its traps; `Use when:` which files."""

    block_tokens: int | None = None  # of the block ids, where rows have any
    has_continuations: ClassVar[bool] = False  # rows may be `continues`
    is_prefix_tree: ClassVar[bool] = True  # an id never stands behind two different ones
    source: ClassVar[str] = ""  # whose trace, licence, what to cite
    suffixes: ClassVar[tuple[str, ...]] = ()  # which files of a folder are meant, when a folder is given

    def __init__(self, options: StrictOptions | None = None) -> None:
        self.options = options or self.Options()

    @classmethod
    @abstractmethod
    def claims(cls, head: Head) -> bool:
        """Whether a file that begins so is of this format. At most one importer may say yes to any file."""

    @abstractmethod
    def read(self, file: BinaryIO) -> Read:
        """The file's requests in file order, without reading ahead."""


class CsvImporter(Importer):
    """A CSV of numbers with a header, a row a line. `columns` must be there, `optional` ones may."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv",)
    columns: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def row(self, line: int, values: list[str | None]) -> TraceRow:
        """From the values of `columns` and then `optional`, stripped; None where the file has no such column."""

    @classmethod
    def claims(cls, head: Head) -> bool:
        return head.columns.issuperset(cls.columns)

    def read(self, file: BinaryIO) -> Read:
        lines = csv.reader(_csv_lines(file))
        try:
            header = [name.strip() for name in next((cells for cells in lines if cells), [])]
        except csv.Error as error:
            raise ValueError(f"the header cannot be read: {error}") from error
        missing = [name for name in self.columns if name not in header]
        if missing:
            raise ValueError(f"the header lacks {', '.join(missing)}; it has {', '.join(header)[:200] or 'nothing'}")
        places = [header.index(name) if name in header else None for name in (*self.columns, *self.optional)]
        while True:
            try:
                cells = next(lines, None)
            except csv.Error as error:
                yield Malformed(lines.line_num, str(error))
                continue
            if cells is None:
                return
            if not cells:
                continue
            try:
                if len(cells) < len(header) or any(cells[len(header) :]):
                    raise ValueError(f"has {len(cells)} of {len(header)} columns")
                yield self.row(lines.line_num, [None if place is None else cells[place].strip() for place in places])
            except ValueError as error:
                yield Malformed(lines.line_num, str(error))


def _csv_lines(file: BinaryIO) -> Iterator[str]:
    """A quote left open would take the lines behind it along; here it spoils its own."""
    for index, line in enumerate(file):
        text = line.decode("utf-8-sig" if not index else "utf-8", errors="replace")
        yield text if text.count('"') % 2 == 0 else text.replace('"', "\ufffd")


class JsonImporter(Importer):
    """JSON objects: one a line, or a document that holds a list of them or is one. `keys` must be there."""

    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".json")
    keys: ClassVar[tuple[str, ...]]

    @abstractmethod
    def rows(self, line: int, data: dict[str, Any]) -> Iterator[TraceRow]:
        """The requests of one object."""

    @classmethod
    def claims(cls, head: Head) -> bool:
        return head.keys.issuperset(cls.keys)

    def read(self, file: BinaryIO) -> Read:
        for line, found in json_objects(file):
            try:
                if isinstance(found, ValueError):
                    raise found
                lacking = [key for key in self.keys if key not in found]
                if lacking:
                    raise ValueError(f"lacks {', '.join(lacking)}")
                yield from self.rows(line, found)
            except (ValueError, RecursionError) as error:
                yield malformed(line, error)


def json_objects(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
    """(line, object) of JSON lines; (number, object) of a document. What is no object comes as a ValueError."""
    first = b""
    line = 0
    for line, first in enumerate(file, 1):  # to the first line that says something
        first = first.removeprefix(b"\xef\xbb\xbf") if line == 1 else first
        if first.strip():
            break
    if not first.strip():
        return
    value = _parse(first)
    rest: Iterable[bytes] = file
    if isinstance(value, ValueError) and first.lstrip()[:1] in (b"{", b"["):
        behind = file.read()
        document = _parse(first + behind)  # over several lines
        lines = behind.split(b"\n")
        if isinstance(document, ValueError) and any(isinstance(_parse(text), dict) for text in lines[:100]):
            rest = lines  # JSON lines, the first of them broken
        else:
            value, rest = document, ()
    yield from _entries(value, line)
    for number, text in enumerate(rest, line + 1):
        if text.strip():
            yield number, _object(_parse(text))


def _entries(value: Any, line: int) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
    if isinstance(value, list):
        for number, entry in enumerate(value, 1):
            yield number, _object(entry)
    else:
        yield line, _object(value)


def _parse(text: bytes) -> Any:
    """The value, or the ValueError that says why there is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return ValueError(f"not valid JSON: {error.msg}")
    except (ValueError, RecursionError) as error:
        return ValueError(f"not readable as JSON: {error}")


def _object(value: Any) -> dict[str, Any] | ValueError:
    if isinstance(value, dict | ValueError):
        return value
    return ValueError(f"should be a JSON object, is {str(value)[:40]!r}")


# What rows are made of. Each raises ValueError in the words of the file.


def whole(name: str, value: Any) -> int:
    """A count of tokens: 472, "472" or 472.0."""
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
        if isinstance(value, float) and value.is_integer():
            number = int(value)
    except ValueError:
        number = None
    if number is None or not 0 <= number <= MAX_TOKENS:
        raise ValueError(f"{name} should be a whole number of tokens, is {str(value)[:40]!r}")
    return number


def microseconds(name: str, value: Any, unit_us: float) -> int:
    """A time given in units of `unit_us` microseconds."""
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        time_us = round(float(value) * unit_us)
    except (ValueError, OverflowError):
        raise ValueError(f"{name} should be a time, is {str(value)[:40]!r}") from None
    if abs(time_us) > 2**62:
        raise ValueError(f"{name} should be a time, is {str(value)[:40]!r}")
    return time_us


def stamp_us(name: str, value: Any) -> int:
    """A time as text: 0 to 7 fraction digits, with an offset, Z or none (then UTC)."""
    try:
        moment = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        raise ValueError(f"{name} should be a time, is {str(value)[:40]!r}") from None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} should be text, is {str(value)[:40]!r}")
    return value


def block_ids(name: str, value: Any) -> list[int]:
    """Ids of prompt blocks."""
    if not isinstance(value, list) or not all(type(block) is int and 0 <= block < 1 << 39 for block in value):
        raise ValueError(f"{name} should be a list of block ids, is {str(value)[:40]!r}")
    return value


def covered(name: str, blocks: list[int], prompt_tokens: int, block_tokens: int) -> list[int]:
    """The ids, checked to be as many as the length needs, the last block counting when it is begun (Mooncake)."""
    needed = -(-prompt_tokens // block_tokens)
    if len(blocks) != needed:
        raise ValueError(f"{name} has {len(blocks)} blocks, {prompt_tokens} tokens in blocks of {block_tokens} need {needed}")
    return blocks
