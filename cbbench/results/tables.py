"""One table model, many renderers: terminal, markdown, csv, json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from tabulate import tabulate

from cbbench.results.compared_metrics import BUSY_FRAC
from cbbench.results.store import Cell, Run
from cbbench.results.units import Format as Format
from cbbench.results.units import number as number
from cbbench.results.units import percent as percent
from cbbench.results.units import seconds as seconds
from cbbench.results.units import size as size
from cbbench.results.units import times as times



@dataclass(frozen=True)
class Column:
    key: str
    title: str
    show: Format = number
    legend: str = ""  # said under the table, where the title is no standard term


# fmt: off
TABLES: dict[str, list[Column]] = {
    "Throughput": [
        Column("output_tok_per_s", "output tok/s"), Column("vs_first", "vs first", times, "output tok/s divided by that of the first row"),
        Column("total_tok_per_s", "total tok/s"), Column("duration_s", "duration", seconds), Column("steps", "steps"),
        Column("decode_step_s_p50", "decode step p50", seconds),
        Column("decode_host_frac", "host share", percent, "share of a decode step's time that is spent outside the model"),
        Column("prefill_roofline_frac", "prefill roofline", percent, "least possible time for prompts / time taken (100 % is the limit)"),
        Column("decode_roofline_frac", "decode roofline", percent, "least possible time for decoding / time taken (100 % is the limit)"),
    ],
    "Latency": [
        Column("ttft_s_p50", "TTFT p50", seconds), Column("ttft_s_p90", "TTFT p90", seconds),
        Column("tpot_s_p50", "TPOT p50", seconds), Column("tpot_s_p90", "TPOT p90", seconds),
        Column("itl_s_p99", "ITL p99", seconds), Column("itl_s_max", "ITL max", seconds),
        Column("e2e_s_p50", "E2E p50", seconds), Column("e2e_s_p90", "E2E p90", seconds),
        Column("queue_wait_s_p90", "queued p90", seconds, "from arrival to the request's first step"),
        Column("lateness_s_max", "late max", seconds, "from arrival to when the engine first saw the request"),
    ],
    "Memory and waste": [
        Column("kv_utilization", "KV used", percent, "share of reserved + external KV memory that is written"),
        Column("kv_future_frac", "future", percent, "reserved, written later by the same request"),
        Column("kv_internal_frac", "internal", percent, "reserved, never written"),
        Column("kv_external_frac", "external", percent, "free, but in no hole large enough for the next waiting request"),
        Column("kv_peak_bytes", "KV peak", size),
        Column("kv_copy_bytes", "KV copied", size, "copied to grow, or to give attention the layout that it needs"),
        Column("peak_memory_bytes", "RAM peak", size, "above the level at the start of the round"),
        Column("prefill_padding_frac", "prefill padding", percent), Column("decode_padding_frac", "decode padding", percent),
        Column("slot_idle_frac", "slots idle", percent, "places in the batch without an unfinished request"),
        Column("slot_idle_finished_frac", "finished", percent, "slots held by a finished request"),
        Column("slot_idle_starved_frac", "starved", percent, "slots empty while requests wait"),
        Column("slot_idle_drain_frac", "drained", percent, "slots empty while none waits"),
        Column("preemptions", "preempted"),
        Column("recomputed_tokens", "recomputed", legend="tokens computed again after a preemption"),
    ],
}
# fmt: on


@dataclass(frozen=True)
class TableRow:
    """One arm over its rounds."""

    arm: str
    run: str
    status: str
    values: dict[str, Any]  # metric -> median over rounds


def groups(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs that computed the same thing, by a title that says what; only these stand in one table."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        workload, model = run.info["workload"], run.info["model"]
        where = f"{model['name']} in {model['dtype']}" if model["digest"] else "a virtual clock, no model"
        title = f"{workload['name']} ({workload['digest']}) on {where}"
        found.setdefault(title, []).append(run)
    return found


def table_rows(runs: list[Run]) -> list[TableRow]:
    """One row an arm and run; an arm without a whole round is a row too, with its reason."""
    rows = []
    for run in runs:
        for arm in run.info["arms"]:
            cells = [cell for cell in run.cells if cell.arm == arm["label"]]
            rows.append(TableRow(arm["label"], run.name, status(cells, bool(run.info.get("finished"))), medians(cells)))
    first = rows[0].values.get("output_tok_per_s") if len(rows) > 1 else None
    for row in rows:
        own = row.values.get("output_tok_per_s")
        row.values["vs_first"] = own / first if own and first else None
    return rows


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


@dataclass(frozen=True)
class Grid:
    """A table ready to print: text only."""

    title: str
    headers: list[str]
    lines: list[list[str]]
    note: str
    num_text: int  # leading columns that are text, not numbers
    legend: str = ""  # what titles mean that are no standard terms
    turns: bool = True  # may stand on its side where it is too wide


def grids(rows: list[TableRow]) -> list[Grid]:
    """The three tables. With several rows, columns that do not vary stand in a note below instead."""
    show_run = len({row.run for row in rows}) > 1
    made = []
    for title, columns in TABLES.items():
        varying: list[tuple[Column, list[str]]] = []
        constant: list[tuple[Column, list[str]]] = []
        for column in columns:
            texts = [show(column, row.values.get(column.key)) for row in rows]
            (varying if len(rows) == 1 or len(set(texts)) > 1 else constant).append((column, texts))
        headers = [*(["run"] if show_run else []), "arm", "tokens", *(column.title for column, _ in varying)]
        lines = [[*([row.run] if show_run else []), row.arm, row.status, *(texts[i] for _, texts in varying)] for i, row in enumerate(rows)]
        note = _note([(c.title, texts[0]) for c, texts in constant if texts])
        if title != "Memory and waste":
            note = "\n".join(part for part in (note, _busy(rows)) if part)
        legend = "; ".join(f"{column.title}: {column.legend}" for column, texts in varying if column.legend and {*texts} != {"-"})
        made.append(Grid(title, headers, lines, note, headers.index("tokens") + 1, legend))
    return made


def _busy(rows: list[TableRow]) -> str:
    """Rows whose times other processes have changed."""
    said = [f"{row.arm} {percent(taken)}" for row in rows if (taken := row.values.get("others_cpu_frac") or 0.0) > BUSY_FRAC]
    return f"busy machine, times are not comparable: other processes took CPU time during {', '.join(said)}" if said else ""


def _note(constants: list[tuple[str, str]]) -> str:
    said = [f"{title} {text}" for title, text in constants if text != "-"]
    return f"same in every row: {', '.join(said)}" if said else ""


def show(column: Column, value: Any) -> str:
    """A dash for what does not exist."""
    return "-" if value is None else column.show(value)


def _below(grid: Grid) -> str:
    return "\n\n".join(part for part in (grid.note, grid.legend) if part)


def as_rich(grid: Grid, width: int) -> RichTable:
    """A table for a terminal: a row an arm where that fits the width, else a column an arm."""
    num_text = grid.num_text
    upright = _rich(grid, grid.headers, grid.lines, num_text)
    if _natural_width(upright) <= width or not grid.turns:
        return upright
    names = [" ".join(line[: num_text - 1]) for line in grid.lines]
    values = [line[num_text - 1 :] for line in grid.lines]
    turned = [list(line) for line in zip(grid.headers[num_text - 1 :], *values, strict=True)]
    on_its_side = _rich(grid, ["", *names], turned, 1)
    return min(upright, on_its_side, key=_natural_width)


def _rich(grid: Grid, headers: list[str], lines: list[list[str]], num_text: int) -> RichTable:
    table = RichTable(title=grid.title, caption=_below(grid) or None, box=box.SIMPLE_HEAD, title_style="bold")
    table.title_justify = table.caption_justify = "left"
    for index, header in enumerate(headers):
        table.add_column(header, justify="left" if index < num_text else "right", overflow="fold")
    for line in lines:
        table.add_row(*line)
    return table


def _natural_width(table: RichTable) -> int:
    return Console(width=10_000).measure(table).maximum


def as_plain(grid: Grid) -> str:
    """A long table, fast."""
    align = ["left"] * grid.num_text + ["right"] * (len(grid.headers) - grid.num_text)
    table = tabulate(grid.lines, grid.headers, tablefmt="simple", colalign=align, disable_numparse=True)
    return "\n".join(part for part in (grid.title, table, _below(grid)) if part)


def as_markdown(title: str, grids: list[Grid]) -> str:
    parts = [f"## {title}\n"] if title else []
    for grid in grids:
        lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in grid.lines]
        frame = pd.DataFrame(lines, columns=range(len(grid.headers)))
        num_text = grid.num_text
        align = ["left"] * num_text + ["right"] * (len(grid.headers) - num_text)
        table = frame.to_markdown(index=False, headers=grid.headers, colalign=align, disable_numparse=True)
        parts.append(f"### {grid.title}\n\n{table}\n" + (f"\n{_below(grid)}\n" if _below(grid) else ""))
    return "\n".join(parts)


def as_frame(runs: list[Run]) -> pd.DataFrame:
    """Tidy: one row an arm and round, one column a metric."""
    found = []
    for run in runs:
        for cell in run.cells:
            failed = {"failed": cell.failed, "interrupted": cell.interrupted}
            found.append(
                {
                    "run": run.name,
                    "workload": run.info["workload"]["name"],
                    "workload_digest": run.info["workload"]["digest"],
                    "arm": cell.arm,
                    "round": cell.round,
                    **failed,
                    **cell.metrics,
                }
            )
    return pd.DataFrame(found)


def as_json(runs: list[Run]) -> str:
    return json.dumps(as_data(runs), indent=1, allow_nan=False)


def as_data(runs: list[Run]) -> list[dict[str, Any]]:
    """Complete and stable: the run's own facts and every metric of every round."""
    return [{"run": run.name, **run.info, "cells": [vars(cell) for cell in run.cells]} for run in runs]
