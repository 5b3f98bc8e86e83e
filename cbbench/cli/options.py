"""Options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cbbench.errors import UserError


class Format(StrEnum):
    table = "table"
    markdown = "markdown"
    csv = "csv"
    json = "json"


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Prepare(StrEnum):
    auto = "auto"
    none = "none"


MODEL, MEASURING, SAVING = "Model and machine", "Measuring", "Saving and printing"  # panels of --help

WorkloadPath = Annotated[Path, typer.Argument(help="the workload's .yaml file")]
ModelName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", rich_help_panel=MODEL,
        help="smollm2-135m (embedded), a hub id, a folder, a .gguf file, random:CONFIG.json\\[@SEED] (random weights), "
        "or none: compute nothing, count on a virtual clock",
    ),
]  # fmt: skip
DtypeOption = Annotated[
    Dtype | None, typer.Option(metavar="DTYPE", rich_help_panel=MODEL, help="of weights and KV cache: float32, bfloat16 or float16")
]
Device = Annotated[str, typer.Option(metavar="NAME", rich_help_panel=MODEL, help="auto, cpu, cuda or mps")]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", rich_help_panel=MODEL, help="CPU threads to use")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", rich_help_panel=MODEL, help="allow Python code that comes with a hub model to run")
]
FormatOption = Annotated[
    Format, typer.Option(metavar="FORMAT", rich_help_panel=SAVING, help="of the output on stdout: table, markdown, csv or json")
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", rich_help_panel=SAVING, help="where runs are saved")]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        rich_help_panel=SAVING,
        help="of the table: all, or metrics with commas, like 'TTFT p90,steps' (see `list metrics`)",
    ),
]


def parse_columns(text: str | None) -> list[str]:
    """Metrics by any of their names; `all` stays. Raises UserError."""
    from cbbench.report.runs import ALL
    from cbbench.results.metric_names import metric_key

    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    return [name if name == ALL else metric_key("--columns", name) for name in names]


def make_room(path: Path | None) -> None:
    """Makes the folders above a file that will be written. Raises UserError."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"-o {path}: the folder cannot be made ({error.strerror})") from error
