"""`cbbench workload import`: somebody's trace or dataset -> a workload, with an account of what was done to it.

Read the window, make texts into tokens, check and tell apart shared blocks, fit lengths, shape arrivals, write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cbbench.errors import UserError
from cbbench.importers.base import TraceRow
from cbbench.importing.fitting import Fit, Fitted, fit
from cbbench.importing.shaping import Shape, Shaped, shape
from cbbench.importing.text_prompts import TextPrompts
from cbbench.importing.trace import Trace, Window, choose_importer, read_trace
from cbbench.importing.trace_files import files_of
from cbbench.workload.arrivals import Arrivals, process_times
from cbbench.workload.prompts import PromptRecipe, block_sizes
from cbbench.workload.rows import RequestRow, Vocabulary
from cbbench.workload.sharing import PrefixHits
from cbbench.workload.statistics import Profile, profile
from cbbench.workload.writer import refuse_overwriting, update_yaml, write_rows


@dataclass(frozen=True)
class Ask:
    """What to import, and how."""

    paths: list[Path]
    format: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    window: Window = field(default_factory=Window)
    fit: Fit = field(default_factory=Fit)
    shape: Shape = field(default_factory=Shape)
    arrivals: Arrivals | None = None  # None: as recorded, where the trace has times
    strict: bool = False
    lengths_only: bool = False
    output_tokens: int | None = None
    zero_output_as_one: bool = False
    namespace: str | None = None
    model: str | None = None


def import_trace(ask: Ask, target: Path, vocabulary: Callable[[], Vocabulary], say: Callable[[str], None]) -> dict[str, Any]:
    """Writes TARGET (.yaml, of which all but the imported part stays) and the .jsonl beside it; returns the account."""
    importer = choose_importer(ask.format, ask.paths, ask.options)
    if ask.fit.block_tokens and ask.fit.block_tokens > (importer.block_tokens or 0):
        had = f"has blocks of {importer.block_tokens}" if importer.block_tokens else "has no blocks"
        raise UserError(f"--block-tokens {ask.fit.block_tokens} shrinks a trace's blocks, and {importer.name()} {had}")
    namespace = ask.namespace or (ask.paths[0].name.removesuffix(".gz").rpartition(".")[0] or ask.paths[0].name)
    recipe = PromptRecipe(seed=ask.shape.seed, namespace=namespace, block_tokens=importer.block_tokens)
    texts = TextPrompts(vocabulary, recipe, ask.output_tokens, ask.lengths_only, keep_history=importer.has_continuations)
    for path in files_of(ask.paths, importer.suffixes):
        refuse_overwriting(target, path)
    trace = read_trace(importer, ask.paths, ask.window, texts, ask.strict, ask.zero_output_as_one)
    for line in trace.malformed:
        say(f"left out: {line}")
    inversions = _sort(trace.rows)
    original = _profile(trace.rows, importer.block_tokens, _times(trace.rows))
    fitted = fit(trace.rows, importer.block_tokens, ask.fit)
    shaped = shape(_times(fitted.rows), ask.shape) if fitted.rows and fitted.rows[0].time_us is not None else None
    recipe = recipe.model_copy(update={"block_tokens": fitted.block_tokens})
    arrivals = ask.arrivals or Arrivals(recorded=shaped is not None, closed=shaped is None and any(r.parent for r in fitted.rows))
    times = process_times(arrivals, len(fitted.rows))
    if times is None and shaped is not None and (arrivals.recorded or arrivals.closed):
        times = shaped.times_s.tolist()
    if not fitted.rows:
        gone = ", ".join(f"{num:,} {reason}" for reason, num in (trace.dropped + fitted.dropped).items())
        raise UserError(f"no requests are left of {trace.rows_read:,} rows read" + (f": {gone}" if gone else ""))
    account = _account(trace, ask, original, fitted, shaped, inversions)
    account["replayed"] = _profile(fitted.rows, fitted.block_tokens, times)
    write_rows(target, _request_rows(fitted.rows, shaped))
    head = {"description": f"{importer.name()}: {', '.join(sorted({f['name'] for f in trace.files})[:3])}", "model": ask.model}
    blocks = {
        "requests": target.with_suffix(".jsonl").name, "arrivals": arrivals.describe(), "reference": None, "chat_template": None,
        "prompts": recipe.model_dump(exclude_none=True), "source": account,
    }  # fmt: skip
    update_yaml(target, {name: value for name, value in head.items() if value}, blocks)
    return account


def _sort(rows: list[TraceRow]) -> int:
    """By time, ties in file order; a turn without a time comes its think time after the turn before. Returns how many
    rows stood before one that was earlier."""
    if all(row.time_us is None for row in rows):
        return 0
    at: dict[str, int] = {}
    last = min(row.time_us for row in rows if row.time_us is not None)
    for row in rows:
        if row.time_us is None:
            row.time_us = at.get(row.parent or "", last) + round(row.think_s * 1e6)
        last = row.time_us
        if row.key is not None:
            at[row.key] = last
    times = [row.time_us or 0 for row in rows]
    rows.sort(key=lambda row: row.time_us or 0)
    return sum(later < earlier for earlier, later in pairwise(times))


def _times(rows: list[TraceRow]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Seconds from the first row on; integer microseconds until here."""
    first = rows[0].time_us or 0 if rows else 0
    return np.array([(row.time_us or 0) - first for row in rows], dtype=np.float64) / 1e6


def _profile(rows: list[TraceRow], block_tokens: int | None, times: Any) -> Profile:
    hits = PrefixHits()
    for row in rows:
        if row.blocks is not None and block_tokens:
            sizes = block_sizes(row.prompt_tokens or 0, len(row.blocks), block_tokens)
            hits.add(zip(((row.scope, block) for block in row.blocks), sizes, strict=True))
    known = rows and rows[0].time_us is not None
    return profile([r.prompt_tokens or 0 for r in rows], [r.output_tokens or 0 for r in rows], times if known else None, hits.hit_tokens)


def _account(trace: Trace, ask: Ask, original: Profile, fitted: Fitted, shaped: Shaped | None, inversions: int) -> dict[str, Any]:
    """Where the requests came from and what was done: rows_read = kept + the sum of dropped."""
    dropped = trace.dropped + fitted.dropped
    assert trace.rows_read == len(fitted.rows) + dropped.total()
    lengths = {
        "max_tokens": ask.fit.max_tokens, "policy": str(ask.fit.policy) if ask.fit.max_tokens else None, "scale": fitted.scale,
        "block_tokens": fitted.block_tokens, "output_scale": ask.fit.output_scale,
        "clipped_frac": fitted.num_clipped / len(fitted.rows) if fitted.rows and ask.fit.max_tokens else None,
    }  # fmt: skip
    times = {
        "speedup": shaped.speedup if shaped and shaped.speedup != 1 else None, "spread_over_s": shaped.tick_s if shaped else None,
        "gap_cap_s": ask.shape.gap_cap_s, "inversions": inversions, "turns_without_the_one_before": _orphans(fitted.rows),
    }  # fmt: skip
    said = {
        "format": trace.importer.name(), "about": trace.importer.source, "files": trace.files, "window": ask.window.describe(),
        "rows_read": trace.rows_read, "kept": len(fitted.rows), "dropped": dict(dropped), "malformed": trace.malformed,
        "lengths": {k: v for k, v in lengths.items() if v is not None}, "times": {k: v for k, v in times.items() if v},
        "siblings_alike": trace.tree.collisions, "original": original,
    }  # fmt: skip
    return {name: value for name, value in said.items() if value or name == "dropped"}


def _orphans(rows: list[TraceRow]) -> int:
    """Turns whose turn before was cut off or dropped, or comes later: a closed loop starts with them."""
    keys: set[str | None] = {None}
    orphans = 0
    for row in rows:
        orphans += row.parent not in keys
        keys.add(row.key)
    return orphans


def _request_rows(rows: list[TraceRow], shaped: Shaped | None) -> Iterator[RequestRow]:
    ids: dict[str, str] = {}
    speedup = shaped.speedup if shaped else 1.0
    for index, row in enumerate(rows):
        after = ids.get(row.parent or "")
        if row.key is not None:
            ids[row.key] = row.id
        yield RequestRow(
            id=row.id, prompt=row.prompt, prompt_ids=row.prompt_ids,
            prompt_tokens=row.prompt_tokens if row.prompt_ids is None else None,
            blocks=list(row.blocks) if row.blocks else None, scope=row.scope if row.blocks else "",
            max_new_tokens=row.output_tokens or 1, arrival_s=round(float(shaped.times_s[index]), 6) if shaped else 0.0,
            after=after, think_s=round(row.think_s / speedup, 6) if after else 0.0, ignore_eos=True,
        )  # fmt: skip
