"""The command line. Data goes to stdout, everything else to stderr; heavy imports wait until a command needs them.

Exit codes: 0 fine, 1 a gate fired, 2 bad usage or input and nothing was run, 3 ran but incomplete, 4 tokens not exact, 130
interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cbbench import __version__
from cbbench.cli.about import doctor, list_
from cbbench.cli.baseline import baseline_app
from cbbench.cli.compare import compare
from cbbench.cli.run import calibrate, run
from cbbench.cli.show import export, plot, report, show
from cbbench.cli.workload import workload_app
from cbbench.errors import UserError


class OneLine(TyperGroup):
    """A user's mistake is one line and exit code 2, an interrupt one line and 130; neither a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            print(f"cbbench: {error}", file=sys.stderr)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as interrupt:
            print("cbbench: interrupted", file=sys.stderr)
            raise typer.Exit(130) from interrupt


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
    return app(argv)
