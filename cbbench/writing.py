"""Writing a workload: NAME.jsonl with the requests, NAME.yaml with everything else. Whole files or none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from cbbench.errors import UserError
from cbbench.rows import RequestRow

_BLANK = RequestRow(id="-", max_new_tokens=1)
DEFAULTS = {field.name: getattr(_BLANK, field.name) for field in fields(RequestRow)} | {"id": None, "max_new_tokens": None}


def check_target(path: Path) -> None:
    """Raises UserError where nothing could be written."""
    if path.suffix != ".yaml":
        raise UserError(f"-o {path}: should be NAME.yaml")
    if not path.parent.is_dir():
        raise UserError(f"-o {path}: there is no folder {path.parent}")


def write_rows(target: Path, rows: Iterable[RequestRow]) -> None:
    """NAME.jsonl beside NAME.yaml; a field at its default is left out."""
    path = target.with_suffix(".jsonl")
    half = path.with_name(f".{path.name}")
    with half.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(as_line(row))
    half.replace(path)


def as_line(row: RequestRow) -> str:
    said = {}
    for name, default in DEFAULTS.items():
        value = getattr(row, name)
        if value != default:
            said[name] = list(value) if name == "blocks" else value
    return json.dumps(said, ensure_ascii=False) + "\n"


def update_yaml(target: Path, head: dict[str, Any], blocks: dict[str, Any], text: str | None = None) -> None:
    """Replaces or adds the blocks in the file as it stands, else in `text`, else behind the head."""
    if target.exists():
        text = target.read_text(encoding="utf-8")
    if text is None:
        text = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120)
    for key, value in blocks.items():
        text = with_block(text, key, value)
    half = target.with_name(f".{target.name}")
    half.write_text(text, encoding="utf-8")
    half.replace(target)


def with_block(text: str, key: str, value: Any) -> str:
    """The YAML text with its top-level `key` replaced or added; comments and everything else stay."""
    block = yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True, width=120)
    pattern = re.compile(rf"^{key}:.*\n?(?:[ \t]+.*\n?|- .*\n?|\n(?=[ \t]))*", re.MULTILINE)
    if pattern.search(text):
        return pattern.sub(lambda _: block, text, count=1)
    return text.rstrip("\n") + ("\n" if text.strip() else "") + block
