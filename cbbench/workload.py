"""Recorded workloads: read, check, resolve to requests, digest.

`NAME.yaml` says what to run, `NAME.jsonl` holds a request a line (the README of workloads/ shows both).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from cbbench.budget import budget_tokens
from cbbench.errors import UserError
from cbbench.request import Request
from cbbench.yaml_source import YamlSource, explain, read_yaml


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


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


class Poisson(Strict):
    rate_per_s: float = Field(gt=0)
    seed: int = Field(0, ge=0)


class Gamma(Poisson):
    cv: float = Field(gt=0, description="coefficient of variation of the gaps; 1 is Poisson")


class PoissonArrivals(Strict):
    poisson: Poisson


class GammaArrivals(Strict):
    gamma: Gamma


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
    requests: str | list[dict[str, Any]]
    arrivals: Literal["offline", "recorded"] | PoissonArrivals | GammaArrivals = "offline"
    engine: ArmChoice = ArmChoice()
    arms: list[ArmChoice] = []
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
    rows, places = read_rows(path.parent, file.requests, source)
    if not rows:
        raise UserError(f"{source.where(['requests'])}: the workload has no requests")
    return Workload(source, file, rows, places)


def read_rows(folder: Path, requests: str | list[dict[str, Any]], source: YamlSource) -> tuple[list[RequestRow], list[str]]:
    """The rows and the place of each; ids are unique."""
    if isinstance(requests, str):
        path = (folder / requests).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise UserError(f"{source.where(['requests'])}: {requests} lies outside the workload's folder")
        raw = read_jsonl(folder / requests, source.where(["requests"]))
    else:
        raw = [(source.where(["requests", index]), row) for index, row in enumerate(requests)]
    rows: list[RequestRow] = []
    places: list[str] = []
    seen: dict[str, str] = {}
    for place, data in raw:
        row = check_row(place, data)
        if row.id in seen:
            raise UserError(f"{place}: id {row.id!r} was given before, at {seen[row.id]}")
        seen[row.id] = place
        rows.append(row)
        places.append(place)
    return rows, places


def read_jsonl(path: Path, asked_at: str = "") -> list[tuple[str, Any]]:
    """(file:line, value) of each line that is not blank."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise UserError(f"{asked_at + ': ' if asked_at else ''}{path}: {reason}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append((f"{path}:{number}", json.loads(line)))
            except json.JSONDecodeError as error:
                raise UserError(f"{path}:{number}:{error.colno}: not valid JSON: {error.msg}") from error
    return found


def check_row(place: str, data: Any) -> RequestRow:
    try:
        row = RequestRow.model_validate(data)
    except ValidationError as error:
        raise explain(error, RequestRow, lambda _: place) from error
    if row.prompt is None and row.prompt_ids is None:
        raise UserError(f"{place}: request {row.id!r} has neither prompt nor prompt_ids")
    return row


Encode = Callable[[str], list[int]]


def resolve(workload: Workload, encode: Encode | None, vocab_size: int | None = None) -> list[Request]:
    """Requests with token ids and arrival times. `encode` is the model's tokenizer, None where there is none.

    An empty prompt stays: the engine refuses that one request. A prompt that the model cannot read is an error.
    """
    requests = []
    for row, place in zip(workload.rows, workload.places, strict=True):
        ids = row.prompt_ids
        if ids is None:
            if encode is None:
                raise UserError(f"{place}: request {row.id!r} has text but the model has no tokenizer; give prompt_ids")
            ids = encode(row.prompt or "")
        if vocab_size is not None and max(ids, default=0) >= vocab_size:
            raise UserError(f"{place}: request {row.id!r}: token id {max(ids)} is outside the model's vocabulary of {vocab_size}")
        output = None if row.output_ids is None else tuple(row.output_ids)
        requests.append(Request(row.id, tuple(ids), row.max_new_tokens, row.arrival_s, row.ignore_eos, output, row.prompt, row.meta))
    times = arrival_times([request.arrival_s for request in requests], workload.file.arrivals)
    return [replace(request, arrival_s=time) for request, time in zip(requests, times, strict=True)]


def arrival_times(recorded: list[float], arrivals: str | PoissonArrivals | GammaArrivals) -> list[float]:
    """Seconds from the start; gaps of a renewal process with the given rate and coefficient of variation."""
    if arrivals == "offline":
        return [0.0] * len(recorded)
    if isinstance(arrivals, PoissonArrivals):
        process, cv = arrivals.poisson, 1.0
    elif isinstance(arrivals, GammaArrivals):
        process, cv = arrivals.gamma, arrivals.gamma.cv
    else:
        return recorded
    shape = 1 / cv**2
    gaps = np.random.default_rng(process.seed).gamma(shape, 1 / (process.rate_per_s * shape), len(recorded))
    return [float(time) for time in np.cumsum(gaps) - gaps[0]]


def digest(requests: list[Request]) -> str:
    """SHA-256 of what is computed: token ids, lengths, arrivals; not names, text or comments."""
    lines = [json.dumps([r.prompt_ids, r.max_new_tokens, r.ignore_eos, r.arrival_s]) for r in requests]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def longest_tokens(requests: list[Request], max_positions: int | None) -> int:
    """Key-value positions of the longest request that the model could run."""
    lengths = [r.max_kv_tokens for r in requests if r.prompt_ids]
    return max((n for n in lengths if n <= (max_positions or math.inf)), default=1)
