"""A trace read as a stream: the rows of a window, and an account in which every row read is kept or dropped by name."""

from __future__ import annotations

import csv
import zlib
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cbbench import plugins
from cbbench.errors import UserError
from cbbench.importers.base import Head, Importer, Malformed, TraceRow, json_objects
from cbbench.importing.text_prompts import TextPrompts, TurnLengths
from cbbench.importing.trace_files import files_of, opened
from cbbench.workload.sharing import TAIL, PrefixTree

PATIENCE = 10_000  # rows beyond the end of a time window before the rest of a file is taken to lie beyond it too
HEAD_BYTES = 1 << 16
AFTER = "after the window"

Placed = Generator[tuple[str, TraceRow | Malformed], None, None]  # file:line, and what stood there


@dataclass(frozen=True)
class Window:
    """Which part of a trace: rows are counted over all files, seconds from its first row."""

    skip_rows: int = 0
    max_rows: int | None = None
    start_s: float = 0.0
    duration_s: float | None = None

    def describe(self) -> dict[str, Any]:
        said = {"skip_rows": self.skip_rows, "max_rows": self.max_rows, "start_s": self.start_s, "duration_s": self.duration_s}
        return {name: value for name, value in said.items() if value}


@dataclass
class Trace:
    """What was read. `rows` are in file order, `dropped` has a count for each reason; malformed rows are one of them."""

    importer: Importer
    tree: PrefixTree
    rows: list[TraceRow] = field(default_factory=list)
    rows_read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    malformed: list[str] = field(default_factory=list)  # file:line: why, of the first few
    files: list[dict[str, Any]] = field(default_factory=list)

    def note_malformed(self, where: str, reason: str, strict: bool) -> None:
        if strict:
            raise UserError(f"{where}: {reason}")
        self.dropped["malformed"] += 1
        if len(self.malformed) < 5:
            self.malformed.append(f"{where}: {reason}")


def choose_importer(name: str, paths: list[Path], options: dict[str, Any]) -> Importer:
    """By its name, or for `auto` the one that claims the first file. Raises UserError."""
    from pydantic import ValidationError

    from cbbench.workload.yaml_source import explain

    if name == "auto":
        path = next(files_of(paths, (".csv", ".jsonl", ".json")))
        head = _head(path)
        claims = [n for n in plugins.names("importer") if _class(n).claims(head)]
        if len(claims) != 1:
            seen = ", ".join(sorted(head.columns or head.keys)) or "neither a header nor a JSON object"
            reason = f"both {' and '.join(claims)} could read it" if claims else "no importer knows it"
            raise UserError(f"{path}: {reason} (it has {seen[:200]}); name one of {', '.join(plugins.names('importer'))}")
        name = claims[0]
    cls = _class(name.replace("-", "_"))
    try:
        return cls(cls.Options.model_validate(options))
    except ValidationError as error:
        raise explain(error, cls.Options, lambda loc: f"--option {'.'.join(map(str, loc))}") from error


def _class(name: str) -> type[Importer]:
    return cast(type[Importer], plugins.find("importer", name))


def _head(path: Path) -> Head:
    try:
        return _read_head(path)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def _read_head(path: Path) -> Head:
    with opened(path)[0] as file:
        start = file.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")
        if start.lstrip()[:1] not in (b"{", b"["):
            line = start.decode(errors="replace").splitlines()[:1]
            return Head(columns=frozenset(name.strip() for name in next(csv.reader(line), [])))
        file.seek(0)
        found = next((value for _, value in json_objects(file) if isinstance(value, dict)), None)
        return Head(record=found)


def read_trace(
    importer: Importer, paths: list[Path], window: Window, texts: TextPrompts, strict: bool = False, zero_output_as_one: bool = False
) -> Trace:
    """Reads no more of the files than the window needs. Raises UserError; with `strict` also at the first malformed row."""
    trace = Trace(importer, PrefixTree(texts.recipe))
    files = list(files_of(paths, importer.suffixes))
    with closing(_rows(trace, files)) as rows:
        _keep(trace, rows, window, texts, strict, zero_output_as_one)
    return trace


def _keep(trace: Trace, rows: Placed, window: Window, texts: TextPrompts, strict: bool, zero_output_as_one: bool) -> None:
    spans = TurnLengths(trace.importer.block_tokens)
    zero_us: int | None = None
    beyond = 0
    for where, row in rows:
        trace.rows_read += 1
        try:
            if isinstance(row, Malformed):
                raise ValueError(row.reason)
            zero_us = row.time_us if zero_us is None else zero_us
            place = _placed(trace, row, window, zero_us)
            beyond = beyond + 1 if place == AFTER else 0
            if trace.importer.has_continuations:
                spans.lengthen(row)
            if row.blocks is not None:
                blocks = [*row.blocks, TAIL + row.line] if row.has_tail else row.blocks
                row.blocks = trace.tree.place(row.scope, blocks, trace.importer.is_prefix_tree)
            if row.output_tokens == 0 and zero_output_as_one:
                row.output_tokens = 1
            if reason := place or row.drop or texts.fill(row):
                trace.dropped[reason] += 1
            else:
                trace.rows.append(row)
        except ValueError as error:
            trace.note_malformed(where, str(error), strict)
        if beyond > PATIENCE or (window.max_rows is not None and trace.rows_read >= window.skip_rows + window.max_rows):
            return


def _placed(trace: Trace, row: TraceRow, window: Window, zero_us: int | None) -> str | None:
    if trace.rows_read <= window.skip_rows:
        return "before the window"
    if row.time_us is None or zero_us is None:
        return None
    time_s = (row.time_us - zero_us) / 1e6 - window.start_s
    if time_s < 0 and window.start_s:
        return "before the window"
    return AFTER if window.duration_s is not None and time_s >= window.duration_s else None


def _rows(trace: Trace, files: list[Path]) -> Placed:
    """Rows of all files; each file that was opened is described in `trace.files`."""
    stems: set[str] = set()
    named: set[str] = set()
    for path in files:
        stem = _unused(path.stem, stems)
        file, raw = opened(path)
        whole = False
        try:
            with file:
                for row in trace.importer.read(file):
                    if isinstance(row, TraceRow):
                        row.id = f"{stem}-{row.line}" if len(files) > 1 else str(row.line)
                        if row.session is not None:  # a line may hold several turns, a file several sessions
                            row.id = _unused(row.id, named)
                        row.scope = row.scope or (stem if len(files) > 1 else "")
                    yield f"{path}:{row.line}", row
                whole = not file.read(1)
        except ValueError as error:
            raise UserError(f"{path}:1: {error}") from error
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path}: cannot be read: {error}") from error
        finally:
            seen = {"name": path.name, "bytes": raw.num_bytes, "sha256": raw.sha.hexdigest()}
            trace.files.append(seen if whole else {**seen, "only_the_beginning": True})


def _unused(name: str, named: set[str]) -> str:
    """The name, with .2, .3 behind it where it is taken."""
    unused, number = name, 2
    while unused in named:
        unused, number = f"{name}.{number}", number + 1
    named.add(unused)
    return unused
