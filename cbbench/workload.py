"""Recorded workloads: read, check, resolve to requests, digest.

`NAME.yaml` says what to run, `NAME.jsonl` holds a request a line (the README of workloads/ shows both).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from cbbench.arrivals import Arrivals, ArrivalsField, arriving
from cbbench.budget import budget_tokens
from cbbench.errors import UserError
from cbbench.jsonl import Raw, read_jsonl
from cbbench.request import Request
from cbbench.strict import Strict
from cbbench.yaml_source import YamlSource, explain, read_yaml


class RequestRow(Strict):
    """One line of the JSONL. `prompt_ids` win over `prompt`, which then only says what they spell."""

    id: str = Field(min_length=1)
    prompt: str | None = None
    prompt_ids: list[Annotated[int, Field(ge=0)]] | None = None
    max_new_tokens: int = Field(ge=1)
    arrival_s: float = Field(0.0, ge=0)
    ignore_eos: bool = False
    output_ids: list[Annotated[int, Field(ge=0)]] | None = None
    meta: dict[str, Any] | None = None


def _requests(written: Any) -> Any:
    if isinstance(written, str):
        return written
    if not isinstance(written, list) or not all(isinstance(row, dict) for row in written):
        raise ValueError("should be the name of a .jsonl file, or a list of requests, each a mapping")
    return written


def _named(choice: Any) -> Any:
    """`kv: paged` is short for `kv: {name: paged}`."""
    if isinstance(choice, str):
        return {"name": choice}
    if not isinstance(choice, dict) or not isinstance(choice.get("name"), str):
        raise ValueError("should be a strategy's name, or a mapping with `name` and its options")
    return choice


Choice = Annotated[dict[str, Any], BeforeValidator(_named)]


class ArmChoice(Strict):
    """Which strategies, under which limits; what is left out comes from `engine`."""

    scheduler: Choice | None = None
    attn: Choice | None = None
    kv: Choice | None = None
    max_num_seqs: int | None = Field(None, ge=1)
    memory_budget: str | None = None

    @field_validator("memory_budget")
    @classmethod
    def _understood(cls, text: str | None) -> str | None:
        if text is not None:
            budget_tokens(text, 1)
        return text


class Measure(Strict):
    warmup: int = Field(1, ge=0, description="short passes before each cell, not measured")
    rounds: int = Field(3, ge=1)


class Cost(Strict):
    """What a step costs under the virtual clock (`model: none`)."""

    step_s: float = Field(1.0, gt=0)
    position_s: float = Field(0.0, ge=0)


class Recorded(Strict):
    """The model that the reference tokens come from."""

    model: str
    dtype: str
    digest: str


class WorkloadFile(Strict):
    """The YAML."""

    description: str = ""
    model: str = "smollm2-135m"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    requests: Annotated[str | list[dict[str, Any]], BeforeValidator(_requests)]
    arrivals: ArrivalsField = Arrivals()
    engine: ArmChoice = ArmChoice()
    arms: list[ArmChoice] = Field(default_factory=list)
    measure: Measure = Measure()
    cost: Cost = Cost()
    reference: Recorded | None = None


@dataclass(frozen=True)
class Workload:
    """A workload as it stands on disk, checked, not yet tokenised."""

    source: YamlSource
    file: WorkloadFile
    rows: list[RequestRow]
    places: list[str]  # file:line of each row

    @property
    def path(self) -> Path:
        return self.source.path

    @property
    def name(self) -> str:
        return self.path.stem


def read_workload(path: Path) -> Workload:
    """Raises UserError with file:line for whatever cannot be run."""
    source = read_yaml(path)
    if not isinstance(source.data, dict):
        raise UserError(f"{path}:1:1: a workload is a mapping with at least `requests`")
    try:
        file = WorkloadFile.model_validate(source.data)
    except ValidationError as error:
        raise explain(error, WorkloadFile, source.where) from error
    rows, places = check_rows(_raw_rows(source, file.requests))
    if not rows:
        raise UserError(f"{source.where(['requests'])}: the workload has no requests")
    return Workload(source, file, rows, places)


def _raw_rows(source: YamlSource, requests: str | list[dict[str, Any]]) -> Raw:
    if not isinstance(requests, str):
        return [(source.where(["requests", index]), row) for index, row in enumerate(requests)]
    folder, asked_at = source.path.parent, source.where(["requests"])
    try:
        inside = (folder / requests).resolve().is_relative_to(folder.resolve())
    except ValueError as error:
        raise UserError(f"{asked_at}: {requests!r} is no file name: {error}") from error
    if not inside:
        raise UserError(f"{asked_at}: {requests} lies outside the workload's folder")
    return read_jsonl(folder / requests, f"{asked_at}: ")


def check_rows(raw: Raw) -> tuple[list[RequestRow], list[str]]:
    """Rows and the place of each. Raises UserError at the first that is wrong or whose id was given before."""
    rows: list[RequestRow] = []
    seen: dict[str, str] = {}
    for place, data in raw:
        row = _check_row(place, data)
        if row.id in seen:
            raise UserError(f"{place}: id {row.id!r} was given before, at {seen[row.id]}")
        seen[row.id] = place
        rows.append(row)
    return rows, list(seen.values())


def _check_row(place: str, data: Any) -> RequestRow:
    try:
        row = RequestRow.model_validate(data)
    except ValidationError as error:
        raise explain(error, RequestRow, lambda _: place) from error
    if row.prompt is None and row.prompt_ids is None:
        raise UserError(f"{place}: request {row.id!r} has neither prompt nor prompt_ids")
    return row


Encode = Callable[[str], list[int]]


def resolve(workload: Workload, encode: Encode | None, vocab_size: int | None = None) -> list[Request]:
    """The workload's requests, with token ids and arrival times."""
    return arriving(to_requests(workload.rows, workload.places, encode, vocab_size), workload.file.arrivals)


def to_requests(rows: list[RequestRow], places: list[str], encode: Encode | None, vocab_size: int | None = None) -> list[Request]:
    """Requests with token ids. `encode` is the model's tokenizer, None where there is none.

    An empty prompt stays: the engine refuses that one request. A prompt that the model cannot read is an error.
    """
    requests = []
    for row, place in zip(rows, places, strict=True):
        ids = row.prompt_ids
        if ids is None:
            if encode is None:
                raise UserError(f"{place}: request {row.id!r} has text but the model has no tokenizer; give prompt_ids")
            ids = encode(row.prompt or "")
        if vocab_size is not None and max(ids, default=0) >= vocab_size:
            raise UserError(f"{place}: request {row.id!r}: token id {max(ids)} is outside the model's vocabulary of {vocab_size}")
        output = None if row.output_ids is None else tuple(row.output_ids)
        requests.append(Request(row.id, tuple(ids), row.max_new_tokens, row.arrival_s, row.ignore_eos, output, row.prompt, row.meta))
    return requests


def digest(requests: list[Request]) -> str:
    """SHA-256 of what is computed: token ids, lengths, arrivals; not names, text or comments."""
    lines = [json.dumps([r.prompt_ids, r.max_new_tokens, r.ignore_eos, r.arrival_s]) for r in requests]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def longest_tokens(requests: list[Request], max_positions: int | None) -> int:
    """Key-value positions of the longest request that the model could run."""
    lengths = [r.max_kv_tokens for r in requests if r.prompt_ids]
    return max((n for n in lengths if n <= (max_positions or math.inf)), default=1)
