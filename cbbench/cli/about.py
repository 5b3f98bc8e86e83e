"""`cbbench list` and `cbbench doctor`: what exists here and can run."""

from __future__ import annotations

from typing import Annotated

import typer


def list_(
    kind: Annotated[
        str | None, typer.Argument(help="schedulers, attention, kvcache, importers, peers or metrics; all strategies without")
    ] = None,
) -> None:
    """List the strategies: what they do and cost, their options, and whether they can run on this machine."""
    from cbbench.report.strategies import print_strategies

    print_strategies(kind)


def doctor() -> None:
    """Show this machine: what is installed, which kernels can run, memory, and its measured speed."""
    from cbbench.report.doctor import print_doctor

    print_doctor()
