"""Name -> strategy class. Knows nothing else: no list to edit, a file in the folder is enough.

A name is a file of the kind's folder, an entry point of the kind's group, or `module:Class`, the current folder included.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from cbbench.errors import UserError
from cbbench.strategy import Strategy

AXES = ("scheduler", "attn", "kv")  # what an arm is made of
KINDS = {
    "scheduler": "cbbench.schedulers", "attn": "cbbench.attention", "kv": "cbbench.kvcache", "importer": "cbbench.importers",
    "peer": "cbbench.peers",
}  # fmt: skip
BASES = {"scheduler": "Scheduler", "attn": "Attention", "kv": "KVCache", "importer": "Importer", "peer": "Peer"}


def names(kind: str) -> list[str]:
    """All that can be written for a kind without `module:Class`. A file wins over an entry point of its name."""
    return sorted({*files(kind), *(point.name for point in entry_points(group=KINDS[kind]))})


def files(kind: str) -> list[str]:
    """The strategies in the kind's folder; files beginning with _ are helpers."""
    package = importlib.import_module(KINDS[kind])
    return [m.name for m in pkgutil.iter_modules(package.__path__) if m.name != "base" and not m.name.startswith("_")]


def find(kind: str, name: str) -> type[Strategy]:
    """The class behind a name. Raises UserError: unknown (with the nearest name), broken, or not a strategy."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)  # a console script has not got it; last, so that it hides nothing
        return _checked(kind, name, _import(name, module), attribute)
    if name in files(kind):
        return _only_strategy(kind, name, _import(name, f"{KINDS[kind]}.{name}"))
    for point in entry_points(group=KINDS[kind]):
        if point.name == name:
            return _checked(kind, name, _import(name, point.module), point.attr)
    near = difflib.get_close_matches(name, names(kind), n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names(kind))}"
    raise UserError(f"no {kind} named {name!r}; {hint}")


def _import(name: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a foreign file raises must not take the listing down
        raise UserError(f"{name}: {module} cannot be imported: {type(error).__name__}: {error}") from error


def _base(kind: str) -> type[Strategy]:
    base: type[Strategy] = getattr(importlib.import_module(f"{KINDS[kind]}.base"), BASES[kind])
    return base


def _checked(kind: str, name: str, module: ModuleType, attribute: str) -> type[Strategy]:
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and issubclass(found, _base(kind))):
        raise UserError(f"{name}: {module.__name__} has no class {attribute} that extends {BASES[kind]}")
    return found


def _only_strategy(kind: str, name: str, module: ModuleType) -> type[Strategy]:
    own = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, _base(kind)) and v.__module__ == module.__name__]
    if len(own) != 1:
        raise UserError(f"{name}: {module.__name__} must hold exactly one class that extends {BASES[kind]}, it holds {len(own)}")
    return own[0]
