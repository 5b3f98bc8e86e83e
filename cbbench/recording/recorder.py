"""`cbbench workload record`: prompts -> a workload with the reference tokens of plain greedy generation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from cbbench.errors import UserError
from cbbench.model.load import relocated
from cbbench.model.model import Model
from cbbench.model.reference import TIE_TOLERANCE, cached_greedy, gaps
from cbbench.recording.sources import Source
from cbbench.request import Request
from cbbench.workload.prompts import HashedPrompt
from cbbench.workload.rows import RequestRow, to_requests
from cbbench.workload.writer import update_yaml, write_rows
from cbbench.workload.yaml_source import read_yaml

Track = Callable[[list[Any]], Iterable[Any]]


def record(model: Model, base_dir: Path, source: Source, target: Path, track: Track, say: Callable[[str], None]) -> None:
    """Writes TARGET (.yaml) and the .jsonl beside it. An existing YAML keeps all but what is recorded.

    Interrupted, it goes on where it was: each reference is kept in the cache directory as soon as it is made.
    Positions where the two best logits nearly tie are named: another kernel may choose the other token there.
    """
    requests = _answerable(model, source)
    write_rows(target, _answered(model, source.rows.rows, track(requests), say))
    name = relocated(model.name, base_dir, target.parent)
    dtype = str(model.dtype).removeprefix("torch.")
    recorded = {"model": name, "dtype": dtype, "digest": model.digest}
    blocks = {"model": name, "requests": target.with_suffix(".jsonl").name, "chat_template": source.chat_template, "reference": recorded}
    known = read_yaml(target).data if target.exists() else {}
    if dtype != (known or {}).get("dtype", "float32"):
        blocks["dtype"] = dtype
    update_yaml(target, {"description": "", "model": name, "arrivals": "offline"}, blocks, source.yaml_text)


def _answerable(model: Model, source: Source) -> list[Request]:
    """The source's requests, each of which the model can answer."""
    requests = to_requests(source.rows, model.vocabulary, source.recipe)
    limit = model.max_positions
    for index, request in enumerate(requests):
        if not request.prompt_ids:
            raise UserError(f"{source.rows.where(index)}: request {request.id!r}: the prompt has no tokens")
        if limit is not None and request.max_kv_tokens > limit:
            raise UserError(
                f"{source.rows.where(index)}: request {request.id!r} needs {request.max_kv_tokens} positions, {model.name} has {limit}"
            )
    return requests


def _answered(model: Model, rows: list[RequestRow], requests: Iterable[Request], say: Callable[[str], None]) -> Iterator[RequestRow]:
    for row, request in zip(rows, requests, strict=True):
        output = list(cached_greedy(model, request))
        for position, gap in enumerate(gaps(model, list(request.prompt_ids), output)):
            if gap < TIE_TOLERANCE[model.dtype]:
                say(f"warning: {row.id}: the two best logits at output token {position} differ by {gap:.2g}: choose another prompt")
        if not isinstance(request.prompt_ids, HashedPrompt):
            row.prompt, row.messages, row.prompt_ids = request.prompt, None, list(request.prompt_ids)
        row.output_ids = output
        yield row
