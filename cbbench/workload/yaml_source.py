"""YAML that remembers where every value stood, so that an error can name file, line and column."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from cbbench.errors import UserError

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class YamlSource:
    """A parsed file: plain data, and the line and column of each key and list entry."""

    path: Path
    data: Any
    marks: dict[Loc, tuple[int, int]]

    def where(self, loc: Iterable[str | int]) -> str:
        """`file:line:column` of a value, or of the nearest thing around it."""
        loc = tuple(loc)
        while loc and loc not in self.marks:
            loc = loc[:-1]
        line, column = self.marks.get(loc, (1, 1))
        return f"{self.path}:{line}:{column}"


def read_yaml(path: Path) -> YamlSource:
    """Safe YAML only. Raises UserError with the place of a syntax error or a key given twice."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error.strerror if isinstance(error, OSError) else error}") from error
    marks: dict[Loc, tuple[int, int]] = {}
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _walk(path, node, (), marks)
        return YamlSource(path, yaml.safe_load(text), marks)
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply, or an alias that contains itself") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise UserError(f"{place}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def _walk(path: Path, node: yaml.Node | None, loc: Loc, marks: dict[Loc, tuple[int, int]]) -> None:
    if node is None:
        return
    marks.setdefault(loc, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line, column = key.start_mark.line + 1, key.start_mark.column + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"{path}:{line}:{column}: a key should be plain text")
            inner = (*loc, key.value)
            if inner in marks:
                raise UserError(f"{path}:{line}:{column}: key {key.value!r} is given twice")
            marks[inner] = (line, column)
            _walk(path, value, inner, marks)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(path, value, (*loc, index), marks)


def explain(error: ValidationError, model: type[Any], where: Callable[[Loc], str]) -> UserError:
    """The first problem of a pydantic error as one line; `where` maps a location to a place in words."""
    problem = error.errors()[0]
    loc = tuple(part for part in problem["loc"] if not (isinstance(part, str) and part.startswith("function-")))
    name = ".".join(str(part) for part in loc)
    kind = problem["type"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _keys_at(model, loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known keys: {', '.join(known) or 'none'}"
        return UserError(f"{where(loc)}: unknown key {name!r}{hint}")
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind.startswith("missing"):
        message = "Field required"
    if kind in ("model_type", "dataclass_type", "dataclass_exact_type"):
        message = "should be a mapping"
    got = "" if kind.startswith("missing") or kind == "value_error" else f", got {problem['input']!r}"[:80]
    return UserError(f"{where(loc)}: {name}: {message}{got}" if name else f"{where(loc)}: {message}{got}")


def _keys_at(model: type[Any], loc: Loc) -> list[str]:
    """The keys that a model knows at a location inside it; none where it takes any."""
    for part in loc:
        if isinstance(part, str):
            inner = _model_in(model.__pydantic_fields__[part].annotation)
            if inner is None:
                return []
            model = inner
    return sorted(model.__pydantic_fields__)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside `Model`, `Model | None` or `list[Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
