"""`run --isolate`: a process for each arm and round that computes what this process would have computed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import cbbench.runs.isolate
from cbbench.compare.arms import exact_metrics
from cbbench.model.load import relocated, sketch
from cbbench.results.store import Run, read_run
from tests.support.commands import (
    ENVIRONMENT,
    SUBPROCESS,
    Ended,
    command,
    read_lines,
    run_folder,
    write_config,
    write_lines,
    write_workload,
)

SMALL, CAT = ARMS = ["continuous+varlen+paged(block_size=4)", "static(max_wait_s=0.5)+padded+cat"]
ARMS_YAML = [
    {"kv": {"name": "paged", "block_size": 4}, "memory_budget": "64 tokens", "baseline": True},
    {"scheduler": {"name": "static", "max_wait_s": 0.5}, "attn": "padded", "kv": "cat", "max_num_seqs": 3},
]


@dataclass(frozen=True)
class Both:
    """The same job in this process and in others."""

    ended: dict[str, Ended]
    runs: dict[str, Run]
    started: list[list[str]]  # the command of every process
    left: list[Path]  # in the folder of temporary files


@pytest.fixture(scope="module")
def both(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Inline requests with recorded references, a model path relative to the workload, two arms with options and limits."""
    folder, temp = tmp_path_factory.mktemp("both"), tmp_path_factory.mktemp("temp")
    shutil.copy(recorded.parent / "tiny.json", folder / "shape.json")
    said = yaml.safe_load(recorded.read_text()) | {"model": "random:shape.json", "requests": read_lines(recorded.with_suffix(".jsonl"))}
    workload = folder / "inline.yaml"
    workload.write_text(yaml.safe_dump(said | {"engine": {"max_num_seqs": 2}, "arms": ARMS_YAML, "source": {"from": "a test"}}))
    started: list[list[str]] = []

    def watched(words: Any, **named: Any) -> Any:
        started.append(words)
        return subprocess.run(words, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temp))
        patch.setattr(cbbench.runs.isolate, "subprocess", SimpleNamespace(**vars(subprocess) | {"run": watched}))
        words = ["run", workload, "--rounds", "2", "--warmup", "0", "--threads", "1", "--format", "json", "--out"]
        ended = {"here": command(*words, folder / "here")}
        assert not started
        ended["apart"] = command(*words, folder / "apart", "--isolate")
    runs = {where: read_run(run_folder(folder / where)) for where in ended}
    yield Both(ended, runs, started, [*temp.glob("cbbench-*")])


def counts(run: Run) -> dict[tuple[str, int], dict[str, Any]]:
    """What does not depend on time: the exact metrics, and how the tokens and requests fared."""
    keys = [metric.key for metric in exact_metrics({"workload": {"arrivals": "offline"}, "model": {"digest": "x", "dtype": "float32"}})]
    keys += ["prompt_tokens", "exact_checked", "exact_matched", "exact_wrong", "requests_completed", "kv_used_tokens_peak"]
    return {(cell.arm, cell.round): {key: cell.metrics[key] for key in keys} for cell in run.cells}


def test_tokens_counts_and_exit_code_are_those_of_one_process(both: Both) -> None:
    assert [ended.code for ended in both.ended.values()] == [0, 0], both.ended["apart"].err
    assert counts(both.runs["apart"]) == counts(both.runs["here"])
    assert set(counts(both.runs["apart"])) == {(arm, number) for arm in ARMS for number in (1, 2)}
    assert {(row["exact_checked"], row["exact_matched"]) for row in counts(both.runs["apart"]).values()} == {(4, 4)}
    assert len({row["steps"] for row in counts(both.runs["apart"]).values()}) == 2, "the arms do different things"


def test_options_and_budgets_of_an_arm_reach_its_process(both: Both) -> None:
    alike = [{key: run.info[key] for key in ("arms", "workload", "model", "machine")} for run in both.runs.values()]
    assert alike[0] == alike[1] and [both.runs[where].info["isolated"] for where in ("here", "apart")] == [False, True]
    small, cat = alike[1]["arms"]
    assert (small["budget_tokens"], small["max_num_seqs"], cat["max_num_seqs"]) == (64, 2, 3)
    for where in ("here", "apart"):
        cells = {cell.arm: cell.metrics for cell in both.runs[where].cells}
        assert cells[SMALL]["kv_reserved_tokens_peak"] % 4 == 0 and cells[SMALL]["kv_reserved_tokens_peak"] <= 64


def test_records_say_the_same_but_for_time(both: Both) -> None:
    timeless = [
        [[{key: value for key, value in row.items() if not key.endswith(("_s", "_times_s"))} for row in read_lines(path)]
         for path in sorted(run.path.glob(f"*/[12]/{name}.jsonl"))]
        for name in ("steps", "requests") for run in (both.runs["here"], both.runs["apart"])
    ]  # fmt: skip
    assert timeless[0] == timeless[1] and timeless[2] == timeless[3] and len(timeless[0]) == 4


def test_each_cell_has_a_process_of_its_own_and_leaves_nothing(both: Both) -> None:
    cells = [words for words in both.started if "run" in words]
    assert len(cells) == 4 and all(words[words.index("--rounds") + 1] == "1" for words in cells)
    assert both.left == [] and not [*both.runs["apart"].path.rglob(".*")]
    assert sorted(path.name for path in both.runs["apart"].path.iterdir()) == sorted([*ARMS, "run.json", "summary.csv", "summary.md"])


def test_a_run_apart_is_read_like_any_other(both: Both) -> None:
    ended = command("compare", both.runs["apart"].path, "--format", "json")
    assert ended.code == 0 and {row["base"] for row in ended.data["verdicts"]} == {SMALL}, ended.out
    assert {row["metric"] for row in ended.data["verdicts"]} >= {"output_tok_per_s", "ttft_s_p50", "peak_memory_bytes"}


HASHED = [{"id": str(i), "prompt_tokens": 9 + i, "blocks": [0, i], "max_new_tokens": 3 + i, "ignore_eos": True} for i in range(1, 4)]
HASHED_YAML = "requests: w.jsonl\nmodel: none\nprompts: {seed: 5, namespace: mine, block_tokens: 8}\narrivals: offline\n"


def test_hashed_prompts_a_model_of_the_command_line_and_verified_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    write_config(tmp_path / "models")
    workload = write_workload(tmp_path, HASHED_YAML, HASHED)
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "models")
    words = ["run", workload, "--model", "random:tiny.json@3", "--verify", "--rounds", "1", "--warmup", "0", "--threads", "1", "--out"]
    ended = [command(*words, tmp_path / where, *flags) for where, flags in (("here", []), ("apart", ["--isolate"]))]
    here, apart = (read_run(run_folder(tmp_path / where)) for where in ("here", "apart"))
    assert [one.code for one in ended] == [0, 0] and counts(apart) == counts(here), ended[1].err
    assert [cell.metrics["exact_matched"] for cell in apart.cells] == [3] and apart.info["workload"] == here.info["workload"]


def test_a_relative_model_is_found_where_the_folder_of_temporary_files_is_a_link(tmp_path: Path) -> None:
    name = write_config(tmp_path).replace(f"{tmp_path}/", "")
    (tmp_path / "deep" / "er" / "made").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    for made in (tmp_path / "deep" / "er" / "made", tmp_path / "link" / "made"):
        assert sketch(relocated(f"{name}@3", tmp_path, made), base_dir=made).max_positions == 640


STRATEGIES = """
import os, pathlib, time
from cbbench.schedulers.continuous import Continuous

class Raises(Continuous):
    def plan(self, *_):
        raise RuntimeError("no luck\\nsecond line")

class Dies(Continuous):
    def plan(self, *_):
        os._exit(9)

class Waits(Continuous):
    def plan(self, *given):
        marks = pathlib.Path(os.environ["MARKS"])
        (marks / str(os.getpid())).touch()
        while len([*marks.iterdir()]) > 2:
            (marks / "now").touch()
            time.sleep(0.05)
        return super().plan(*given)
"""


@pytest.fixture
def dropped_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with strategies, on the path of this process and of those it starts."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "apart_strategies.py").write_text(STRATEGIES)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    return folder


def test_a_process_that_crashes_is_a_failed_cell_with_its_reason_and_the_others_go_on(dropped_in: Path, tmp_path: Path) -> None:
    workload = write_workload(tmp_path, "requests: w.jsonl\nmodel: none\n")
    arms = [f"{scheduler}+varlen+paged" for scheduler in ("apart_strategies:Raises", "apart_strategies:Dies", "continuous")]
    flags = [word for arm in arms for word in ("--arm", arm)]
    ended = command("run", workload, *flags, "--isolate", "--rounds", "1", "--format", "json", "--out", tmp_path / "r")
    raised, died, fine = ended.data[0]["cells"]
    assert ended.code == 3 and "Traceback" not in ended.err
    assert raised["failed"] == "RuntimeError: no luck (apart_strategies.py:7, plan)"
    assert died["failed"].startswith("RuntimeError: the process ended with 9")
    assert fine["failed"] is None and fine["metrics"]["steps"] == 4
    folder = run_folder(tmp_path / "r")
    assert json.loads((folder / "run.json").read_text())["finished"] is True
    assert not [*folder.rglob(".*")] and not [*(tmp_path / "temp").glob("cbbench-*")]


def test_an_interrupt_of_the_whole_group_leaves_whole_rounds_and_ends_with_130(dropped_in: Path, tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    workload = write_workload(tmp_path, "requests: w.jsonl\nmodel: none\nengine: {scheduler: 'apart_strategies:Waits'}\n")
    environment = ENVIRONMENT | {"PYTHONPATH": str(dropped_in), "MARKS": str(tmp_path / "marks"), "TMPDIR": str(tmp_path / "temp")}
    # the third mark is the second process: the first one's own, one that is there from the start, and its own
    (tmp_path / "marks" / "start").touch()
    words = [*SUBPROCESS, "run", workload, "--isolate", "--rounds", "3", "--out", tmp_path / "r"]
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True, env=environment, start_new_session=True) as process:
        while not (tmp_path / "marks" / "now").exists() and process.poll() is None:
            time.sleep(0.05)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130, err
    found = read_run(run_folder(tmp_path / "r"))
    assert [(cell.round, cell.failed, cell.interrupted) for cell in found.cells] == [(1, None, False)]
    assert found.info["finished"] is False and "cbbench run --resume" in err and "Traceback" not in err
    assert not [*found.path.rglob(".*")] and not [*(tmp_path / "temp").glob("cbbench-*")] and "apart_strategies.Waits" in out


def test_a_mistake_is_refused_before_any_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cbbench.runs.isolate.IsolatedCells, "run", lambda *_: pytest.fail("a process was started"))
    workload = write_workload(tmp_path, "requests: w.jsonl\nmodel: random:nowhere.json\n")
    assert "no file" in command("run", workload, "--isolate", "--out", tmp_path / "r").mistake
    assert not (tmp_path / "r").exists()
    assert write_lines(tmp_path / "w.jsonl", []) and command("run", workload, "--isolate", "--out", tmp_path / "r").code == 2
