"""The command line. Data goes to stdout, everything else to stderr; heavy imports wait until a command needs them.

Exit codes: 0 fine, 1 a --fail-on rule fired, 2 bad usage or input and nothing was run, 3 ran but incomplete, or cannot vouch, 4 tokens not
exact, 70 a fault of cbbench itself, 74 a file or the output cannot be read or written, 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cbbench import __version__
from cbbench.cli.about import doctor, list_
from cbbench.cli.baseline import baseline_app
from cbbench.cli.compare import compare
from cbbench.cli.ending import end, leave, one_line
from cbbench.cli.run import calibrate, run
from cbbench.cli.show import export, plot, report, show
from cbbench.cli.workload import workload_app


class OneLine(TyperGroup):
    """However a command fails, one line and an exit code of its own."""

    def invoke(self, ctx: Any) -> Any:
        with one_line():
            return super().invoke(ctx)


app = typer.Typer(
    cls=OneLine,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run combinations of scheduler, attention and KV cache on a real language model, check every token, and compare them.",
    context_settings={"token_normalize_func": lambda word: "out" if word == "output" else word},  # --output is an older name of it
)


def _version(asked: bool) -> None:
    if asked:
        print(f"cbbench {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and end")] = False,
) -> None: ...


app.add_typer(workload_app, name="workload")
app.add_typer(baseline_app, name="baseline")
for command in (run, compare, report, show, plot, export, calibrate, doctor):
    app.command()(command)
app.command("list")(list_)


def main(argv: list[str] | None = None) -> Any:
    """The entry point."""
    from rich.console import Console

    Console.on_broken_pipe = leave  # type: ignore[method-assign]  # typer makes its own
    try:
        app(argv)
    except SystemExit as ended:
        end(ended.code)
