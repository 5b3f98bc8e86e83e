"""`cbbench calibrate`: an arm against itself. Times are made up here, so that what it says about them can be known."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cbbench.compare.noise import noise_grid
from cbbench.results.compared_metrics import METRICS, TIMED
from cbbench.results.store import read_run, write_json
from cbbench.runs.config import Arm
from cbbench.runs.runner import LocalCells
from tests.support.commands import Ended, command, few_objects, run_folder, write_config, write_workload

ROWS = [{"id": str(i), "prompt_ids": [3, 4, 5], "max_new_tokens": 3, "ignore_eos": True} for i in range(2)]
ARM = "continuous+varlen+paged"
COPY = f"{ARM}#again"
GATED = [metric.title for metric in TIMED if metric.gated]
Change = Callable[[dict[str, Any], bool, int], Any]  # metrics, is it the copy, round


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("calibrate")
    with few_objects():
        yield write_workload(folder, f"requests: w.jsonl\nmodel: {write_config(folder)}\nmeasure: {{warmup: 0}}\n", ROWS)


def calibrate(workload: Path, tmp_path: Path, change: Change, *words: str) -> Ended:
    """With `change` made to the metrics of each cell, whose times are all 1 before."""
    run = LocalCells.run

    def changed(self: LocalCells, arm: Arm, folder: Path) -> dict[str, Any]:
        cell = run(self, arm, folder)
        cell["metrics"] |= {metric.key: 1.0 for metric in TIMED}
        change(cell["metrics"], arm.is_copy, len([*folder.parent.glob("[0-9]*")]) + 1)
        write_json(folder / "cell.json", cell)
        return cell

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalCells, "run", changed)
        return command("calibrate", workload, "--threads", "1", "--out", tmp_path / "r", *words)


def rows(ended: Ended) -> dict[str, list[str]]:
    """The table: metric -> gated, A against A, noise floor, margin."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in ended.out.splitlines()]
    return {line[0]: line[1:] for line in lines if len(line) == 5 and line[0] != "metric"}


def alarms(ended: Ended) -> list[str]:
    return re.findall(r"a difference that is none: (.+?) [-+][\d.]+ %: this machine is not fit to gate it", ended.err)


def test_without_noise_the_margin_is_the_least_there_is(workload: Path, tmp_path: Path) -> None:
    ended = calibrate(workload, tmp_path, lambda *_: None, "--rounds", "6")
    assert (ended.code, alarms(ended)) == (0, []), ended.err
    assert rows(ended).keys() == {metric.title for metric in TIMED}
    for title, said in rows(ended).items():
        assert said == ["yes" if title in GATED else "no", "+0.0 %", "0.0 %", "5 %"]
    assert f"6 rounds of {ARM} against itself" in ended.out
    found = read_run(run_folder(tmp_path / "r"))
    assert f"saved in {found.path}" in ended.err and [arm["label"] for arm in found.info["arms"]] == [ARM, COPY]
    assert sorted({(cell.arm, cell.round) for cell in found.cells}) == [(label, number) for label in (ARM, COPY) for number in range(1, 7)]


NOISE = [0.08, -0.08, 0.05, -0.05, 0.02, -0.02, 0.06, -0.06]


def noisy(metrics: dict[str, Any], is_copy: bool, number: int) -> None:
    metrics["ttft_s_p50"] *= math.exp(is_copy * NOISE[number - 1])


def test_noise_without_a_direction_is_no_finding_and_asks_for_twice_its_half_width(workload: Path, tmp_path: Path) -> None:
    ended = calibrate(workload, tmp_path, noisy, "--rounds", "8")
    assert (ended.code, alarms(ended)) == (0, []), ended.err
    gated, change, floor, margin = rows(ended)["TTFT p50"]
    assert (gated, change) == ("yes", "+0.0 %") or change == "-0.0 %"
    assert 5 < float(floor.removesuffix(" %")) < 8.4
    assert float(margin.removesuffix(" %")) == pytest.approx(2 * float(floor.removesuffix(" %")), abs=0.6)
    assert rows(ended)["TPOT p50"][2:] == ["0.0 %", "5 %"]


@pytest.mark.parametrize("factor", [1.25, 0.8])
@pytest.mark.parametrize("key", [metric.key for metric in TIMED if metric.gated])
def test_a_difference_between_equal_arms_ends_with_3_and_is_named(workload: Path, tmp_path: Path, key: str, factor: float) -> None:
    def slower(metrics: dict[str, Any], is_copy: bool, number: int) -> None:
        metrics[key] *= (factor if is_copy else 1.0) * math.exp(NOISE[number - 1] / 10)

    ended = calibrate(workload, tmp_path, slower, "--rounds", "6")
    title = METRICS[key].title
    assert (ended.code, alarms(ended)) == (3, [title]), ended.err
    # the arm is the new side and its copy the base
    assert rows(ended)[title][1] == f"{100 * (1 / factor - 1):+.1f} %"


def test_a_difference_in_what_is_never_gated_is_shown_alone(workload: Path, tmp_path: Path) -> None:
    ended = calibrate(workload, tmp_path, lambda metrics, is_copy, _: metrics.update(ttft_s_p90=2.0 if is_copy else 1.0), "--rounds", "6")
    assert (ended.code, alarms(ended)) == (0, []) and rows(ended)["TTFT p90"][:2] == ["no", "-50.0 %"]


def test_a_count_that_differs_is_a_finding_too(workload: Path, tmp_path: Path) -> None:
    ended = calibrate(workload, tmp_path, lambda metrics, is_copy, _: metrics.update(steps=7 + is_copy), "--rounds", "6")
    assert ended.code == 3
    (said,) = [line for line in ended.err.splitlines() if line.startswith("a difference that is none:")]
    assert "steps" in said and "-1" in said


def test_fewer_than_six_rounds_are_refused_before_anything_runs(workload: Path, tmp_path: Path) -> None:
    for rounds in ("5", "0", "-1"):
        ended = calibrate(workload, tmp_path, lambda *_: None, "--rounds", rounds)
        assert ended.code == 2 and "--rounds" in ended.err and not (tmp_path / "r").exists()


def test_an_arm_of_ones_choice_is_calibrated(workload: Path, tmp_path: Path) -> None:
    ended = calibrate(workload, tmp_path, lambda *_: None, "--rounds", "6", "--arm", "static+padded+cat")
    assert ended.code == 0 and "6 rounds of static+padded+cat against itself" in ended.out
    assert "--arm static" in calibrate(workload, tmp_path, lambda *_: None, "--arm", "static").mistake


def test_a_copy_that_fails_ends_with_3(workload: Path, tmp_path: Path) -> None:
    def fails(metrics: dict[str, Any], is_copy: bool, number: int) -> None:
        if is_copy and number == 2:
            raise OSError("no luck")

    ended = calibrate(workload, tmp_path, fails, "--rounds", "6")
    assert ended.code == 3 and f"{COPY} failed in round 2: OSError: no luck" in ended.err and "nothing was measured" in ended.out


def test_without_a_model_there_is_no_time_to_calibrate(tmp_path: Path) -> None:
    workload = write_workload(tmp_path, "requests: w.jsonl\nmodel: none\n", ROWS)
    ended = command("calibrate", workload, "--rounds", "6", "--out", tmp_path / "r")
    assert ended.code == 0 and rows(ended) == {} and "nothing was measured" in ended.out
    assert json.loads((run_folder(tmp_path / "r") / "run.json").read_text())["finished"] is True
    assert noise_grid([]).lines == []
