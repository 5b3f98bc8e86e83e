"""Pictures show the records: golden geometry, and areas that add up to the metrics."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from cbbench.cli import show as cli_show
from cbbench.report.figure import bars as figure_bars
from cbbench.report.figure import kinds as figures
from cbbench.report.figure import latency as figure_latency
from cbbench.report.figure.memory import outline
from cbbench.results.metrics import pooled_latencies
from cbbench.results.store import Cell
from cbbench.results.timeline import IDLE, Kind, Memory, memory
from tests.docs.pictures import GOLDEN, GOLDEN_ARMS, tutorial
from tests.support.engines import run_virtual
from tests.support.figures import ARMS, engine_recorded, geometry, recorded
from tests.support.virtual_runs import asked


def test_every_kind_that_the_command_offers_is_drawn() -> None:
    assert {*figures.DRAWN} == {str(kind) for kind in cli_show.Picture} == {*GOLDEN_ARMS}


@pytest.mark.parametrize("kind", figures.DRAWN)
def test_golden_records_give_golden_geometry(kind: str) -> None:
    """Moved on purpose? `python -m tests.docs.pictures golden`, and look at the difference."""
    golden = json.loads((GOLDEN / f"{kind}.json").read_text())
    assert geometry(tutorial(kind, GOLDEN_ARMS[kind])) == golden
    assert sum(len(values) for values in golden.values()) > 5


def test_slots_are_where_a_hand_would_draw_them() -> None:
    """Two slots, one token a second: the second request of length 2 ends, the third takes its place."""
    found = geometry(figures.figure([engine_recorded(run_virtual(asked((3, 4), (3, 2), (3, 2)), max_num_seqs=2))], "slots"))
    assert found["slots-0-prefill"] == [[0, 1, 0, 1], [0, 1, 1, 2], [2, 3, 1, 2]]
    assert found["slots-0-decode"] == [[1, 4, 0, 1], [1, 2, 1, 2], [3, 4, 1, 2]]
    assert {*found} == {"slots-0-prefill", "slots-0-decode"}
    static = geometry(figures.figure([engine_recorded(run_virtual(asked((3, 4), (3, 2), (3, 2)), "static", max_num_seqs=2))], "slots"))
    assert static["slots-0-held"] == [[2, 4, 1, 2]] and static["slots-0-prefill"][-1] == [4, 5, 0, 1]


@pytest.mark.parametrize("name", ["tutorial", "long-prompt", "preemption"])
def test_idle_rectangles_add_up_to_the_idle_share_of_slots(name: str) -> None:
    for found in recorded(name):
        shown = geometry(figures.figure([found], "slots"))
        starts = np.array([step["start_s"] for step in found.steps])
        ends = np.array([step["end_s"] for step in found.steps])
        area = dict.fromkeys(Kind, 0.0)
        for gid, boxes in shown.items():
            for x0, x1, y0, y1 in boxes:
                area[Kind(gid.split("-")[-1])] += (y1 - y0) * int(((starts > x0 - 1e-5) & (ends < x1 + 1e-5)).sum())
        slots = sum(step["slots"] for step in found.steps)
        assert sum(area.values()) == slots, "every slot of every step is drawn, once"
        assert sum(area[kind] for kind in IDLE) / slots == pytest.approx(found.metrics["slot_idle_frac"], abs=1e-12)
        assert area[Kind.HELD] / slots == pytest.approx(found.metrics["slot_idle_finished_frac"], abs=1e-12)


def drawn_area(corners: list[list[float]]) -> float:
    """Of a closed polygon, by the shoelace formula."""
    x, y = np.array(corners).T
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)


@pytest.mark.parametrize("name", ["tutorial", "long-prompt", "preemption"])
def test_areas_of_memory_add_up_to_the_memory_table(name: str) -> None:
    for found in recorded(name):
        shown = geometry(figures.figure([found], "memory"))
        areas = {gid.removeprefix("memory-0-"): drawn_area(corners) for gid, corners in shown.items()}
        reserved = sum(area for part, area in areas.items() if part != "free")
        keys = {
            "token-states": "kv_utilization",
            "future": "kv_future_frac",
            "internal": "kv_internal_frac",
            "external": "kv_external_frac",
        }
        for part, key in keys.items():
            assert areas.get(part, 0.0) / reserved == pytest.approx(found.metrics[key], abs=2e-5), (part, found.arm)


def test_memory_is_not_drawn_while_nothing_runs() -> None:
    first, second = asked((3, 2), (3, 2))
    found = memory(
        *(getattr(engine_recorded(run_virtual([first, replace(second, arrival_s=10.0)])), name) for name in ("steps", "requests"))
    )
    time_s, parts = outline(found)
    assert (time_s.tolist()[3:6], time_s.tolist()[6]) == ([2.0, 2.0, 10.0], 10.0)
    assert [values[4:6].tolist() for values in parts.values()] == [[0, 0]] * 6


def test_a_long_run_is_thinned_and_keeps_its_peak() -> None:
    num = 50_000
    used = np.random.default_rng(0).integers(1, 500, num).astype(float)
    used[31_234] = 9_000
    parts = {"token states": used, "future": np.zeros(num), "internal": np.zeros(num), "external": np.zeros(num), "free": 9_000 - used}
    time_s, shown = outline(Memory(np.arange(num), np.arange(num) + 1.0, parts))
    assert len(time_s) <= 4_100 and shown["token states"].max() == 9_000 and (np.diff(time_s) >= 0).all()
    assert (time_s[0], time_s[-1]) == (0, num)


def test_latencies_are_the_samples_behind_the_percentiles() -> None:
    for found in recorded("long-prompt"):
        for name in figure_latency.PANELS:
            values = pooled_latencies(found.completed)[name]
            assert np.percentile(values, [50, 90]).tolist() == [found.metrics[f"{name}_p50"], found.metrics[f"{name}_p90"]]
            x, y = figure_latency.staircase(values)
            assert (x[-1], y[0], y[-1]) == (found.metrics[f"{name}_max"], 0, 1)
    x, y = figure_latency.staircase([float(n) for n in range(10_000)])
    assert len(x) == 501 and (x[0], x[-1], y[-1]) == (0, 9_999, 1)


def test_each_of_many_latency_lines_differs_in_colour_or_dashes_and_has_its_number_on_it() -> None:
    (found,) = recorded("preemption")
    panel, *_ = figures.figure([found] * figures.MAX_LINES, "latency").axes
    looks = {(line.get_color(), str(line._unscaled_dash_pattern)) for line in panel.lines}  # type: ignore[attr-defined]
    assert len(looks) == len(panel.lines) == figures.MAX_LINES
    numbers = {text.get_text(): text.get_position()[1] for text in panel.texts}
    assert {*numbers} == {str(number) for number in range(1, figures.MAX_LINES + 1)}
    assert len({*numbers.values()}) == figures.MAX_LINES, "no number lies over another"


def test_throughput_is_the_median_and_its_whisker_the_slowest_and_fastest_whole_round() -> None:
    (found,) = recorded("preemption")
    speeds = {1: 30.0, 2: 10.0, 3: 25.0}
    cells = [Cell(found.arm, number, {**found.metrics, "output_tok_per_s": speed}) for number, speed in speeds.items()]
    found.run.cells = [
        *cells,
        Cell(found.arm, 4, failed="no"),
        replace(cells[0], round=5, metrics=dict(cells[0].metrics), interrupted=True),
    ]
    assert figure_bars.cells_of(found) == cells
    shown = geometry(figures.figure([found], "throughput"))
    assert shown["throughput-0"][:2] == [0, 25] and [x for x, _ in shown["throughput-0-rounds"]] == [10, 30]


def test_waste_bars_are_the_shares_of_the_table() -> None:
    chosen = recorded("tutorial", *ARMS)
    shown = geometry(figures.figure(chosen, "waste"))
    for index, found in enumerate(chosen):
        for key in (key for parts in figure_bars.PANELS.values() for key in parts):
            bar = shown.get(f"waste-{index}-{key}", [0, 0])
            assert bar[1] - bar[0] == pytest.approx(found.metrics[key], abs=1e-6), key
