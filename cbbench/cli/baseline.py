"""The commands below `cbbench baseline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cbbench.errors import UserError

FOLDER = Path("results/baselines")
Folder = Annotated[Path, typer.Option("--folder", metavar="FOLDER", help="the folder of baselines")]
baseline_app = typer.Typer(no_args_is_help=True, help="Save and list the runs that later runs are compared with.")


@baseline_app.command()
def save(
    name: Annotated[str, typer.Argument(help="a name for the baseline: its folder below results/baselines")],
    runs: Annotated[list[Path], typer.Argument(help="one saved run or several")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="why the baseline changes; kept in the file")],
    exact_only: Annotated[bool, typer.Option("--exact-only", help="save counts only, no times: valid on any machine")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="begin an arm anew that does other work than is kept (another workload, options, limits)")
    ] = False,
    folder: Folder = FOLDER,
) -> None:
    """Save runs as a baseline. A run is added to the earlier ones, of which the last ten of each arm are kept; arms that it has not stay.

    An arm that does other work than is kept is refused without --replace.
    """
    from cbbench.compare.baselines import save as save_baseline
    from cbbench.report.screen import warn
    from cbbench.results.store import read_runs

    if not reason.strip():
        raise UserError("--reason: say why the baseline moves")
    read, problems = read_runs(runs)
    warn(*problems)
    if len(problems) > sum(len(run.problems) for run in read):  # a run that lacks parts is refused by name below
        raise UserError("baseline save: a damaged run cannot become a baseline")
    for run in read:
        path, replaced = save_baseline(name, run, reason.strip(), folder, exact_only, replace)
        warn(*[f"{path}: begun anew: {replaced}"] * bool(replaced))
        print(path)


@baseline_app.command("list")
def list_(folder: Folder = FOLDER) -> None:
    """The saved baselines: workload, arms, runs, age and reason."""
    from cbbench.compare.baselines import read_all
    from cbbench.report.comparison import print_baselines

    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    print_baselines({name: [*read_all(folder / name).values()] for name in names})
