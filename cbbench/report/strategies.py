"""`cbbench list`: what exists here, what it does and costs, its options, whether it can run on this machine; what metrics mean."""

from __future__ import annotations

from inspect import getdoc

from rich.console import Console
from rich.table import Table

from cbbench import plugins
from cbbench.errors import UserError
from cbbench.machine.device import choose_device
from cbbench.report.screen import stdout
from cbbench.results.definitions import DEFINITIONS
from cbbench.results.tables import TABLES
from cbbench.runs.config import why_not

METRICS = "metrics"


def print_strategies(kind: str | None) -> None:
    """`cbbench list`."""
    kinds = {package.rpartition(".")[2]: axis for axis, package in plugins.KINDS.items()}
    wanted = {**kinds, **{axis: axis for axis in plugins.KINDS}}
    if kind == METRICS:
        _print_metrics()
        return
    if kind is not None and kind not in wanted:
        raise UserError(f"list {kind}: should be {', '.join(kinds)} or {METRICS}")
    console, device = stdout(), choose_device("auto")
    for title, axis in kinds.items():
        if kind is None or wanted[kind] == axis:
            chosen_by = "cbbench workload import NAME FILE" if axis == "importer" else f"--{axis}"
            console.print(f"[bold]{title}[/bold]  ({chosen_by})")
            for name in plugins.names(axis):
                _print_strategy(console, axis, name, device)


def _print_metrics() -> None:
    """Every metric: its name in files and, where the tables print it, its title there."""
    titles = {column.key: column.title for columns in TABLES.values() for column in columns}
    console = stdout()
    for section, definitions in DEFINITIONS.items():
        table = Table(title=section, box=None, title_justify="left", title_style="bold", pad_edge=False)
        for heading in ("name", "unit", "in tables", "meaning"):
            table.add_column(heading, overflow="fold")
        for definition in definitions:
            stem = definition.name.removesuffix("*")
            shown = ", ".join(title for key, title in titles.items() if key == stem or (stem != definition.name and key.startswith(stem)))
            table.add_row(definition.name, definition.unit, shown, definition.meaning)
        console.print(table, markup=False)
        console.print()


def _print_strategy(console: Console, axis: str, name: str, device: str) -> None:
    try:
        cls = plugins.find(axis, name)
    except UserError as error:
        console.print(f"\n  {name}: cannot be used: {error}\n", markup=False)
        return
    console.print(f"\n  [bold]{name}[/bold]")
    for line in (getdoc(cls) or "no description").splitlines():
        console.print(f"    {line}", markup=False)
    for key, field in cls.Options.model_fields.items():
        about = f": {field.description}" if field.description else ""
        default = "..." if field.is_required() else field.default
        option = f"--option {key}" if axis == "importer" else f"option {axis}.{key}"
        console.print(f"    {option}={default}{about}", markup=False)
    if axis == "importer":
        console.print()
        return
    dtype = "float32" if device == "cpu" else "bfloat16"
    reason = why_not(axis, name, device, dtype)
    console.print(f"    {'cannot run here: ' + reason if reason else f'runs here ({device}, {dtype})'}\n", markup=False)
