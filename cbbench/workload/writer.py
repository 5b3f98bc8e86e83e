"""Writing a workload: NAME.jsonl with the requests, NAME.yaml with everything else. Whole files or none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from cbbench.atomic import replacing
from cbbench.errors import UserError
from cbbench.workload.rows import RequestRow
from cbbench.workload.yaml_source import read_yaml

_BLANK = RequestRow(id="-", max_new_tokens=1)
DEFAULTS = {field.name: getattr(_BLANK, field.name) for field in fields(RequestRow)} | {"id": None, "max_new_tokens": None}


def check_target(path: Path, source: Path | None = None) -> None:
    """Raises UserError where nothing could be written, or only over the source."""
    if path.suffix != ".yaml":
        raise UserError(f"-o {path}: should be NAME.yaml")
    if not path.parent.is_dir():
        raise UserError(f"-o {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UserError(f"{path}: is a folder")
    if source is not None:
        refuse_overwriting(path, source)
    if path.exists():
        with_blocks(path, {"requests": "-", "source": {}})


def refuse_overwriting(target: Path, source: Path) -> None:
    """Raises UserError where the workload would be written over what it is made from."""
    if source.resolve() == target.with_suffix(".jsonl").resolve():
        raise UserError(f"{source}: the requests would overwrite it; write to another name with -o")


def write_rows(target: Path, rows: Iterable[RequestRow]) -> None:
    """NAME.jsonl beside NAME.yaml; a field at its default is left out."""
    path = target.with_suffix(".jsonl")
    with replacing(path) as half, half.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(as_line(row))


def as_line(row: RequestRow) -> str:
    said = {}
    for name, default in DEFAULTS.items():
        value = getattr(row, name)
        if value != default:
            said[name] = list(value) if name == "blocks" else value
    text = json.dumps(said, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a character, as JSON can hold
        text = json.dumps(said)
    return text + "\n"


def update_yaml(target: Path, head: dict[str, Any], blocks: dict[str, Any], text: str | None = None) -> None:
    """Replaces or adds the blocks (None removes one) in the file as it stands, else in `text`, else behind the head."""
    if target.exists():
        new = with_blocks(target, blocks)
    else:
        old = text or _dumped(head)
        new = _replaced(old, blocks) or _dumped(_merged(yaml.safe_load(old), blocks))
    with replacing(target) as half:
        half.write_text(new, encoding="utf-8")


def with_blocks(path: Path, blocks: dict[str, Any]) -> str:
    """Its text with the blocks in it. Raises UserError where they cannot be put in without harm to the rest."""
    read_yaml(path)
    new = _replaced(path.read_text(encoding="utf-8-sig"), blocks)
    if new is None:
        raise UserError(f"{path}: {', '.join(blocks)} cannot be replaced in it as it is written; write to another file, or move it away")
    return new


def _replaced(text: str, blocks: dict[str, Any]) -> str | None:
    """Comments and everything else stay; None where they would not."""
    try:
        new, old = text, yaml.safe_load(text) or {}
        for key, value in blocks.items():
            if key not in old or old[key] != value:
                new = with_block(new, key, value)
        return new if yaml.safe_load(new) == _merged(old, blocks) else None
    except (yaml.YAMLError, TypeError, AttributeError):
        return None


def _merged(old: dict[str, Any], blocks: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**old, **blocks}.items() if value is not None}


def _dumped(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def with_block(text: str, key: str, value: Any) -> str:
    """The YAML text with its top-level `key` replaced, added or, for None, removed."""
    block = "" if value is None else _dumped({key: value})
    lines = text.splitlines(keepends=True)
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for name, inner in node.value if isinstance(node, yaml.MappingNode) else []:
        if name.value == key:
            start, end = name.start_mark.line, inner.end_mark.line + (inner.end_mark.column > 0)
            while end - 1 > start and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
                end -= 1  # what is said above the next key is the next key's
            return "".join([*lines[:start], block, *lines[end:]])
    return text if value is None else text.rstrip("\n") + ("\n" if text.strip() else "") + block
