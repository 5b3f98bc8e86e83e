"""One table model, many renderers (`renderers.py`): rows of arms, and which columns stand where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from cbbench.results.base_arm import natural_base
from cbbench.results.columns import HEADLINES, MAIN, MAIN_WITHOUT_MODEL, Column, column_of
from cbbench.results.columns import TABLES as TABLES
from cbbench.results.compared_metrics import BUSY_FRAC
from cbbench.results.renderers import Grid as Grid
from cbbench.results.renderers import as_markdown as as_markdown
from cbbench.results.renderers import as_plain as as_plain
from cbbench.results.renderers import as_rich as as_rich
from cbbench.results.store import Cell, Run
from cbbench.results.units import number as number
from cbbench.results.units import percent as percent
from cbbench.results.units import seconds as seconds
from cbbench.results.units import size as size
from cbbench.results.units import times as times


@dataclass(frozen=True)
class TableRow:
    """One arm over its rounds."""

    arm: str
    run: str
    status: str
    values: dict[str, Any]  # metric -> median over rounds
    is_base: bool = False  # what `vs base` divides by
    is_able: bool = True  # it did all its work, with the right tokens: it may be the best
    has_model: bool = True
    counts_steps: bool = False  # every step took 1 on its clock
    notes: tuple[str, ...] = ()  # of its rounds, each once

    @property
    def said(self) -> str:
        """The status; without a model no token could be checked."""
        completed = self.values.get("requests_completed")
        return self.status if self.has_model or completed is None else self.status.replace("unverified", f"{completed:,.0f} done", 1)


def groups(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs that computed the same thing, by a title that says what; only these stand in one table."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        workload, model = run.info["workload"], run.info["model"]
        where = f"{model['name']} in {model['dtype']}" if model["digest"] else f"a virtual clock, no model{_cost(run)}"
        title = f"{workload['name']} ({workload['digest']}) on {where}"
        found.setdefault(title, []).append(run)
    return found


def _cost(run: Run) -> str:
    """What a step costs there, where it is not 1."""
    cost = run.info["model"].get("cost")
    return "" if not cost or counts_steps(run) else f" (a step: {cost['step_s']:g} s + {cost['position_s']:g} s a position)"


def counts_steps(run: Run) -> bool:
    """Whether its clock counts steps: no model, and every step costs 1."""
    cost = run.info["model"].get("cost") or {"step_s": 1.0, "position_s": 0.0}
    return run.info["model"]["digest"] is None and (cost["step_s"], cost["position_s"]) == (1.0, 0.0)


def table_rows(runs: list[Run], base: str | None = None) -> list[TableRow]:
    """One row an arm and run; an arm without a whole round is a row too, with its reason. `base` is the arm that `vs base` divides
    by, in each run its own; a run without it takes that of another run on the same machine."""
    base = base or natural_base([arm for run in runs for arm in run.info["arms"]])
    found = {run.path: {arm["label"]: _of_arm(run, arm["label"]) for arm in run.info["arms"]} for run in runs}
    most = max((row.get("requests_completed") or 0 for rows in found.values() for row, _ in rows.values()), default=0)
    rows = []
    for run in runs:
        alike = [run, *(other for other in runs if other.info.get("machine") == run.info.get("machine"))]
        against = next((found[one.path][base][0] for one in alike if base in found[one.path]), {}).get("output_tok_per_s")
        for label, (values, said) in found[run.path].items():
            own = values.get("output_tok_per_s")
            values["vs_base"] = own / against if own and against and sum(map(len, found.values())) > 1 else None
            right = not values.get("exact_wrong") or run.info["model"]["dtype"] != "float32"
            able = bool(most) and values.get("requests_completed") == most and right
            has_model = bool(run.info["model"]["digest"])
            notes = tuple(dict.fromkeys(note for cell in run.cells if cell.arm == label for note in cell.notes))
            rows.append(TableRow(label, run.name, said, values, label == base, able, has_model, counts_steps(run), notes))
    return rows


def _of_arm(run: Run, label: str) -> tuple[dict[str, Any], str]:
    cells = [cell for cell in run.cells if cell.arm == label]
    return medians(cells) | _spread(cells), status(cells, bool(run.info.get("finished")))


def _spread(cells: list[Cell]) -> dict[str, float | None]:
    """How far rounds are apart; None for fewer than two."""
    speeds = [speed for cell in cells if not cell.interrupted and (speed := cell.metrics.get("output_tok_per_s"))]
    return {"output_spread_frac": (max(speeds) - min(speeds)) / 2 / float(np.median(speeds)) if len(speeds) > 1 else None}


def medians(cells: list[Cell]) -> dict[str, Any]:
    """Per metric the median over whole rounds; None where no round has a value."""
    whole = [cell.metrics for cell in cells if cell.metrics and not cell.interrupted]
    found: dict[str, Any] = {}
    for key in whole[0] if whole else []:
        values = [metrics[key] for metrics in whole if isinstance(metrics[key], int | float)]
        found[key] = float(np.median(values)) if values else None
    return found


def status(cells: list[Cell], is_finished: bool = True) -> str:
    """`32/32 exact`, or what kept it from being that."""
    failures = [cell.failed for cell in cells if cell.failed]
    if failures:
        return f"failed: {failures[0]}"
    whole = [cell.metrics for cell in cells if not cell.interrupted]
    if not whole:
        return "interrupted" if cells or not is_finished else "no rounds"
    worst = max(whole, key=lambda m: (m["exact_wrong"], m["exact_ties"], m["requests_refused"]))
    num_requests = worst["requests_completed"] + worst["requests_failed"] + worst["requests_refused"] + worst["requests_cancelled"]
    parts = [f"{worst['exact_matched']}/{worst['exact_checked']} exact" if worst["exact_checked"] else "unverified"]
    parts += [f"{worst[key]} {word}" for key, word in (("exact_ties", "tie"), ("exact_wrong", "WRONG"), ("requests_refused", "refused"),
              ("requests_cancelled", "cancelled"), ("requests_failed", "unfinished")) if worst[key]]  # fmt: skip
    unverified = num_requests - worst["requests_refused"] - worst["exact_checked"]
    if worst["exact_checked"] and unverified:
        parts.append(f"{unverified} unverified")
    return ", ".join(parts)


def main_grid(rows: list[TableRow], keys: Sequence[str] = ()) -> Grid:
    """The first table: what one asks first, or the metrics asked for. The best value of a column is marked."""
    with_model = any(row.has_model for row in rows)
    columns = [column_of(key) for key in keys or (MAIN if with_model else MAIN_WITHOUT_MODEL)]
    columns = [column for column in columns if keys or any(row.values.get(column.key) is not None for row in rows)]
    steps = all(row.counts_steps for row in rows)
    several = len({row.run for row in rows}) > 1
    lines, names = [], ["run"] * several + ["arm", "requests"]
    for row in rows:
        brief = "failed" if row.status.startswith("failed") else row.said
        values = [
            "base" if column.key == "vs_base" and row.is_base else column.text(row.values.get(column.key), steps) for column in columns
        ]
        lines.append([*[row.run] * several, row.arm, brief, *values])
    best = {(number, index + len(names)) for index, column in enumerate(columns) for number in _best(rows, column)}
    note = "* the best of its column" if best else ""
    legend = "; ".join(f"{column.heading(steps)}: {column.legend}" for column in columns if column.legend and keys)
    headers = [*names, *(column.heading(steps) for column in columns)]
    return Grid("", headers, lines, _joined(note, _busy(rows), *_notes(rows)), len(names), legend, turns=False, best=frozenset(best))


def _best(rows: list[TableRow], column: Column) -> list[int]:
    """The rows with the best value, where not all have it."""
    found = {i: float(row.values[column.key]) for i, row in enumerate(rows) if row.is_able and row.values.get(column.key) is not None}
    if column.higher_is_better is None or len({column.text(value) for value in found.values()}) < 2:
        return []
    best = (max if column.higher_is_better else min)(found.values())
    return [i for i, value in found.items() if column.text(value) == column.text(best)]


def grids(rows: list[TableRow]) -> list[Grid]:
    """All columns, in three tables. With several rows, columns that do not vary stand in a note below instead, but for the headlines."""
    show_run = len({row.run for row in rows}) > 1
    steps = all(row.counts_steps for row in rows)
    made = []
    for title, columns in TABLES.items():
        varying: list[tuple[Column, list[str]]] = []
        constant: list[tuple[Column, list[str]]] = []
        for column in columns:
            texts = [column.text(row.values.get(column.key), steps) for row in rows]
            stays = len(rows) == 1 or len(set(texts)) > 1 or (column.key in HEADLINES and {*texts} != {"-"})
            (varying if stays else constant).append((column, texts))
        headers = [*(["run"] if show_run else []), "arm", "requests", *(column.heading(steps) for column, _ in varying)]
        lines = [[*([row.run] if show_run else []), row.arm, row.said, *(texts[i] for _, texts in varying)] for i, row in enumerate(rows)]
        note = _note([(c.heading(steps), texts[0]) for c, texts in constant if texts])
        if title != "Memory and waste":
            note = _joined(note, _busy(rows), *_notes(rows))
        legend = "; ".join(f"{column.heading(steps)}: {column.legend}" for column, texts in varying if column.legend and {*texts} != {"-"})
        made.append(Grid(title, headers, lines, note, headers.index("requests") + 1, legend))
    return made


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _busy(rows: list[TableRow]) -> str:
    """Rows whose times other processes have changed."""
    said = [f"{row.arm} {percent(taken)}" for row in rows if (taken := row.values.get("others_cpu_frac") or 0.0) > BUSY_FRAC]
    return f"busy machine, times are not comparable: other processes took CPU time during {', '.join(said)}" if said else ""


def _notes(rows: list[TableRow]) -> list[str]:
    return [f"{row.arm}: {note}" for row in rows for note in row.notes]


def _note(constants: list[tuple[str, str]]) -> str:
    said = [f"{title} {text}" for title, text in constants if text != "-"]
    return f"same in every row: {', '.join(said)}" if said else ""


def as_frame(runs: list[Run]) -> pd.DataFrame:
    """Tidy: one row an arm and round, one column a metric."""
    found = []
    for run in runs:
        workload = {"workload": run.info["workload"]["name"], "workload_digest": run.info["workload"]["digest"]}
        for cell in run.cells:
            whose = {"run": run.name, **workload, "arm": cell.arm, "round": cell.round}
            found.append({**whose, "failed": cell.failed, "interrupted": cell.interrupted, **cell.metrics})
    return pd.DataFrame(found)


def as_json(runs: list[Run]) -> str:
    return json.dumps(as_data(runs), indent=1, allow_nan=False)


def as_data(runs: list[Run]) -> list[dict[str, Any]]:
    """Complete and stable: the run's own facts and every metric of every round."""
    return [{"run": run.name, **run.info, "cells": [vars(cell) for cell in run.cells]} for run in runs]
