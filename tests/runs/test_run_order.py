"""Which arm runs when, what a cell leaves on disk, and when the numbers on disk are believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from cbbench.results.compared_metrics import METRICS_VERSION
from cbbench.results.metrics import summarize
from cbbench.results.store import read_cell, read_run
from cbbench.runs.config import Arm, Overrides, build_arms
from cbbench.runs.runner import LocalCells, order
from cbbench.workload.file import read_workload
from tests.support.commands import command, read_lines, run, run_folder, write_lines, write_workload

ROWS = [{"id": str(i), "prompt_ids": [1] * (3 + i), "max_new_tokens": 2 + i, "output_ids": [5] * (2 + i)} for i in range(4)]
SIX = ["static+padded+preallocated", "static+padded+cat", "continuous+varlen+paged", "continuous+serial+cat", "chunked+varlen+paged",
       "chunked+padded+preallocated"]  # fmt: skip
ARM = "continuous+varlen+paged"


def arms(tmp_path: Path, *labels: str) -> list[Arm]:
    return build_arms(read_workload(write_workload(tmp_path, "requests: w.jsonl\nmodel: none\n")), Overrides(arms=list(labels)))


def labels(chosen: list[Arm], round_number: int) -> list[str]:
    return [arm.label for arm in order(chosen, round_number)]


@pytest.mark.parametrize("num", range(1, 7))
def test_every_arm_comes_once_a_round_and_the_next_round_is_its_mirror(tmp_path: Path, num: int) -> None:
    chosen = arms(tmp_path, *SIX[:num])
    for odd in range(1, 40, 2):
        assert sorted(labels(chosen, odd)) == sorted(SIX[:num])
        assert labels(chosen, odd + 1) == labels(chosen, odd)[::-1]


def test_the_order_is_the_same_always_and_pairs_of_rounds_have_orders_of_their_own(tmp_path: Path) -> None:
    chosen = arms(tmp_path, *SIX)
    orders = [labels(chosen, odd) for odd in range(1, 40, 2)]
    assert orders == [labels(arms(tmp_path, *SIX), odd) for odd in range(1, 40, 2)]
    assert all(before != after for before, after in pairwise(orders))
    assert len({tuple(found) for found in orders}) >= len(orders) - 1, "two of twenty may agree by chance"
    assert {found[0] for found in orders} == set(SIX), "no arm is never first"
    assert labels(chosen, 1) == [SIX[index] for index in (3, 5, 0, 1, 2, 4)]


def test_a_position_in_the_order_favours_no_arm_over_a_pair_of_rounds(tmp_path: Path) -> None:
    chosen = arms(tmp_path, *SIX)
    for odd in range(1, 20, 2):
        places = {label: labels(chosen, odd).index(label) + labels(chosen, odd + 1).index(label) for label in SIX}
        assert set(places.values()) == {len(SIX) - 1}


@pytest.mark.parametrize("second_fails", [False, True])
def test_a_run_follows_the_order_past_cells_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second_fails: bool) -> None:
    chosen, ran = arms(tmp_path, *SIX[:3]), []
    measure = LocalCells.measure

    def watched(self: LocalCells, arm: Arm, cell: dict[str, Any]) -> Any:
        ran.append(arm.label)
        if second_fails and len(ran) == 2:
            raise OSError("no luck\nat all")
        return measure(self, arm, cell)

    monkeypatch.setattr(LocalCells, "measure", watched)
    flags = [word for label in SIX[:3] for word in ("--arm", label)]
    ended = command("run", tmp_path / "w.yaml", *flags, "--rounds", "4", "--out", tmp_path / "r")
    expected = [label for number in range(1, 5) for label in labels(chosen, number)]
    assert (ended.code, ran) == (3 if second_fails else 0, expected), ended.err
    found = read_run(run_folder(tmp_path / "r"))
    assert found.problems == [] and found.info["finished"] is True
    assert [(cell.arm, cell.round) for cell in found.cells] == [(label, number) for label in SIX[:3] for number in range(1, 5)]
    failed = [(cell.arm, cell.round, cell.failed.partition(" (")[0], cell.metrics) for cell in found.cells if cell.failed]
    assert failed == [(expected[1], 1, "OSError: no luck", {})] * second_fails
    if second_fails:
        kept = json.loads((found.path / expected[1] / "1" / "cell.json").read_text())
        assert kept["traceback"].rstrip().endswith("OSError: no luck\nat all") and kept["num_steps"] == 0
        said = f"{expected[1]} failed in round 1: OSError: no luck (test_run_order.py:"
        assert [line for line in ended.err.splitlines() if line.startswith(said)]


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    """The folder of one cell."""
    ended = run(write_workload(tmp_path, "requests: w.jsonl\nmodel: none\n", ROWS), tmp_path)
    assert ended.code == 0, ended.err
    return run_folder(tmp_path / "results") / ARM / "1"


def about(cell: Path) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads((cell / "cell.json").read_text()))


def write_about(cell: Path, **said: Any) -> None:
    """Some entries of cell.json changed; None takes one out."""
    data = {key: value for key, value in (about(cell) | said).items() if key not in said or said[key] is not None}
    (cell / "cell.json").write_text(json.dumps(data))


def computed(cell: Path) -> dict[str, Any]:
    return summarize(read_lines(cell / "steps.jsonl"), read_lines(cell / "requests.jsonl"), about(cell))


def test_cell_json_has_the_metrics_of_its_records_and_their_sizes(cell: Path) -> None:
    said = about(cell)
    assert (said["arm"], said["round"], said["metrics_version"], said["interrupted"]) == (ARM, 1, METRICS_VERSION, False)
    assert said["metrics"] == computed(cell) and said["metrics"]["steps"] == said["num_steps"] > 4
    for name in ("steps", "requests"):
        path = cell / f"{name}.jsonl"
        assert (said[f"num_{name}"], said[f"{name}_bytes"]) == (len(read_lines(path)), path.stat().st_size)
    assert read_cell(cell).metrics == computed(cell)


MARK = {"steps": -7}  # as metrics: whoever shows these did not look at the records


@pytest.mark.parametrize(
    ("change", "is_believed"),
    [({}, True), ({"metrics_version": METRICS_VERSION + 1}, False), ({"metrics_version": METRICS_VERSION - 1}, False),
     ({"metrics_version": None}, False), ({"steps_bytes": 7}, False), ({"requests_bytes": 7}, False), ({"steps_bytes": None}, False)],
)  # fmt: skip
def test_stored_metrics_are_believed_only_with_the_sizes_and_the_version_they_belong_to(
    cell: Path, change: dict[str, Any], is_believed: bool
) -> None:
    write_about(cell, metrics=MARK, **change)
    assert read_cell(cell).metrics == (MARK if is_believed else computed(cell))


def test_metrics_that_are_not_there_are_computed(cell: Path) -> None:
    write_about(cell, metrics=None)
    assert read_cell(cell).metrics == computed(cell)


def more_steps(cell: Path) -> None:
    write_lines(cell / "steps.jsonl", [*read_lines(cell / "steps.jsonl"), read_lines(cell / "steps.jsonl")[-1]])
    write_about(cell, num_steps=about(cell)["num_steps"] + 1)


def longer_ids(cell: Path) -> None:
    write_lines(cell / "requests.jsonl", [row | {"id": row["id"] + "!"} for row in read_lines(cell / "requests.jsonl")])


@pytest.mark.parametrize("change", [more_steps, longer_ids])
def test_records_of_another_size_are_counted_anew(cell: Path, change: Callable[[Path], None]) -> None:
    before = about(cell)["metrics"]
    change(cell)
    now = read_cell(cell).metrics
    assert now == computed(cell) and now["steps"] == before["steps"] + (change is more_steps)
    assert (now["output_digest"] == before["output_digest"]) == (change is more_steps)


def test_two_runs_that_begin_in_one_second_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I16: both chose the same name before either had made it."""
    import cbbench.results.store as store

    monkeypatch.setattr(store.time, "strftime", lambda _: "20260101-000000")
    assert [store.new_run(tmp_path, "w").path.name for _ in range(3)] == [f"20260101-000000-w{end}" for end in ("", "-2", "-3")]
