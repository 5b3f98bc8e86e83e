"""An arm as a person writes it: `static+padded+cat`, or as the tables name it, with its options in brackets."""

from __future__ import annotations

import ast
import re
from typing import Any

from cbbench.errors import UserError
from cbbench.plugins import AXES, names

OUTSIDE = r"(?![^(\[{]*[)\]}])"  # behind a sign that stands in no bracket
PLUS, COMMA = re.compile(rf"\+{OUTSIDE}"), re.compile(r",(?![^\[{]*[\]}])")


def parse_arm(text: str) -> dict[str, dict[str, Any]]:
    """Axis -> name and options. Raises UserError."""
    if re.search(r"@[0-9a-f]{4,}$|#again$", text):
        raise UserError(f"--arm {text}: names an arm of another revision, or a copy; name the arm itself, with --against REV")
    parts = PLUS.split(text)
    if len(parts) != len(AXES):
        raise UserError(f"--arm {text}: should be scheduler+attn+kv, like static+padded+cat")
    return {axis: _choice(text, part.strip()) for axis, part in zip(AXES, parts, strict=True)}


def peers_of(texts: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Of what --arm names: the arms, the names of other systems (which the tables name as arms, too), and their options as --set
    takes them."""
    known = {name.replace("_", "-") for name in names("peer")}
    arms, peers, sets = [], [], []
    for text in texts:
        name, _, options = text.strip().removesuffix(")").partition("(")
        if name not in known:
            arms.append(text)
            continue
        peers.append(name)
        sets += [f"peer.{option.strip()}" for option in COMMA.split(options) if option]
    return arms, peers, sets


def _choice(arm: str, text: str) -> dict[str, Any]:
    """`paged(block_size=32)` -> its name and options; `gentle.Gentle` is how tables write `gentle:Gentle`."""
    found = re.fullmatch(r"([^()]+)(?:\((.*)\))?", text)
    if found is None:
        raise UserError(f"--arm {arm}: {text!r} should be a name, or a name with its options like paged(block_size=32)")
    name = found[1] if ":" in found[1] else ":".join(found[1].rsplit(".", 1))
    options: dict[str, Any] = {"name": name}
    for pair in COMMA.split(found[2]) if found[2] else []:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--arm {arm}: {pair!r} should be OPTION=VALUE")
        options[key.strip()] = _value(value.strip())
    return options


def _value(text: str) -> Any:
    """As Python prints it; what is nothing else is a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
