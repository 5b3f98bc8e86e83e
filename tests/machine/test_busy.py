"""A busy machine is noticed, says so in the row, and takes threads away; its rounds decide nothing about time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from cbbench.compare.arms import Rules, compare_within
from cbbench.compare.verdicts import Outcome
from cbbench.machine import busy
from cbbench.machine.busy import OthersTime, ThreadLimit
from cbbench.results import tables
from cbbench.results.store import Cell, Run


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def moments(monkeypatch: pytest.MonkeyPatch, *told: tuple[float, float, float]) -> None:
    left = list(told)
    monkeypatch.setattr(OthersTime, "_now", staticmethod(lambda: left.pop(0)))
    monkeypatch.setattr(busy.psutil, "cpu_count", lambda: 2)


@pytest.mark.parametrize(
    ("passed", "used", "ours", "frac"),
    [(10.0, 10.0, 5.0, 0.5), (10.0, 9.0, 9.0, 0.0), (10.0, 5.0, 6.0, 0.0), (10.0, 10.0, 0.0, 1.0), (0.1, 0.1, 0.0, None)],
)
def test_what_others_took_is_what_was_used_and_not_ours(
    passed: float, used: float, ours: float, frac: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments(monkeypatch, (100.0, 40.0, 30.0), (100.0 + passed, 40.0 + used, 30.0 + ours))
    assert OthersTime().frac() == frac


@pytest.mark.parametrize(("taken", "left"), [(0.0, 2), (0.1, 2), (0.15, 2), (0.4, 1), (0.5, 1), (0.95, 1)])
def test_there_are_no_more_threads_than_cores_that_are_left(taken: float, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    moments(monkeypatch, (0.0, 0.0, 0.0), (1.0, taken, 0.0), (1.0, taken, 0.0))
    limit = ThreadLimit(2)
    limit.look(0.1)
    assert torch.get_num_threads() == 2, "too early to look"
    limit.look(0.3)
    assert (torch.get_num_threads(), limit.was_lowered) == (left, left < 2)


def test_they_come_back_when_the_others_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    moments(monkeypatch, (0.0, 0.0, 0.0), (1.0, 1.0, 0.5), (1.0, 1.0, 0.5), (2.0, 1.5, 1.0), (2.0, 1.5, 1.0))
    limit = ThreadLimit(2)
    limit.look(0.3)
    assert torch.get_num_threads() == 1
    limit.look(0.6)
    assert torch.get_num_threads() == 2 and limit.was_lowered


COUNTS = {
    "output_tokens": 9, "exact_wrong": 0, "exact_ties": 0, "exact_checked": 1, "exact_matched": 1, "requests_refused": 0,
    "requests_completed": 1, "requests_failed": 0, "requests_cancelled": 0,
}  # fmt: skip


def run_of(taken: dict[str, list[float | None]], speed: dict[str, float]) -> Run:
    cells = [
        Cell(label, number + 1, {**COUNTS, "output_tok_per_s": speed[label] * (1 + number / 1000), "others_cpu_frac": share})
        for label, shares in taken.items()
        for number, share in enumerate(shares)
    ]
    info: dict[str, Any] = {
        "workload": {"name": "w", "digest": "d", "arrivals": "offline"}, "model": {"name": "m", "digest": "x", "dtype": "float32"},
        "arms": [{"label": label} for label in taken], "finished": True,
    }  # fmt: skip
    return Run(Path("r"), info, cells, [])


def outcome(run: Run) -> Any:
    return next(v for v in compare_within(run, None, Rules()) if v.metric.key == "output_tok_per_s")


def test_rounds_beside_other_work_decide_nothing_about_time() -> None:
    speed = {"a": 100.0, "b": 50.0}
    quiet: list[float | None] = [0.01] * 8
    assert outcome(run_of({"a": quiet, "b": quiet}, speed)).outcome is Outcome.regressed
    found = outcome(run_of({"a": quiet, "b": [0.3] * 8}, speed))
    assert found.outcome is Outcome.not_comparable and "other processes took more than 5%" in str(found.why)
    some = outcome(run_of({"a": quiet, "b": [0.01] * 6 + [0.3] * 2}, speed))
    assert some.outcome is Outcome.regressed and some.shift is not None and some.shift.num == 6, "the quiet rounds still do"
    unknown: list[float | None] = [None] * 8
    assert outcome(run_of({"a": unknown, "b": unknown}, speed)).outcome is Outcome.regressed


def test_the_table_says_so() -> None:
    grids = tables.grids(tables.table_rows([run_of({"a": [0.01], "b": [0.3]}, {"a": 1.0, "b": 2.0})]))
    assert "busy machine, times are not comparable: other processes took CPU time during b 30.0 %" in grids[0].note
    assert "busy" not in tables.grids(tables.table_rows([run_of({"a": [0.01]}, {"a": 1.0})]))[0].note


def test_the_time_of_a_peers_own_process_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    own_s = sum(psutil.Process().cpu_times()[:2])
    with subprocess.Popen(["sleep", "60"]) as child:
        assert busy._family_s(os.getpid()) >= own_s > 0 == busy._family_s(child.pid)
        child.kill()
    assert busy._family_s(child.pid) == 0.0, "it has ended"
    monkeypatch.setattr(busy, "_family_s", lambda pid: 1e6 * pid)
    assert 3e6 <= OthersTime([1, 2])._now()[2] < 4e6 and OthersTime()._now()[2] < 1e6
