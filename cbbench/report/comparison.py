"""What `cbbench compare` and `cbbench baseline list` print: the tables of the runs, the verdicts, effects and objectives."""

from __future__ import annotations

from cbbench.compare import verdict_report
from cbbench.compare.baselines import Baseline
from cbbench.compare.effects import as_grid as effects_grid
from cbbench.compare.effects import effects
from cbbench.compare.slo import Slo, score
from cbbench.compare.slo import as_grid as slo_grid
from cbbench.compare.verdict_report import Comparison
from cbbench.report.runs import print_groups
from cbbench.report.screen import print_grid
from cbbench.results import tables
from cbbench.results.store import Run


def print_comparison(found: Comparison, format: str) -> None:
    """The tables of the runs, then the verdicts."""
    grids = {title: tables.grids(tables.table_rows(group)) for title, group in tables.groups(found.runs).items()}
    if format == "markdown":
        print("\n".join(tables.as_markdown(title, group) for title, group in grids.items()))
        print(verdict_report.as_markdown(found))
        return
    print_groups(grids)
    if found.verdicts or found.judgement.gated:
        print_grid(verdict_report.as_grid(found.verdicts, found.judgement))


def print_effects(runs: list[Run], format: str) -> None:
    for run in runs:
        print_grid(effects_grid(effects(run)), format == "markdown")


def print_slo(runs: list[Run], slos: list[Slo], format: str) -> None:
    for run in runs:
        print_grid(slo_grid(score(run, slos), slos), format == "markdown")


def print_baselines(found: dict[str, list[Baseline]]) -> None:
    headers = ["baseline", "workload", "arms", "runs", "saved", "age", "reason"]
    lines = [[name, b.path.stem, str(len(b.arms)), str(len(b.runs)), b.saved, f"{b.age_days:.0f} d", b.reason]
             for name, group in found.items() for b in group]  # fmt: skip
    print_grid(
        tables.Grid("Baselines", headers, lines, "" if lines else "none yet: cbbench baseline save NAME RUN --reason TEXT", 2, turns=False)
    )
