"""What `cbbench compare` and `cbbench baseline list` print: the answer, the tables, the verdicts, effects and objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cbbench.compare import verdict_report
from cbbench.compare.baselines import Baseline
from cbbench.compare.effects import as_grid as effects_grid
from cbbench.compare.effects import effects
from cbbench.compare.slo import Slo, score
from cbbench.compare.slo import as_grid as slo_grid
from cbbench.compare.verdict_report import Comparison
from cbbench.compare.worth_a_row import worth_a_row
from cbbench.report.runs import ALL, as_markdown, print_groups
from cbbench.report.screen import print_grid, print_sentences
from cbbench.results import tables
from cbbench.results.store import Run


def print_comparison(found: Comparison, format: str, columns: Sequence[str] = (), base: str | None = None) -> None:
    """The answer and the tables of the runs, then the verdicts. `base`: the arm that was named as baseline."""
    if format == "markdown":
        print(as_markdown(found.runs, base))
        print(verdict_report.as_markdown(found))
        return
    print_groups(found.runs, columns, base)
    rows, said = (found.verdicts, []) if ALL in columns else worth_a_row(found.verdicts)
    if rows:
        grid = verdict_report.as_grid(rows, found.judgement, found.verdicts)
        print_grid(replace(grid, note="\n".join([*said, grid.note])))
    else:
        print_sentences([*said, *([f"gate: {found.judgement.says}"] if found.judgement.gated else [])])


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
