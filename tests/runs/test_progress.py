"""What is seen of a run at work: a live line on a terminal, one line an arm and round elsewhere."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from cbbench.engine.record import StepRecord
from cbbench.runs import progress
from cbbench.runs.progress import LiveProgress

METRICS: dict[str, Any] = {
    "exact_wrong": 0, "exact_ties": 0, "requests_refused": 0, "requests_completed": 3, "requests_failed": 0, "requests_cancelled": 0,
    "exact_matched": 3, "exact_checked": 3, "output_tok_per_s": 123.4,
}  # fmt: skip


def step(number: int, live_rows: int, reserved: int, free: int) -> StepRecord:
    return StepRecord(
        number, float(number), number + 1.0, 0.9, 8, live_rows, 0, 5, [["decode", 3, 0, 30, 0]], [], [(0, reserved, 1)], free, 0, 0, 0, []
    )


def watched(is_terminal: bool, monkeypatch: pytest.MonkeyPatch, width: int = 160) -> tuple[LiveProgress, io.StringIO]:
    """A view that draws every step, and what it draws on."""
    monkeypatch.setattr(progress, "REFRESH_S", 0.0)
    drawn = io.StringIO()
    made = Console(file=drawn, force_terminal=is_terminal, width=width, highlight=False, color_system=None, legacy_windows=False)
    monkeypatch.setattr(progress, "Console", lambda **_: made)
    return LiveProgress(), drawn


def test_a_terminal_shows_rate_slots_queue_memory_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    view, drawn = watched(True, monkeypatch)
    with view:
        view.run_started(2, 100)
        view.cell_started("static[a]+b", 1)
        view.stepped(10, step(0, 6, 25, 75))
        view.stepped(40, step(1, 7, 30, 70))
        seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue())
        assert "round 1 static[a]+b" in seen, "a name is no markup"
        assert "slots 6/8, waiting 5, KV 25.0 %" in seen and "slots 7/8, waiting 5, KV 30.0 %" in seen
        assert re.search(r"\d tok/s", seen) and "left" in seen and "40%" in seen and "20%" in seen, "40 of 100, and of 200 in all"
        view.cell_ended({"metrics": METRICS})
        assert view.bars.tasks[0].completed == 100, "a cell that ended early counts as a whole one"
    assert "static[a]+b round 1: 3/3 exact, 123 output tok/s" in drawn.getvalue()


def test_80_columns_have_bar_percent_rate_and_the_time_left_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    view, drawn = watched(True, monkeypatch, 80)
    with view:
        view.run_started(36, 2500)
        view.cell_started("chunked(max_num_batched_tokens=128)+varlen+paged", 1)
        view.stepped(1000, step(0, 6, 25, 75))
        view.stepped(1400, step(1, 7, 30, 70))
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", drawn.getvalue()).replace("\r", "\n").splitlines()
    (last,) = {line for line in lines if "56%" in line}
    assert re.fullmatch(r"round 1 chunked\(max\S*… ━+╸? +56% [\d,]+ tok/s [\d:]+ left", last.strip()), last
    assert max(map(len, lines)) <= 80


def test_after_the_first_round_a_long_run_says_how_long_it_will_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    view, _ = watched(False, monkeypatch)
    with view:
        view.run_started(37, 100)
        for number in (1, 2):
            view.cell_started("a", number)
            monkeypatch.setattr(view.clock, "now", lambda at_s=view.cell_started_s + 10.0: at_s)
            view.cell_ended({"metrics": METRICS})
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "a round 1: 3/3 exact, 123 output tok/s",
        "that took 10 s; 36 more of its kind take about 6 min",
        "a round 2: 3/3 exact, 123 output tok/s",
    ]


def test_on_a_virtual_clock_steps_are_said_and_no_rate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    view, _ = watched(False, monkeypatch)
    with view:
        view.run_started(1, 100)
        view.cell_started("a", 1)
        view.cell_ended({"metrics": METRICS | {"steps": 1088, "exact_checked": 0}, "bytes_per_token": 0})
    assert capsys.readouterr().err == "a round 1: 3 done, 1,088 steps\n"


def test_a_pipe_gets_one_line_an_arm_and_round(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    view, drawn = watched(False, monkeypatch)
    with view:
        view.run_started(2, 100)
        view.cell_started("a", 1)
        view.stepped(10, step(0, 6, 25, 75))
        view.cell_ended({"metrics": METRICS})
        view.cell_started("b", 1)
        view.cell_ended({"failed": "OSError: no luck"})
    assert drawn.getvalue().strip() == ""
    assert capsys.readouterr().err.splitlines() == ["a round 1: 3/3 exact, 123 output tok/s", "b failed in round 1: OSError: no luck"]


def test_steps_between_two_refreshes_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    view, drawn = watched(True, monkeypatch)
    monkeypatch.setattr(progress, "REFRESH_S", 3600.0)
    with view:
        view.run_started(1, 100)
        view.cell_started("a", 1)
        before = drawn.getvalue()
        for number in range(50):
            view.stepped(number, step(number, 1, 1, 1))
        assert drawn.getvalue() == before
