"""Which round of which arm is drawn, and what a damaged run says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cbbench.results.rounds import choose
from cbbench.results.store import Run, read_run
from tests.support.commands import command, refusal, run_folder, write_workload

ARMS = ["static+varlen+paged", "continuous+varlen+paged"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two arms in three rounds on a virtual clock."""
    folder = tmp_path_factory.mktemp("recorded")
    rows = [{"id": f"r{i}", "prompt_ids": [5] * (3 + i), "max_new_tokens": 4 + i} for i in range(3)]
    words = [word for arm in ARMS for word in ("--arm", arm)]
    ended = command("run", write_workload(folder, lines=rows), "--model", "none", "--rounds", "3", "--out", folder / "results", *words)
    assert ended.code == 0, ended.err
    yield run_folder(folder / "results")


@pytest.fixture
def run(saved: Path) -> Run:
    return read_run(saved)


def speeds(run: Run, arm: str, *rates: float | None) -> None:
    for cell, rate in zip([cell for cell in run.cells if cell.arm == arm], rates, strict=True):
        cell.metrics["output_tok_per_s"] = rate


@pytest.mark.parametrize(
    ("rates", "middle"), [((3.0, 1.0, 2.0), 3), ((1.0, 2.0, 3.0), 2), ((2.0, 2.0, 2.0), 2), ((None, 5.0, 4.0), 3), ((9.0, None, None), 3)]
)
def test_without_a_number_the_round_in_the_middle_by_speed_is_drawn(run: Run, rates: tuple[float | None, ...], middle: int) -> None:
    speeds(run, ARMS[1], *rates)
    assert [(found.arm, found.round) for found in choose(run, [ARMS[1]])] == [(ARMS[1], middle)]


def test_of_two_rounds_it_is_the_slower(run: Run) -> None:
    speeds(run, ARMS[1], 3.0, 1.0, 2.0)
    run.cells = [cell for cell in run.cells if (cell.arm, cell.round) != (ARMS[1], 3)]
    assert choose(run, [ARMS[1]])[0].round == 2


def test_every_arm_is_drawn_in_the_order_of_the_run_or_those_named_in_theirs(run: Run) -> None:
    in_order = [arm["label"] for arm in run.info["arms"]]
    assert sorted(in_order) == sorted(ARMS)
    assert [found.arm for found in choose(run)] == in_order
    assert [found.arm for found in choose(run, in_order[::-1])] == in_order[::-1]


def test_a_round_can_be_asked_for_and_comes_with_its_own_records(run: Run, saved: Path) -> None:
    (found,) = choose(run, [ARMS[0]], 1)
    assert (found.round, found.title) == (1, f"{ARMS[0]}, round 1 of {saved.name}")
    assert len(found.steps) == found.metrics["steps"] > 0 and len(found.requests) == 3
    assert found.said["num_steps"] == len(found.steps) and "peer" not in found.said
    assert sum(span.num_tokens for span in found.spans) == sum(num_new for step in found.steps for *_, num_new in step["rows"])


def test_an_arm_that_failed_or_was_interrupted_is_left_out_while_another_is_whole(run: Run) -> None:
    for cell in run.cells:
        if cell.arm == ARMS[0]:
            cell.failed, cell.interrupted = ("no memory", False) if cell.round == 1 else (None, True)
    assert [found.arm for found in choose(run)] == [ARMS[1]]
    assert refusal(lambda: choose(run, [ARMS[0]])) == f"{run.path} has no whole round of {ARMS[0]}"


def test_an_unknown_arm_or_round_is_a_mistake_that_says_what_there_is(run: Run) -> None:
    known = ", ".join(arm["label"] for arm in run.info["arms"])
    assert refusal(lambda: choose(run, ["static+nothing+cat"])) == f"--arm static+nothing+cat: {run.name} has {known}"
    assert refusal(lambda: choose(run, [], 7)) == f"{run.path} has no whole round 7 of any arm"


def test_records_that_were_cut_off_since_the_run_was_read_are_a_mistake_in_one_line(tmp_path: Path, run: Run, saved: Path) -> None:
    for source in saved.rglob("*"):
        if source.is_file():
            target = tmp_path / source.relative_to(saved)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    copied = read_run(tmp_path)
    steps = tmp_path / ARMS[0] / "2" / "steps.jsonl"
    lines = steps.read_text().splitlines()
    steps.write_text(lines[0] + "\n")
    damage = f"{tmp_path / ARMS[0] / '2'}: damaged (ValueError: steps.jsonl has 1 of {len(lines)} lines)"
    assert refusal(lambda: choose(copied, [ARMS[0]], 2)) == damage
    steps.unlink()
    assert "damaged (FileNotFoundError" in refusal(lambda: choose(copied, [ARMS[0]], 2))
    assert len(choose(copied, [ARMS[0]], 1)) == 1
    ended = command("show", tmp_path, "--arm", ARMS[0], "--round", "2")
    warning, mistake = ended.err.splitlines()
    assert (ended.code, ended.out, mistake) == (2, "", f"cbbench: {tmp_path} has no whole round 2 of {ARMS[0]}") and "left out" in warning
