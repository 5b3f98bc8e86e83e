"""An interrupted run goes on: `run --resume RUN` alone, or with the whole command. Whole rounds stay byte for byte."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from cbbench.results.store import read_run
from cbbench.runs.runner import LocalCells, order
from cbbench.schedulers.continuous import Continuous
from tests.support.commands import Ended, command, run_folder, write_workload

ROWS = [{"id": str(i), "prompt_ids": [1] * (3 + i), "max_new_tokens": 2 + i} for i in range(4)]
YAML = "requests: w.jsonl\nmodel: none\nmeasure: {rounds: 3, warmup: 0}\narms: [{kv: paged}, {kv: cat}]\n"
PAGED, CAT = ARMS = ["continuous+varlen+paged", "continuous+varlen+cat"]
CELLS = [(label, number) for number in (1, 2, 3) for label in order(cast(Any, ARMS), number)]


def typed(patch: pytest.MonkeyPatch, *words: str | Path) -> Ended:
    """As typed in a shell: run.json keeps the words."""
    patch.setattr(sys, "argv", ["cbbench", *map(str, words)])
    return command(*words)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run of 2 arms x 3 rounds: its second cell failed, an interrupt came inside the fifth."""
    folder = tmp_path_factory.mktemp("stopped")
    workload = write_workload(folder, YAML, ROWS)
    plan, measure, cells, plans = Continuous.plan, LocalCells.measure, [], []

    def measured(self: LocalCells, *given: Any) -> Any:
        cells.append(given[0].label)
        plans.clear()
        return measure(self, *given)

    def planned(self: Continuous, *given: Any) -> Any:
        plans.append(None)
        if (len(cells), len(plans)) == (2, 2):
            raise OSError("a bad moment")
        if (len(cells), len(plans)) == (5, 3):
            raise KeyboardInterrupt
        return plan(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalCells, "measure", measured)
        patch.setattr(Continuous, "plan", planned)
        ended = typed(patch, "run", workload, "--out", folder / "r")
    assert ended.code == 130 and cells == [label for label, _ in CELLS[:5]], ended.err
    yield run_folder(folder / "r")


@pytest.fixture
def half(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, to go on with."""
    return Path(shutil.copytree(stopped, tmp_path / "half"))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arms that ran from here on."""
    measure, found = LocalCells.measure, []

    def measured(self: LocalCells, *given: Any) -> Any:
        found.append(given[0].label)
        return measure(self, *given)

    monkeypatch.setattr(LocalCells, "measure", measured)
    return found


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Everything in it, and when it was written."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def info(run: Path) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads((run / "run.json").read_text()))


def change_info(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = info(run)
    change(data)
    (run / "run.json").write_text(json.dumps(data))


def whole(run: Path) -> list[tuple[str, int]]:
    found = read_run(run)
    assert found.problems == []
    return [(cell.arm, cell.round) for cell in found.cells if not cell.failed and not cell.interrupted]


def workload_of(stopped: Path) -> Path:
    return stopped.parents[1] / "w.yaml"


def test_what_the_interrupt_left_is_labelled_and_says_how_to_go_on(stopped: Path) -> None:
    found = {(cell.arm, cell.round): cell for cell in read_run(stopped).cells}
    assert found.keys() == set(CELLS[:5]) and info(stopped)["finished"] is False
    assert (str(found[CELLS[1]].failed).partition(" (")[0], found[CELLS[4]].interrupted) == ("OSError: a bad moment", True)
    assert info(stopped)["command"] == ["cbbench", "run", str(workload_of(stopped)), "--out", str(stopped.parent)]


@pytest.mark.parametrize("alone", [True, False])
def test_a_resumed_run_keeps_whole_rounds_and_runs_the_failed_and_the_interrupted_ones_anew(
    stopped: Path, half: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    (half / CELLS[5][0] / ".3").mkdir(parents=True, exist_ok=True)
    (half / CELLS[5][0] / ".3" / "steps.jsonl").write_text("of a run that was killed")
    kept = {name: at for name, at in files(half).items() if tuple(name.split("/")[:2]) in [(a, str(n)) for a, n in (CELLS[0], *CELLS[2:4])]}
    words = ["run"] if alone else ["run", workload_of(stopped), "--out", half.parent / "unused"]
    ended = typed(monkeypatch, *words, "--resume", half)
    assert ended.code == 0 and f"saved in {half}\n" in ended.err, ended.err
    assert ran == [CELLS[index][0] for index in (1, 4, 5)]
    after = files(half)
    assert len(kept) == 9 and {name: after[name] for name in kept} == kept
    assert sorted(whole(half)) == sorted(CELLS) and info(half)["finished"] is True
    assert not [*half.rglob(".*")] and not (half.parent / "unused").exists()
    assert [*stopped.parent.iterdir()] == [stopped]


def test_a_resumed_run_has_the_counts_of_one_that_was_never_interrupted(
    stopped: Path, half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed(monkeypatch, "run", "--resume", half).code == 0
    assert typed(monkeypatch, "run", workload_of(stopped), "--out", tmp_path / "r").code == 0
    told = [{(cell.arm, cell.round): cell.metrics for cell in read_run(run).cells} for run in (half, run_folder(tmp_path / "r"))]
    assert told[0] == told[1]


def test_a_complete_run_resumed_runs_nothing_and_ends_with_0(half: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert typed(monkeypatch, "run", "--resume", half).code == 0
    before, _ = files(half), ran.clear()
    ended = typed(monkeypatch, "run", "--resume", half)
    assert (ended.code, ran) == (0, []), ended.err
    assert {name: at for name, at in files(half).items() if "/" in name} == {name: at for name, at in before.items() if "/" in name}
    assert info(half)["finished"] is True and CAT in ended.out


def test_a_run_resumed_alone_can_be_interrupted_and_resumed_alone_again(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = info(half)
    with monkeypatch.context() as patch:
        patch.setattr(LocalCells, "measure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert typed(patch, "run", "--resume", half).code == 130
    assert info(half)["command"] == begun["command"] and info(half)["created"] == begun["created"]
    assert typed(monkeypatch, "run", "--resume", half).code == 0 and sorted(whole(half)) == sorted(CELLS)


@pytest.mark.parametrize("alone", [True, False])
def test_more_rounds_than_before_are_added(stopped: Path, half: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    words = ["run"] if alone else ["run", workload_of(stopped)]
    ended = typed(monkeypatch, *words, "--rounds", "4", "--resume", half)
    assert ended.code == 0, ended.err
    assert (len(ran), info(half)["rounds"]) == (5, 4)
    assert {number for _, number in whole(half)} == {1, 2, 3, 4} and len(whole(half)) == 8


OTHER_RUNS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "workload": (lambda run: run["workload"].update(digest="0" * 16), "workload digest"),
    "arrivals": (lambda run: run["workload"].update(arrivals="recorded"), "workload arrivals"),
    "model": (lambda run: run["model"].update(digest="0" * 16), "model digest"),
    "dtype": (lambda run: run["model"].update(dtype="bfloat16"), "model dtype"),
    "prepared": (lambda run: run["model"].update(prepared={"fused": 9}), "model prepared"),
    "arms": (lambda run: run["arms"].pop(), "arms"),
    "option": (lambda run: run["arms"][0]["kv"].update(block_size=99), "arms"),
    "budget": (lambda run: run["arms"][1].update(budget_tokens=1), "arms"),
    "warmup": (lambda run: run.update(warmup=7), "warmup"),
    "device": (lambda run: run.update(device="cuda"), "device"),
    "machine": (lambda run: run["machine"].update(cores=3, cpu="Another"), "machine"),
    "isolated": (lambda run: run.update(isolated=True), "isolated"),
    "two at once": (lambda run: (run.update(warmup=7), run["model"].update(dtype="float16")), "warmup, model dtype"),
}


@pytest.mark.parametrize("what", OTHER_RUNS)
def test_another_run_is_not_gone_on_with_and_what_differs_is_named(
    half: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    change, named = OTHER_RUNS[what]
    change_info(half, change)
    before = files(half)
    ended = typed(monkeypatch, "run", "--resume", half)
    assert ended.mistake == f"--resume {half}: that run was another: its {named} differ"
    assert files(half) == before and ran == []


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "missing": lambda path: path.unlink(),
    "half": lambda path: path.write_text(path.read_text()[:300]),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda path: path.write_text("[]"),
    "no command": lambda path: change_info(path.parent, lambda run: run.pop("command")),
    "a command of one word": lambda path: change_info(path.parent, lambda run: run.update(command=["cbbench"])),
    "a command of numbers": lambda path: change_info(path.parent, lambda run: run.update(command=["cbbench", 7])),
    "a command without a workload": lambda path: change_info(path.parent, lambda run: run.update(command=["cbbench", "run"])),
    "workload is a text": lambda path: change_info(path.parent, lambda run: run.update(workload="w")),
    "another schema": lambda path: change_info(path.parent, lambda run: run.update(schema_version=99)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_one_line_and_stays_as_it_is(half: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    DAMAGE[damage](half / "run.json")
    before = files(half)
    assert typed(monkeypatch, "run", "--resume", half).mistake.startswith(f"--resume {half}: ")
    assert files(half) == before and ran == []


def test_a_run_that_is_not_there_is_one_line(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["run"], ["run", workload_of(stopped)]):
        assert "no run that can be read there" in typed(monkeypatch, *words, "--resume", tmp_path / "no").mistake
    assert typed(monkeypatch, "run").mistake == "run needs a workload, or --resume RUN" and [*tmp_path.iterdir()] == []


def test_what_was_wrong_in_a_kept_round_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = write_workload(tmp_path, "requests: w.jsonl\nmodel: none\n", [*ROWS, {"id": "x", "prompt_ids": [], "max_new_tokens": 1}])
    assert typed(monkeypatch, "run", workload, "--rounds", "1", "--out", tmp_path / "r").code == 3
    assert typed(monkeypatch, "run", workload, "--rounds", "1", "--resume", run_folder(tmp_path / "r")).code == 3
