"""`cbbench workload record`: prompts -> a workload with the reference tokens of plain greedy generation.

A source line is a request line that may have `messages` instead of `prompt`: the model's chat template is applied and
the resulting text stored as `prompt`, so what is fed to the model stands in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from cbbench.errors import UserError
from cbbench.model import Model
from cbbench.reference import TIE_TOLERANCE, cached_greedy, gaps
from cbbench.request import Request
from cbbench.workload import check_row, read_jsonl

Track = Callable[[list[Request]], Iterable[Request]]


def record(model: Model, source: Path, target: Path, track: Track, say: Callable[[str], None]) -> None:
    """Writes TARGET (.yaml) and the .jsonl beside it. An existing YAML keeps all but its `reference` block.

    Interrupted, it goes on where it was: each reference is kept in the cache directory as soon as it is made.
    Positions where the two best logits nearly tie are named: another kernel may choose the other token there.
    """
    requests = [_request(model, place, data) for place, data in read_jsonl(source)]
    if not requests:
        raise UserError(f"{source}: no requests in it")
    lines = []
    for request in track(requests):
        output = list(cached_greedy(model, request))
        for position, gap in enumerate(gaps(model, list(request.prompt_ids), output)):
            if gap < TIE_TOLERANCE[model.dtype]:
                say(
                    f"warning: {request.id}: the two best logits at output token {position} differ by only {gap:.2g}; choose another prompt"
                )
        lines.append(json.dumps(_line(request, output), ensure_ascii=False))
    target.with_suffix(".jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    reference = {"reference": {"model": model.name, "dtype": str(model.dtype).removeprefix("torch."), "digest": model.digest}}
    target.write_text(_with_block(_yaml_text(target, model), yaml.safe_dump(reference, sort_keys=False)), encoding="utf-8")


def _request(model: Model, place: str, data: Any) -> Request:
    if isinstance(data, dict) and "messages" in data:
        data = {**data, "prompt": _templated(model, place, data["messages"])}
        del data["messages"]
    row = check_row(place, data)
    if row.prompt_ids is None and model.tokenizer is None:
        raise UserError(f"{place}: request {row.id!r} has text but {model.name} has no tokenizer; give prompt_ids")
    ids = row.prompt_ids if row.prompt_ids is not None else model.tokenizer(row.prompt).input_ids  # type: ignore[misc]
    if not ids:
        raise UserError(f"{place}: request {row.id!r}: the prompt has no tokens")
    request = Request(row.id, tuple(ids), row.max_new_tokens, row.arrival_s, row.ignore_eos, None, row.prompt, row.meta)
    if model.max_positions is not None and request.max_kv_tokens > model.max_positions:
        raise UserError(f"{place}: request {row.id!r} needs {request.max_kv_tokens} positions, {model.name} has {model.max_positions}")
    return request


def _templated(model: Model, place: str, messages: Any) -> str:
    if getattr(model.tokenizer, "chat_template", None) is None:
        raise UserError(f"{place}: messages need a chat template, {model.name} has none; give prompt or prompt_ids")
    try:
        text: str = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)  # type: ignore[union-attr]
    except Exception as error:  # whatever a template raises on what it does not understand
        raise UserError(f"{place}: messages do not fit the chat template: {error}") from error
    return text


def _line(request: Request, output: list[int]) -> dict[str, Any]:
    line: dict[str, Any] = {"id": request.id}
    if request.prompt is not None:
        line["prompt"] = request.prompt
    line |= {"prompt_ids": list(request.prompt_ids), "max_new_tokens": request.max_new_tokens}
    if request.arrival_s:
        line["arrival_s"] = request.arrival_s
    if request.ignore_eos:
        line["ignore_eos"] = True
    if request.meta:
        line["meta"] = request.meta
    return line | {"output_ids": output}


def _yaml_text(target: Path, model: Model) -> str:
    if target.exists():
        return target.read_text(encoding="utf-8")
    head = {"description": "", "model": model.name, "requests": target.with_suffix(".jsonl").name, "arrivals": "offline"}
    return yaml.safe_dump(head, sort_keys=False)


def _with_block(text: str, block: str) -> str:
    """The text with its top-level `reference` replaced or added; comments and everything else stay."""
    kept = re.sub(r"^reference:.*\n(?:[ \t]+.*\n?|\n)*", "", text, flags=re.MULTILINE)
    return kept.rstrip("\n") + "\n" + block
