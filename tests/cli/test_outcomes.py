"""How `cbbench run` ends when something is wrong: exit codes 3, 4 and 130, and what is said about it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import cbbench.model.reference
import cbbench.runs.runner
import cbbench.runs.session
from cbbench.results.store import RunDir
from tests.support.commands import (
    ENVIRONMENT,
    SUBPROCESS,
    command,
    read_lines,
    run,
    run_folder,
    run_json,
    write_lines,
)


def copied(recorded: Path, folder: Path, change: dict[str, dict[str, Any]] | None = None) -> Path:
    """The recorded workload elsewhere, with the lines of some ids changed."""
    folder.mkdir(exist_ok=True)
    (folder / "w.yaml").write_text(recorded.read_text())
    rows = [row | (change or {}).get(row["id"], {}) for row in read_lines(recorded.with_suffix(".jsonl"))]
    write_lines(folder / "w.jsonl", rows)
    return folder / "w.yaml"


def test_a_refused_request_leaves_the_others_exact_and_ends_with_3(recorded: Path, tmp_path: Path) -> None:
    workload = copied(recorded, tmp_path / "w", {"one": {"prompt_ids": [], "output_ids": None}})
    ended = run_json(workload, tmp_path)
    (row,) = ended.rows.values()
    assert (ended.code, row["requests_refused"], row["requests_completed"], row["exact_matched"]) == (3, 1, 3, 3)
    assert "1 refused" in run(workload, tmp_path).out
    nothing = run_json(copied(recorded, tmp_path / "n"), tmp_path, "--memory-budget", "2 tokens", "--kv", "cat")
    assert (nothing.code, nothing.rows["continuous+varlen+cat"]["requests_refused"]) == (3, 3)
    assert nothing.rows["continuous+varlen+cat"]["tpot_s_p50"] is None


def test_a_token_that_differs_ends_with_4_and_is_named(recorded: Path, tmp_path: Path) -> None:
    tokens = next(row["output_ids"] for row in read_lines(recorded.with_suffix(".jsonl")) if row["id"] == "last")
    other = (tokens[3] + 1) % 300
    workload = copied(recorded, tmp_path / "w", {"last": {"output_ids": [*tokens[:3], other, *tokens[4:]]}})
    ended = run_json(workload, tmp_path, "--kv", "cat,paged")
    assert ended.code == 4
    said = re.findall(rf"wrong: request last, token 3: expected {other}, got {tokens[3]}, logit gap ([\d.e+-]+)", ended.err)
    assert len(said) == 2, ended.err
    assert all(float(gap) > 1e-3 for gap in said)
    assert [(row["exact_checked"], row["exact_matched"], row["exact_wrong"]) for row in ended.rows.values()] == [(4, 3, 1)] * 2
    saved = next(row for row in read_lines(next((tmp_path / "results").glob("*/*/1/requests.jsonl"))) if row["id"] == "last")
    assert (saved["outcome"], saved["position"], saved["expected"], saved["got"]) == ("wrong", 3, other, tokens[3])


def test_a_missing_token_ends_with_4_too(recorded: Path, tmp_path: Path) -> None:
    tokens = next(row["output_ids"] for row in read_lines(recorded.with_suffix(".jsonl")) if row["id"] == "short")
    ended = run(copied(recorded, tmp_path / "w", {"short": {"output_ids": tokens[:-1]}}), tmp_path)
    assert ended.code == 4 and f"wrong: request short, token 6: expected None, got {tokens[-1]}" in ended.err
    assert "3/4 exact, 1 WRONG" in ended.out


RAISING = """
from cbbench.schedulers.continuous import Continuous
from cbbench.kvcache.cat import Cat
from cbbench.attention.serial import Serial

def boom(*_):
    raise RuntimeError("no luck\\nsecond line")

class Plan(Continuous): plan = boom
class NoScheduler(Continuous): __init__ = boom
class Reserve(Cat): reserve = boom
class NoCache(Cat): __init__ = boom
class View(Cat): view = boom
class Lay(Serial): lay_out = boom
class Attend(Serial): attend = boom
class NoAttention(Serial): __init__ = boom
class Backend(Serial): backend = boom
"""


@pytest.mark.parametrize(
    "arm",
    ["x:Plan+serial+cat", "x:NoScheduler+serial+cat", "static+serial+x:Reserve", "static+serial+x:NoCache", "static+serial+x:View",
     "static+x:Lay+cat", "static+x:Attend+cat", "static+x:NoAttention+cat", "static+x:Backend+cat"],
)  # fmt: skip
def test_an_arm_that_fails_is_a_row_with_its_reason_and_the_others_go_on(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    (tmp_path / "raising_strategies.py").write_text(RAISING)
    monkeypatch.syspath_prepend(tmp_path)
    arm = arm.replace("x:", "raising_strategies:")
    ended = run_json(recorded, tmp_path, "--arm", arm, "--arm", "static+padded+cat")
    assert ended.code == 3, ended.err
    failed, fine = ended.data[0]["cells"]
    assert (failed["arm"], failed["metrics"]) == (arm.replace(":", "."), {})
    assert failed["failed"] == "RuntimeError: no luck (raising_strategies.py:7, boom)", "with the strategy's own line"
    assert (fine["failed"], fine["metrics"]["exact_matched"]) == (None, 4), "the model's own attention came back"
    assert "failed in round 1: RuntimeError: no luck" in ended.err and "Traceback" not in ended.err
    shown = run(recorded, tmp_path, "--arm", arm, "--arm", "static+padded+cat")
    assert "failed: RuntimeError: no luck" in shown.out


STOPPING = """
import sys, time
from cbbench.schedulers.continuous import Continuous

class Stopping(Continuous):
    engines = 0

    def __init__(self, *given):
        super().__init__(*given)
        Stopping.engines += 1
        self.plans = 0

    def plan(self, now_s, room):
        self.plans += 1
        if (Stopping.engines, self.plans) == (2, 8):
            print("now", file=sys.stderr, flush=True)
            time.sleep(60)
        return super().plan(now_s, room)
"""


def test_an_interrupt_in_a_round_saves_it_labelled_and_ends_with_130(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "stopping_strategy.py").write_text(STOPPING)
    words = ["run", recorded, "--scheduler", "stopping_strategy:Stopping", "--rounds", "9", "--warmup", "0", "--format", "json"]
    environment = ENVIRONMENT | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([*SUBPROCESS, *words, "--out", tmp_path / "r"], stdout=-1, stderr=-1, text=True, env=environment) as process:
        assert process.stdout and process.stderr
        while process.stderr.readline() != "now\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert "(interrupted: whole rounds only; cbbench run --resume" in err and "Traceback" not in err
    folder = run_folder(tmp_path / "r")
    assert json.loads((folder / "run.json").read_text())["finished"] is False
    whole, part = (folder / "stopping_strategy.Stopping+varlen+paged" / number for number in "12")
    assert [json.loads((cell / "cell.json").read_text())["interrupted"] for cell in (whole, part)] == [False, True]
    assert (len(read_lines(whole / "steps.jsonl")), len(read_lines(part / "steps.jsonl"))) == (12, 7)
    assert [row["state"] for row in read_lines(part / "requests.jsonl")] == ["finished", "finished", "finished", "running"]
    assert not [*folder.rglob(".*")], "nothing half-written is left"
    cells = json.loads(out)[0]["cells"]
    assert [(cell["round"], cell["interrupted"]) for cell in cells] == [(1, False), (2, True)]
    again = command("compare", folder, "--format", "json")
    assert (again.code, again.runs[0]["cells"]) == (0, cells)
    table = command("compare", folder, "--format", "markdown").out
    assert "4/4 exact" in table and "| 12 " in table.replace("12 |", "| 12 "), "the table is of the whole round alone"


@pytest.mark.parametrize("moment", ["warm-up", "judging", "writing"])
def test_an_interrupt_between_rounds_keeps_the_whole_ones_and_says_where(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    owner, name = {
        "warm-up": (cbbench.runs.runner, "warmup_requests"),
        "judging": (cbbench.model.reference, "judge"),
        "writing": (RunDir, "making"),
    }[moment]
    original, calls = getattr(owner, name), []

    def interrupting(*given: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == {"warm-up": 2, "judging": 6, "writing": 2}[moment]:
            raise KeyboardInterrupt
        return original(*given, **named)

    monkeypatch.setattr(owner, name, interrupting)
    ended = command("run", recorded, "--rounds", "3", "--warmup", "1", "--format", "json", "--out", tmp_path / "r")
    folder = run_folder(tmp_path / "r")
    assert ended.code == 130
    first = command("compare", folder, "--format", "json").runs[0]["cells"][0]
    assert (first["round"], first["interrupted"]) == (
        1,
        False,
    )
    assert f"saved in {folder}" in ended.err, "whoever stops a run is told where the rounds are"


def test_an_interrupt_before_anything_ran_ends_with_130_and_no_table(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cbbench.runs.session, "prepare", interrupt)
    ended = run(recorded, tmp_path)
    assert (ended.code, ended.out) == (130, "") and "interrupted" in ended.err
