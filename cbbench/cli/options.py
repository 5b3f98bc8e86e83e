"""Options that several commands have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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


WorkloadPath = Annotated[Path, typer.Argument(help="a workload's .yaml")]
ModelName = Annotated[
    str | None,
    typer.Option(
        help="smollm2-135m (embedded), a hub id, a directory, a .gguf, random:<config.json>[@SEED], or none: no tensors, a virtual clock"
    ),
]
DtypeOption = Annotated[Dtype | None, typer.Option(help="of weights and cache")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="run code that comes with a hub model")]
FormatOption = Annotated[Format, typer.Option(help="what stdout gets")]
