"""Recorded workloads: read, check, resolve to requests, digest.

`NAME.yaml` says what to run, `NAME.jsonl` holds a request a line (the README of workloads/ shows both).
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from cbbench.errors import UserError
from cbbench.request import Request
from cbbench.strict import Strict
from cbbench.workload.arrivals import Arrivals, ArrivalsField, arriving
from cbbench.workload.budget import budget_tokens
from cbbench.workload.jsonl import Lines, read_jsonl
from cbbench.workload.prompts import HashedPrompt, PromptRecipe
from cbbench.workload.rows import Rows, Vocabulary, check_rows, to_requests
from cbbench.workload.yaml_source import YamlSource, explain, read_yaml


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
    baseline: bool = False  # of an arm: `compare` holds the others against it

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
    prompts: PromptRecipe = PromptRecipe()
    engine: ArmChoice = ArmChoice()
    arms: list[ArmChoice] = Field(default_factory=list)
    measure: Measure = Measure()
    cost: Cost = Cost()
    chat_template: Literal["all", "some", "none"] | None = Field(None, description="which prompts a chat template made")
    reference: Recorded | None = None
    source: dict[str, Any] | None = Field(None, description="where the requests came from; says nothing about what is run")


@dataclass(frozen=True)
class Workload:
    """A workload as it stands on disk, checked, not yet tokenised."""

    source: YamlSource
    file: WorkloadFile
    rows: Rows

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
    rows = check_rows(_lines(source, file.requests), file.prompts)
    if not rows.rows:
        raise UserError(f"{source.where(['requests'])}: the workload has no requests")
    return Workload(source, file, rows)


def _lines(source: YamlSource, requests: str | list[dict[str, Any]]) -> Lines:
    if not isinstance(requests, str):
        return Lines(lambda: enumerate(requests), lambda index: source.where(["requests", index]))
    folder, asked_at = source.path.parent, source.where(["requests"])
    try:
        inside = (folder / requests).resolve().is_relative_to(folder.resolve())
    except ValueError as error:
        raise UserError(f"{asked_at}: {requests!r} is no file name: {error}") from error
    if not inside:
        raise UserError(f"{asked_at}: {requests} lies outside the workload's folder")
    return read_jsonl(folder / requests, f"{asked_at}: ")


def resolve(workload: Workload, vocabulary: Vocabulary | None) -> list[Request]:
    """The workload's requests, with token ids and arrival times. Without a vocabulary: that of no model."""
    requests = to_requests(workload.rows, vocabulary or Vocabulary(), workload.file.prompts)
    return arriving(requests, workload.file.arrivals)


def digest(requests: list[Request]) -> str:
    """SHA-256 of what is computed: token ids, lengths, arrivals; not names, text or comments."""
    sha = hashlib.sha256()
    place = {r.id: index for index, r in enumerate(requests)}
    for index, r in enumerate(requests):
        prompt = r.prompt_ids.recipe if isinstance(r.prompt_ids, HashedPrompt) else tuple(r.prompt_ids)
        when = [r.arrival_s] if r.after is None else [None, place[r.after], r.think_s]
        asked = [prompt, r.max_new_tokens, r.ignore_eos, *when]
        sha.update((("\n" if index else "") + json.dumps(asked)).encode())
    return sha.hexdigest()[:16]


def longest_tokens(requests: list[Request], max_positions: int | None) -> int:
    """Key-value positions of the longest request that the model could run."""
    lengths = [r.max_kv_tokens for r in requests if r.prompt_ids]
    return max((n for n in lengths if n <= (max_positions or math.inf)), default=1)
