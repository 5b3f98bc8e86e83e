"""`cbbench list` and `cbbench doctor`: what exists here and can run."""

from __future__ import annotations

from typing import Annotated

import typer


def list_(
    kind: Annotated[
        str | None, typer.Argument(help="schedulers, attention, kvcache, importers, peers or metrics; all strategies without")
    ] = None,
) -> None:
    """What exists here, what it does and costs, its options, and whether it can run on this machine."""
    from cbbench.report.strategies import print_strategies

    print_strategies(kind)


def doctor() -> None:
    """What is installed, which backends can run here, threads and memory."""
    from cbbench.report.doctor import print_doctor

    print_doctor()
