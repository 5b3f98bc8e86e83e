"""`cbbench export`: a trace, or tidy tables for pandas and the like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from cbbench.atomic import replacing
from cbbench.errors import UserError
from cbbench.report import perfetto
from cbbench.report.printable import printable
from cbbench.results.metrics import only_decodes, request_latencies
from cbbench.results.rounds import SavedRound

# fmt: off
WHOSE = {"arm": "string", "round": "Int64"}
SCHEMAS: dict[str, dict[str, str]] = {
    "steps": WHOSE | {
        "step": "Int64", "start_s": "Float64", "end_s": "Float64", "model_s": "Float64", "only_decodes": "boolean", "slots": "Int64",
        "live": "Int64", "held": "Int64", "waiting": "Int64", "computed_tokens": "Int64", "padded_positions": "Int64",
        "copied_bytes": "Int64", "num_preempted": "Int64"},
    "slots": WHOSE | {
        "slot": "Int64", "kind": "string", "request": "Int64", "id": "string", "first_step": "Int64", "last_step": "Int64",
        "num_steps": "Int64", "start_s": "Float64", "end_s": "Float64", "computed_tokens": "Int64"},
    "kv": WHOSE | {
        "step": "Int64", "start_s": "Float64", "end_s": "Float64", "used_tokens": "Int64", "future_tokens": "Int64",
        "internal_tokens": "Int64", "external_tokens": "Int64", "cached_tokens": "Int64", "free_tokens": "Int64"},
    "requests": WHOSE | {
        "request": "Int64", "id": "string", "state": "string", "reason": "string", "outcome": "string", "prompt_tokens": "Int64",
        "max_new_tokens": "Int64", "output_tokens": "Int64", "arrival_s": "Float64", "submitted_s": "Float64",
        "first_scheduled_s": "Float64", "queue_wait_s": "Float64", "ttft_s": "Float64", "tpot_s": "Float64", "e2e_s": "Float64",
        "num_preemptions": "Int64", "recomputed_tokens": "Int64", "cached_tokens": "Int64"},
    "tokens": WHOSE | {
        "request": "Int64", "id": "string", "position": "Int64", "token_id": "Int64", "time_s": "Float64", "itl_s": "Float64"},
}
# fmt: on


def export(chosen: list[SavedRound], format: str, out: Path | None) -> list[Path]:
    """Writes trace.json, or one file a table, and says where. Only what an export wrote is overwritten. Raises UserError."""
    try:
        return [_write_trace(chosen, out)] if format == "perfetto" else _write_tables(chosen, format, out)
    except OSError as error:
        raise UserError(f"-o {error.filename or out}: cannot be written ({error.strerror})") from error


def _write_trace(chosen: list[SavedRound], out: Path | None) -> Path:
    path = out or chosen[0].run.path / "trace.json"
    if path.suffix != ".json":
        raise UserError(f"-o {path}: should end in .json")
    _check_place(path, path.parent, lambda: _first_line(path).startswith(perfetto.HEAD))
    with replacing(path) as half, half.open("w", encoding="utf-8") as file:
        for text in perfetto.lines(chosen):
            file.write(text)
    return path


def _write_tables(chosen: list[SavedRound], format: str, out: Path | None) -> list[Path]:
    folder = out or chosen[0].run.path / "tables"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"-o {folder}: should be a folder")
    made = {folder / f"{name}.{format}": frame for name, frame in frames(chosen).items()}
    for path, frame in made.items():
        _check_place(path, folder.parent, lambda path=path, frame=frame: _columns(path) == [*frame.columns])  # type: ignore[misc]
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        for path, frame in made.items():
            half = stack.enter_context(replacing(path))
            frame.to_parquet(half, index=False) if format == "parquet" else frame.to_csv(half, index=False)
    return list(made)


def _check_place(path: Path, folder: Path, is_ours: Callable[[], bool]) -> None:
    if not folder.is_dir():
        raise UserError(f"-o {path}: there is no folder {folder}")
    try:
        known = not path.exists() or is_ours()
    except (OSError, ValueError):
        known = False
    if not known:
        raise UserError(f"-o {path}: is there already and no export wrote it; write elsewhere with -o")


def _columns(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return list(pq.read_schema(path).names)
    return _first_line(path).rstrip("\n").split(",")


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline(1000)


def frames(chosen: list[SavedRound]) -> dict[str, pd.DataFrame]:
    """The tables of SCHEMAS. Seconds count from the start of a run; what does not exist is missing, never 0."""
    makers: dict[str, Callable[[SavedRound], Iterable[dict[str, Any]]]] = {
        "steps": _steps, "slots": _slots, "kv": _kv, "requests": _requests, "tokens": _tokens
    }  # fmt: skip
    found = {}
    for name, maker in makers.items():
        rows = [{"arm": recorded.arm, "round": recorded.round, **row} for recorded in chosen for row in maker(recorded)]
        columns = {key: pd.array([row[key] for row in rows], dtype=dtype) for key, dtype in SCHEMAS[name].items()}  # type: ignore[call-overload]
        found[name] = pd.DataFrame(columns)
    return found


def _steps(recorded: SavedRound) -> Iterator[dict[str, Any]]:
    same = ("step", "start_s", "end_s", "model_s", "slots", "live", "held", "waiting", "copied_bytes")
    for step in recorded.steps:
        yield {key: step[key] for key in same} | {
            "only_decodes": only_decodes(step), "computed_tokens": sum(num_new for *_, num_new in step["rows"]),
            "padded_positions": sum(padded for _, _, padded, _, _ in step["passes"]), "num_preempted": len(step["preempted"]),
        }  # fmt: skip


def _slots(recorded: SavedRound) -> Iterator[dict[str, Any]]:
    ids: dict[int | None, str] = dict(perfetto.names(recorded).items())
    for span in recorded.spans:
        yield {
            "slot": span.slot, "kind": str(span.kind), "request": span.sequence, "id": ids.get(span.sequence),
            "first_step": span.first_step, "last_step": span.last_step, "num_steps": span.num_steps,
            "start_s": span.start_s, "end_s": span.end_s, "computed_tokens": span.num_tokens,
        }  # fmt: skip


def _kv(recorded: SavedRound) -> Iterator[dict[str, Any]]:
    names = ("used_tokens", "future_tokens", "internal_tokens", "external_tokens", "cached_tokens", "free_tokens")
    parts = dict(zip(names, recorded.memory.parts.values(), strict=True))
    for i, step in enumerate(recorded.steps):
        yield {key: step[key] for key in ("step", "start_s", "end_s")} | {name: int(values[i]) for name, values in parts.items()}


def _requests(recorded: SavedRound) -> Iterator[dict[str, Any]]:
    """Latencies of every request that has them; the tables' population is those with state finished."""
    same = ("state", "prompt_tokens", "max_new_tokens", "arrival_s", "submitted_s", "first_scheduled_s", "num_preemptions",
            "recomputed_tokens")  # fmt: skip
    for r in recorded.requests:
        own = request_latencies(r)
        yield {key: r[key] for key in same} | {
            "cached_tokens": r.get("cached_tokens"),
            "request": r["index"], "id": printable(r["id"]), "reason": r["reason"] and printable(r["reason"]),
            "outcome": r.get("outcome"), "output_tokens": len(r["output_ids"]),
            **{key: next(iter(own[key]), None) for key in ("queue_wait_s", "ttft_s", "e2e_s", "tpot_s")},
        }  # fmt: skip


def _tokens(recorded: SavedRound) -> Iterator[dict[str, Any]]:
    """Position 0 is the first output token; `itl_s` is the gap since the one before."""
    for r in recorded.requests:
        times = r["token_times_s"] or [None] * len(r["output_ids"])
        gaps = [None, *(None if later is None else later - earlier for earlier, later in pairwise(times))]
        for position, (token_id, time_s, itl_s) in enumerate(zip(r["output_ids"], times, gaps, strict=False)):
            whose = {"request": r["index"], "id": printable(r["id"])}
            yield whose | {"position": position, "token_id": token_id, "time_s": time_s, "itl_s": itl_s}
