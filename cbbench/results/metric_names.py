"""A metric by any of its names: `ttft_s_p90` as in files, `TTFT p90` as in tables, `ttft_p90` without the unit, `ttft` for the
median. Every option that takes a metric reads it here."""

from __future__ import annotations

import difflib
import re
from functools import cache

from cbbench.errors import UserError
from cbbench.results.columns import COLUMNS
from cbbench.results.compared_metrics import ALIASES, METRICS
from cbbench.results.definitions import DEFINITIONS

POINTS = ("mean", "p50", "p90", "p99", "max")
OTHER_NAMES = {"tok/s": "output_tok_per_s", "output tok/step": "output_tok_per_s", "padding": "prefill_padding_frac"}


def find_metric(name: str) -> str | None:
    """The name as in summary.csv; None where nothing is called so."""
    return _index().get(_plain(name))


def metric_key(where: str, name: str) -> str:
    """The same; raises UserError with the nearest name. `where` says what asked for it."""
    if (key := find_metric(name)) is not None:
        return key
    index = _index()
    near = difflib.get_close_matches(_plain(name), index, n=1)
    hint = f"did you mean {index[near[0]]}?" if near else "`cbbench list metrics` names them all"
    raise UserError(f"{where} {name}: no such metric; {hint}")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


@cache
def _index() -> dict[str, str]:
    """Every spelling -> key; of two metrics with one spelling the earlier in the order of `list metrics`."""
    keys = [key for definitions in DEFINITIONS.values() for d in definitions for key in _expanded(d.name)]
    titled = [(key, metric.title) for key, metric in METRICS.items()] + [(key, column.title) for key, column in COLUMNS.items()]
    found: dict[str, str] = {}
    for key in keys:
        stem = key.removesuffix("_p50")
        spelled = [key, key.replace("_s_", "_"), *(title for other, title in titled if other == key)]
        if stem != key:
            spelled += [stem, stem.removesuffix("_s"), *(name.removesuffix(" p50") for name in spelled)]
        for name in spelled:
            found.setdefault(_plain(name), key)
    for name, key in {**OTHER_NAMES, **ALIASES}.items():
        found.setdefault(_plain(name), key)
    return found


def _expanded(name: str) -> list[str]:
    """`ttft_s_*` stands for five."""
    return [name.replace("*", point) for point in POINTS] if name.endswith("*") else [name]
