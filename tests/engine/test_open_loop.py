"""Open loop: arrivals are due at absolute times that nothing moves, and how late the loop looked is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import cbbench.clock
from cbbench.clock import RealClock
from cbbench.request import Request
from cbbench.workload.file import read_workload, resolve
from tests.engine.test_closed_loop import play
from tests.support.commands import run, write_workload
from tests.support.virtual_runs import metrics


def test_the_real_clock_never_moves_a_due_time_however_late_it_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [70.0]
    fake = SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s + 0.001))
    monkeypatch.setattr(cbbench.clock, "time", fake)
    asked = [Request(f"{i}", (1, 2), 1, i / 20, True) for i in range(100)]
    engine = play(asked, clock=RealClock(), step_s=0.02)
    lines = engine.record().request_lines()
    assert [line["arrival_s"] for line in lines] == [i / 20 for i in range(100)]
    assert [line["submitted_s"] for line in lines[1:]] == pytest.approx([i / 20 + 0.001 for i in range(1, 100)]), "no drift"
    assert metrics(engine)["lateness_s_max"] == pytest.approx(0.001)


def test_the_latency_table_says_how_late_the_loop_looked(tmp_path: Path) -> None:
    rows = [{"id": f"{i}", "prompt_ids": [1], "max_new_tokens": 3, "arrival_s": at} for i, at in enumerate((0, 0.25))]
    shown = run(
        write_workload(tmp_path, "requests: w.jsonl\narrivals: recorded\n", rows), tmp_path, "--model", "none", "--format", "markdown"
    )
    latency = shown.out.partition("### Latency")[2].partition("###")[0]
    headers, _, values = [[cell.strip() for cell in line.split("|")] for line in latency.split("\n") if line.startswith("|")]
    assert dict(zip(headers, values, strict=True))["late max"] == "0.750 steps"


@pytest.mark.parametrize("rate", [3, 0.7, 1000])
def test_constant_arrivals_are_exactly_one_over_the_rate_apart(tmp_path: Path, rate: float) -> None:
    rows = [{"id": f"{i}", "prompt_ids": [1], "max_new_tokens": 1} for i in range(50)]
    path = write_workload(tmp_path, f"requests: w.jsonl\narrivals: {{constant: {{rate_per_s: {rate}}}}}\n", rows)
    assert [request.arrival_s for request in resolve(read_workload(path), None)] == [i / rate for i in range(50)]
