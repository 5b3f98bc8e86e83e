"""`cbbench compare`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cbbench.cli.baseline import FOLDER, Folder
from cbbench.cli.ending import NOT_WRITTEN, decided
from cbbench.cli.options import Columns, parse_columns
from cbbench.errors import UserError

if TYPE_CHECKING:
    from cbbench.compare.arms import Rules
    from cbbench.compare.baselines import Baseline, Key
    from cbbench.compare.verdicts import Verdict
    from cbbench.results.store import Run


class NoBaseline(UserError):
    """The baseline that was asked for is not there."""


class CompareFormat(StrEnum):
    table = "table"
    markdown = "markdown"
    csv = "csv"
    json = "json"
    junit = "junit"


class Allowed(StrEnum):
    machine = "machine"
    process = "process"


class Only(StrEnum):
    exact = "exact"
    times = "times"


def compare(
    paths: Annotated[list[Path], typer.Argument(help="saved runs, or folders with saved runs")],
    baseline: Annotated[
        str | None, typer.Option(metavar="WHAT", help="compare with an arm of the run, a saved baseline (by name) or another run (by path)")
    ] = None,
    fail_on: Annotated[
        list[str],
        typer.Option(
            metavar="RULE", help="exit 1 on: regressed, unresolved, missing, or METRIC:5%\\[@ARM], a margin of its own; may be repeated"
        ),
    ] = [],  # noqa: B006
    margin: Annotated[list[str], typer.Option(metavar="SIZE", help="5%, or METRIC=5%: ignore smaller changes; may be repeated")] = [],  # noqa: B006
    allow: Annotated[
        list[Allowed],
        typer.Option(metavar="WHAT", help="machine: compare times of different machines; process: gate rounds that shared one process"),
    ] = [],  # noqa: B006
    only: Annotated[Only | None, typer.Option(metavar="KIND", help="judge only counts (exact) or only times (times)")] = None,
    all_runs: Annotated[bool, typer.Option("--all-runs", help="judge every run of a folder, not the newest of each workload")] = False,
    effects: Annotated[bool, typer.Option("--effects", help="show what each choice alone changes, the others being equal")] = False,
    slo: Annotated[
        list[str], typer.Option(metavar="BOUND", help="like ttft_p90=2s: the best arm that keeps it, and its goodput; may be repeated")
    ] = [],  # noqa: B006
    format: Annotated[
        CompareFormat, typer.Option(metavar="FORMAT", help="of the output on stdout: table, markdown, csv, json or junit")
    ] = CompareFormat.table,
    out: Annotated[
        list[Path], typer.Option("--out", "-o", metavar="FILE", help="also write a .md, .csv, .json or .xml (JUnit) file; may be repeated")
    ] = [],  # noqa: B006
    columns: Columns = None,
    folder: Folder = FOLDER,
) -> None:
    """Say what saved runs show, print their table of saved runs, and judge every arm against another arm, a saved baseline or another run.

    Exit codes: 0 fine; 1 a --fail-on rule fired; 2 bad usage; 3 no judgement: a needed row is missing or not comparable, or a time
    cannot be judged; 74 a file cannot be written.
    """
    from cbbench.compare import gate
    from cbbench.compare.arms import Rules
    from cbbench.compare.arms import only as only_of
    from cbbench.compare.newest import newest
    from cbbench.compare.publish import RENDERERS, check_outs, write_all
    from cbbench.compare.slo import parse_slos
    from cbbench.compare.verdict_report import Comparison, worst_first
    from cbbench.report.comparison import print_comparison, print_effects, print_slo
    from cbbench.report.screen import warn
    from cbbench.results.store import read_runs

    shown = parse_columns(columns)
    rules = Rules(gate.parse_margins(margin), Allowed.machine in allow, Allowed.process in allow)
    gates = [gate.parse_rule(text) for text in fail_on]
    bounds = parse_slos(slo)
    if (effects or bounds) and format not in (CompareFormat.table, CompareFormat.markdown):
        raise UserError(f"{'--effects' if effects else '--slo'} is a table: it goes with --format table or markdown")
    if only is Only.exact and (timed := [rule.text for rule in gates if rule.metric]):
        raise UserError(f"--only exact leaves out what --fail-on {timed[0]} asks for, a time")
    check_outs(out)
    runs, problems = read_runs(paths)
    runs, older = (runs, []) if all_runs else newest(runs, paths)
    problems = [said for said in problems if not any(said in run.problems for run in older)]
    warn(*problems)
    if older:
        warn(f"{len(older)} older run{'s' * (len(older) != 1)} of the same workload left out, like {older[0].path} (--all-runs)")
    try:
        verdicts = worst_first(_verdicts(runs, baseline, rules, folder, problems))
    except NoBaseline as error:
        if not gates:
            raise
        warn(f"{error}: a gate cannot vouch without it")
        raise typer.Exit(3) from error
    base = baseline if any(arm["label"] == baseline for run in runs for arm in run.info["arms"]) else None
    verdicts = only_of(verdicts, str(only)) if only else verdicts
    found = Comparison(runs, verdicts, gate.judge(verdicts, gates, bool(problems)))
    unwritten = write_all(out, found)
    warn(*unwritten)
    with decided(found.judgement.exit_code or (NOT_WRITTEN if unwritten else 0)):
        if format in (CompareFormat.table, CompareFormat.markdown):
            print_comparison(found, str(format), shown, base)
            if effects:
                print_effects(runs, str(format))
            if bounds:
                print_slo(runs, bounds, str(format))
        else:
            print(RENDERERS[str(format)](found), end="")


def _verdicts(runs: list[Run], baseline: str | None, rules: Rules, folder: Path, problems: list[str]) -> list[Verdict]:
    from cbbench.compare.arms import compare_with_baseline, compare_within, without_baseline
    from cbbench.compare.baselines import key_of

    stored = _stored(runs, baseline, folder, problems)
    if stored is None:
        return [verdict for run in runs for verdict in compare_within(run, baseline, rules)]
    verdicts = []
    for run in runs:
        known = stored.get(key_of(run.info))
        verdicts += compare_with_baseline(run, known, rules) if known else without_baseline(run, baseline or "")
    return verdicts


def _stored(runs: list[Run], name: str | None, folder: Path, problems: list[str]) -> dict[Key, Baseline] | None:
    """The baseline by workload and model; None where an arm of the runs themselves is the base. Adds what was damaged in it."""
    from cbbench.compare import baselines
    from cbbench.report.screen import warn
    from cbbench.results.store import read_run

    if name is None or any(arm["label"] == name for run in runs for arm in run.info["arms"]):
        return None
    if not _is_saved(folder, name) and (Path(name) / "run.json").is_file():
        try:
            run = read_run(Path(name))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"--baseline {name}: run.json is damaged ({error})") from error
        warn(*run.problems)
        problems += run.problems
        return {baselines.key_of(run.info): baselines.of_run(run)}
    place = folder / name if _is_saved(folder, name) else Path(name)
    found = {(one := baselines.read(place)).key: one} if place.is_file() else baselines.read_all(place)
    if not found:
        arms = ", ".join(dict.fromkeys(arm["label"] for run in runs for arm in run.info["arms"]))
        raise NoBaseline(f"--baseline {name}: no run, no baseline in {folder}, and no arm; arms are {arms}")
    for old in found.values():
        if old.path.suffix == ".json" and old.age_days > baselines.OLD_DAYS:
            warn(f"{old.path}: saved {old.age_days:.0f} days ago")
    return found


def _is_saved(folder: Path, name: str) -> bool:
    return name == Path(name).name and (folder / name).is_dir()
