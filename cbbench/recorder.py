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
from cbbench.jsonl import read_jsonl
from cbbench.load import relocated
from cbbench.model import Model
from cbbench.reference import TIE_TOLERANCE, cached_greedy, gaps
from cbbench.request import Request
from cbbench.workload import check_rows, to_requests

Track = Callable[[list[Request]], Iterable[Request]]


def record(model: Model, source: Path, target: Path, track: Track, say: Callable[[str], None]) -> None:
    """Writes TARGET (.yaml) and the .jsonl beside it. An existing YAML keeps all but its `reference` block.

    Interrupted, it goes on where it was: each reference is kept in the cache directory as soon as it is made.
    Positions where the two best logits nearly tie are named: another kernel may choose the other token there.
    """
    requests = _requests(model, source)
    if not target.parent.is_dir():
        raise UserError(f"-o {target}: there is no folder {target.parent}")
    lines = []
    for request in track(requests):
        output = list(cached_greedy(model, request))
        for position, gap in enumerate(gaps(model, list(request.prompt_ids), output)):
            if gap < TIE_TOLERANCE[model.dtype]:
                say(f"warning: {request.id}: the two best logits at output token {position} differ by {gap:.2g}: choose another prompt")
        lines.append(json.dumps(_line(request, output), ensure_ascii=False))
    name = relocated(model.name, Path.cwd(), target.parent)
    target.with_suffix(".jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    reference = {"reference": {"model": name, "dtype": str(model.dtype).removeprefix("torch."), "digest": model.digest}}
    target.write_text(_with_block(_yaml_text(target, name), yaml.safe_dump(reference, sort_keys=False)), encoding="utf-8")


def _requests(model: Model, source: Path) -> list[Request]:
    """The source's requests, each of which the model can answer."""
    raw = [(place, _as_prompt(model, place, data)) for place, data in read_jsonl(source)]
    rows, places = check_rows(raw)
    if not rows:
        raise UserError(f"{source}: no requests in it")
    requests = to_requests(rows, places, model.encode if model.tokenizer else None, model.vocab_size)
    limit = model.max_positions
    for request, place in zip(requests, places, strict=True):
        if not request.prompt_ids:
            raise UserError(f"{place}: request {request.id!r}: the prompt has no tokens")
        if limit is not None and request.max_kv_tokens > limit:
            raise UserError(f"{place}: request {request.id!r} needs {request.max_kv_tokens} positions, {model.name} has {limit}")
    return requests


def _as_prompt(model: Model, place: str, data: Any) -> Any:
    """The line with `messages` made into `prompt` by the model's chat template."""
    if not isinstance(data, dict) or "messages" not in data:
        return data
    if getattr(model.tokenizer, "chat_template", None) is None:
        raise UserError(f"{place}: messages need a chat template, {model.name} has none; give prompt or prompt_ids")
    try:
        text: str = model.tokenizer.apply_chat_template(data["messages"], add_generation_prompt=True, tokenize=False)  # type: ignore[union-attr]
    except Exception as error:  # whatever a template raises on what it does not understand
        raise UserError(f"{place}: messages do not fit the chat template: {error}") from error
    return {**{key: value for key, value in data.items() if key != "messages"}, "prompt": text}


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


def _yaml_text(target: Path, model_name: str) -> str:
    if target.exists():
        return target.read_text(encoding="utf-8")
    head = {"description": "", "model": model_name, "requests": target.with_suffix(".jsonl").name, "arrivals": "offline"}
    return yaml.safe_dump(head, sort_keys=False)


def _with_block(text: str, block: str) -> str:
    """The text with its top-level `reference` replaced or added; comments and everything else stay."""
    kept = re.sub(r"^reference:.*\n(?:[ \t]+.*\n?|\n)*", "", text, flags=re.MULTILINE)
    return kept.rstrip("\n") + "\n" + block
