"""Where a recording's prompts come from: a text file, JSON, JSON lines, chats, or a workload that has no reference yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cbbench.errors import UserError
from cbbench.workload.file import read_workload
from cbbench.workload.jsonl import Lines, decode, read_jsonl
from cbbench.workload.prompts import PromptRecipe
from cbbench.workload.rows import Rows, check_rows


@dataclass(frozen=True)
class Source:
    """Checked rows. `chat_template`: whether `all`, `some` or `none` of them are messages that a template turns into text."""

    rows: Rows
    recipe: PromptRecipe
    yaml_text: str | None  # of a source that is a workload
    chat_template: str


def read_source(path: Path, chat: bool, max_new_tokens: int | None) -> Source:
    """`chat` makes each plain prompt a user's message. `max_new_tokens` is for lines that say none, `line-N` their id.

    .txt: a prompt a line. .jsonl and .json: request lines, or {"messages": [...]}. .yaml: a workload. Raises UserError.
    """
    if path.suffix == ".yaml":
        if chat or max_new_tokens:
            raise UserError(
                f"{path}: a workload says itself how each prompt is made and how long its output is: no --chat, no --max-new-tokens"
            )
        workload = read_workload(path)
        lines = workload.rows.rows
        kind = _kind([row.messages is not None for row in lines])
        return Source(workload.rows, workload.file.prompts, path.read_text(encoding="utf-8"), workload.file.chat_template or kind)
    read = {".txt": _text, ".json": _document}.get(path.suffix, read_jsonl)(path)
    lines_ = Lines(lambda: _completed(read, chat, max_new_tokens), read.where)
    recipe = PromptRecipe()
    rows = check_rows(lines_, recipe)
    if not rows.rows:
        raise UserError(f"{path}: no requests in it")
    return Source(rows, recipe, None, _kind([row.messages is not None for row in rows.rows]))


def _kind(chats: list[bool]) -> str:
    return "all" if all(chats) else "some" if any(chats) else "none"


def _completed(read: Lines, chat: bool, max_new_tokens: int | None) -> Iterator[tuple[int, Any]]:
    for number, data in read:
        if isinstance(data, dict):
            given = {"max_new_tokens": max_new_tokens} if max_new_tokens else {}
            data = {"id": f"line-{number}", **given, **data}
            if chat and "messages" not in data and isinstance(data.get("prompt"), str):
                data["messages"] = [{"role": "user", "content": data.pop("prompt")}]
        yield number, data


def _text(path: Path) -> Lines:
    lines = _read(path).split("\n")
    prompts = [(number, {"prompt": line}) for number, line in enumerate((line.rstrip("\r") for line in lines), 1) if line.strip()]
    return Lines(lambda: iter(prompts), lambda number: f"{path}:{number}")


def _document(path: Path) -> Lines:
    try:
        data = decode(_read(path))
    except KeyError as error:
        raise UserError(f"{path}: a key is given twice") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(data, list):
        raise UserError(f"{path}: should be a list of requests; one request a line is .jsonl")
    return Lines(lambda: enumerate(data, 1), lambda number: f"{path}: entry {number}")


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise UserError(f"{path}: {reason}") from error
