"""What the README promises of exit codes, end to end: 0 fine, 1 a gate fired, 2 nothing was run, 3 incomplete or cannot vouch,
4 tokens not exact, 130 interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cbbench.results.compared_metrics import TIMED
from cbbench.results.store import write_json
from cbbench.runs.config import Arm
from cbbench.runs.runner import LocalCells, Runner
from tests.support.commands import command, read_lines, run_folder, write_config, write_lines, write_workload

GOOD = [{"id": str(i), "prompt_ids": [1] * (3 + i), "max_new_tokens": 2 + i, "ignore_eos": True} for i in range(3)]
REFUSED = {"id": "x", "prompt_ids": [], "max_new_tokens": 1}
PAGED, CAT, DENSE = "continuous+varlen+paged", "continuous+varlen+cat", "static+padded+preallocated"


def workload(folder: Path, rows: list[dict[str, Any]], model: str = "none") -> Path:
    folder.mkdir()
    return write_workload(folder, f"requests: w.jsonl\nmodel: {model}\nmeasure: {{rounds: 1, warmup: 0}}\n", rows)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, recorded: Path) -> Path:
    """Workloads and runs by name."""
    root = tmp_path_factory.mktemp("codes")
    workload(root / "good", GOOD)
    workload(root / "refused", [*GOOD, REFUSED])
    workload(root / "bad", [{"id": "a"}])
    workload(root / "other", GOOD[:1])
    wrong = workload(root / "wrong", [], write_config(recorded.parent))
    wrong.write_text(recorded.read_text())
    rows = read_lines(recorded.with_suffix(".jsonl"))
    write_lines(root / "wrong" / "w.jsonl", [rows[0] | {"output_ids": rows[0]["output_ids"][:-1]}, *rows[1:]])
    runs: dict[str, list[str | Path]] = {
        "run": [root / "good" / "w.yaml", "--kv", "paged,cat"],
        "later": [root / "good" / "w.yaml", "--kv", "paged,cat"],
        "moved": [root / "good" / "w.yaml", "--kv", "paged,cat", "--max-num-seqs", "1"],
        "elsewhere": [root / "other" / "w.yaml"],
        "timed": [recorded, "--kv", "paged,cat", "--rounds", "6", "--warmup", "0"],
    }
    for name, words in runs.items():
        ended = command("run", *words, "--threads", "1", "--out", root / "made" / name)
        assert ended.code == 0, ended.err
        shutil.copytree(run_folder(root / "made" / name), root / name)
    change_all(root / "later", PAGED, steps=999)
    for arm, rate in ((CAT, 10.0), (PAGED, 12.5)):  # made up, to be sure of
        change_all(
            root / "timed", arm, others_cpu_frac=0.0, **{metric.key: rate if metric.key == "output_tok_per_s" else 1.0 for metric in TIMED}
        )
    info = json.loads((root / "timed" / "run.json").read_text())
    shutil.copytree(root / "timed", root / "one-process")
    write_json(root / "timed" / "run.json", info | {"isolated": True})
    for name in ("failed", "one-damaged", "cell-damaged", "short"):
        shutil.copytree(root / ("timed" if name == "short" else "run"), root / name / "run")
    change_all(root / "failed" / "run", CAT, failed="no luck")
    for number in "23456":
        shutil.rmtree(root / "short" / "run" / CAT / number)
    shutil.copytree(root / "run", root / "one-damaged" / "damaged")
    (root / "one-damaged" / "damaged" / "run.json").write_text("{")
    (root / "cell-damaged" / "run" / CAT / "1" / "cell.json").write_text("{")
    (root / "empty").mkdir()
    for name, run in (("main", "run"), ("elsewhere", "elsewhere")):
        assert command("baseline", "save", name, root / run, "--reason", "x", "--folder", root / "kept").code == 0
    return root


def change_all(run: Path, arm: str, failed: str | None = None, **metrics: Any) -> None:
    """Every round of an arm says something else."""
    for path in (run / arm).glob("*/cell.json"):
        cell = json.loads(path.read_text())
        write_json(path, {**cell, "failed": failed, "metrics": {} if failed else cell["metrics"] | metrics})


@dataclass
class Interrupt:
    """Of a cell, before anything or in a later one."""

    at: int
    calls: int = 0

    def __call__(self, cells: LocalCells, arm: Arm, cell: dict[str, Any]) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return MEASURE(cells, arm, cell)


MEASURE = LocalCells.measure


def fails(cells: LocalCells, arm: Arm, cell: dict[str, Any]) -> Any:
    if arm.kv.name == "cat":
        raise OSError("no luck")
    return MEASURE(cells, arm, cell)


RUNS: dict[str, tuple[int, str, Any]] = {
    "all went well": (0, "good/w.yaml", None),
    "several arms": (0, "good/w.yaml --kv all --rounds 2", None),
    "exact tokens": (0, "RECORDED", None),
    "no such workload": (2, "nowhere.yaml", None),
    "a damaged workload": (2, "bad/w.yaml", None),
    "no such strategy": (2, "good/w.yaml --kv pagde", None),
    "no such flag": (2, "good/w.yaml --no-such-flag", None),
    "a bad value": (2, "good/w.yaml --rounds 0", None),
    "no such model": (2, "good/w.yaml --model random:nowhere.json", None),
    "no such device": (2, "RECORDED --device tpu", None),
    "no workload": (2, "", None),
    "nothing to resume": (2, "--resume empty", None),
    "another run to resume": (2, "other/w.yaml --resume run", None),
    "no such revision": (2, "good/w.yaml --against no-such-revision", None),
    "a request refused": (3, "refused/w.yaml", None),
    "an arm failed": (3, "good/w.yaml --kv cat,paged", fails),
    "every arm failed": (3, "good/w.yaml --kv cat", fails),
    "a wrong token": (4, "wrong/w.yaml", None),
    "a wrong token, and an arm failed": (4, "wrong/w.yaml --kv cat,paged", fails),
    "interrupted at once": (130, "good/w.yaml", Interrupt(1)),
    "interrupted later": (130, "good/w.yaml --rounds 3", Interrupt(2)),
    "interrupted after a wrong token": (130, "wrong/w.yaml --rounds 2", Interrupt(2)),
    "interrupted after a refusal": (130, "refused/w.yaml --rounds 2", Interrupt(2)),
}


@pytest.mark.parametrize("what", RUNS)
def test_run_ends_with(place: Path, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    code, text, measure = RUNS[what]
    if measure is not None:
        monkeypatch.setattr(LocalCells, "measure", lambda *given: measure(*given))
    monkeypatch.chdir(place)
    words = [str(recorded) if word == "RECORDED" else word for word in text.split()]
    ended = command("run", *words, "--out", tmp_path / "r")
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err
    assert (ended.out == "") == (code == 2)
    assert (tmp_path / "r").exists() == (code != 2), "what is refused leaves nothing, all else is saved"


COMPARED: dict[str, tuple[int, str]] = {
    "nothing gated, a regression": (0, "later --baseline main"),
    "nothing gated, a failed arm": (0, "failed"),
    "nothing gated, a damaged run among good ones": (0, "one-damaged"),
    "nothing gated, a damaged round": (0, "cell-damaged"),
    "nothing gated, other work": (0, "moved --baseline main"),
    "nothing gated, no such workload": (0, "run --baseline elsewhere"),
    "the same counts": (0, "run --baseline main --fail-on regressed --fail-on missing --fail-on unresolved"),
    "a time within its own margin": (0, "timed --fail-on throughput:30%"),
    "a time of no arm that is compared": (3, f"timed --fail-on throughput:5%@{PAGED}"),
    "too few rounds, only regressions gated": (3, "short --fail-on regressed"),
    "too few rounds, one time gated": (3, "short --fail-on throughput:10%"),
    "rounds of one process": (3, "one-process --fail-on throughput:5%"),
    "rounds of one process, allowed": (1, "one-process --fail-on throughput:5% --allow process"),
    "counts alone, asked for by name": (0, "run --baseline main --fail-on regressed --only exact"),
    "counts alone, and a time asked for": (2, "run --fail-on ttft:5% --only exact"),
    "a count moved": (1, "later --baseline main --fail-on regressed"),
    "a time moved": (1, "timed --fail-on throughput:5%"),
    "a time moved, of that arm": (1, f"timed --fail-on throughput:5%@*{CAT[-3:]}"),
    "too few rounds": (1, "short --fail-on unresolved"),
    "a failed arm is missing": (1, "failed --fail-on missing"),
    "an arm without a round is missing": (1, "cell-damaged --fail-on missing"),
    "a hit beside a hole": (1, "later failed --baseline main --fail-on regressed"),
    "a hit beside a damaged run": (1, "later one-damaged --baseline main --fail-on regressed"),
    "an empty folder": (2, "empty"),
    "an empty folder, gated": (2, "empty --fail-on regressed"),
    "no such folder": (2, "nowhere"),
    "only a damaged run": (2, "one-damaged/damaged"),
    "no such baseline": (3, "run --baseline mian --fail-on regressed"),
    "no such rule": (2, "run --fail-on regresed"),
    "no such metric": (2, "run --fail-on speed:5%"),
    "no percentage": (2, "run --margin 5"),
    "no such format": (2, "run --format xls"),
    "a file of no known kind": (2, "run --out x.pdf"),
    "a failed arm": (3, "failed --fail-on regressed"),
    "a damaged run among good ones": (3, "one-damaged --fail-on regressed"),
    "a damaged run beside one that was judged": (3, "one-damaged timed --fail-on unresolved"),
    "a damaged round": (3, "cell-damaged --fail-on regressed"),
    "other work": (3, "moved --baseline main --fail-on regressed"),
    "a workload that the baseline has not": (3, "run --baseline elsewhere --fail-on regressed"),
    "one arm and no baseline: nothing to judge": (3, "elsewhere --fail-on regressed"),
}


@pytest.mark.parametrize("what", COMPARED)
def test_compare_ends_with(place: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    code, text = COMPARED[what]
    monkeypatch.chdir(place)
    ended = command("compare", *text.split(), "--folder", "kept")
    assert ended.code == code, ended.out + ended.err
    assert (ended.out == "") == (code == 2 or what == "no such baseline") and "Traceback" not in ended.err
    said = {0: "gate: passed" if "--fail-on" in text else "gate: not gated", 1: "gate: FAILED: ", 3: "gate: CANNOT VOUCH: "}
    if what == "no such baseline":
        assert "a gate cannot vouch without it" in ended.err
    else:
        assert code == 2 or said[code] in ended.out or (code == 0 and "Verdicts" not in ended.out and "--fail-on" not in text)
    assert what != "a damaged run beside one that was judged" or "could not be read" in ended.out


def test_runs_are_found_below_any_folder(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run", tmp_path / "baselines" / "of-mine" / "run")
    assert command("compare", tmp_path / "baselines" / "of-mine").code == 0


def test_run_codes_rank_interrupted_over_wrong_over_incomplete() -> None:
    from cbbench.runs.runner import Outcome

    cases = {(1, 1, True): 130, (0, 0, True): 130, (1, 1, False): 4, (1, 0, False): 4, (0, 1, False): 3, (0, 0, False): 0}
    assert {case: Outcome(*case).exit_code for case in cases} == cases


HELD: list[Callable[[Path], list[str | Path]]] = [
    lambda place: ["baseline", "save", "x", place / "nowhere", "--reason", "y"],
    lambda place: ["baseline", "save", "x", place / "failed", "--reason", "y"],
    lambda place: ["baseline", "save", "x", place / "one-damaged", "--reason", "y"],
    lambda place: ["calibrate", place / "good" / "w.yaml", "--rounds", "5"],
    lambda place: ["calibrate", place / "nowhere.yaml"],
]


@pytest.mark.parametrize("words", HELD)
def test_other_commands_refuse_with_2_and_leave_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Callable[[Path], list[str | Path]]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Runner, "run", lambda *_: pytest.fail("something ran"))
    ended = command(*words(place))
    assert (ended.code, ended.out, [*tmp_path.iterdir()]) == (2, "", []) and "Traceback" not in ended.err
