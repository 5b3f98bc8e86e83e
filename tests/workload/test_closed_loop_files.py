"""Closed loop as a file asks for it: who may come after whom, what a run and the digest make of that, and the warm-up."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import cbbench.runs.runner
from cbbench.clock import RealClock
from cbbench.workload.file import digest, read_workload, resolve
from tests.support.commands import command, read_lines, refusal, run_folder, run_json, write_config, write_workload

SESSION = [
    {"id": "a", "prompt_ids": [1, 2, 3], "max_new_tokens": 2, "arrival_s": 1, "ignore_eos": True},
    {"id": "b", "prompt_ids": [1, 2, 3, 4], "max_new_tokens": 3, "arrival_s": 2, "after": "a", "think_s": 5, "ignore_eos": True},
]


@pytest.mark.parametrize(
    ("arrivals", "at"), [("closed", [1, 8]), ("recorded", [1, 2]), ("offline", [0, 0]), ("{constant: {rate_per_s: 4}}", [0, 0.25])]
)
def test_only_a_closed_loop_asks_who_comes_after_whom(tmp_path: Path, arrivals: str, at: list[float]) -> None:
    path = write_workload(tmp_path, f"requests: w.jsonl\narrivals: {arrivals}\n", SESSION)
    ended = run_json(path, tmp_path, "--model", "none")
    assert ended.code == 0, ended.err
    lines = read_lines(run_folder(tmp_path / "results") / "continuous+varlen+paged" / "1" / "requests.jsonl")
    assert [line["arrival_s"] for line in lines] == at


@pytest.mark.parametrize(("after", "lines"), [("zzz", 2), ("c", 3), ("b", 2)], ids=["unknown", "later", "itself"])
def test_a_turn_after_nobody_earlier_is_refused_with_its_line(tmp_path: Path, after: str, lines: int) -> None:
    path = write_workload(
        tmp_path, "requests: w.jsonl\narrivals: closed\n", [SESSION[0], SESSION[1] | {"after": after}, {**SESSION[0], "id": "c"}]
    )
    assert refusal(lambda: read_workload(path)) == f"{tmp_path / 'w.jsonl'}:2: request 'b' comes after {after!r}, which no earlier line has"
    inline = tmp_path / "inline.yaml"
    inline.write_text("arrivals: closed\nrequests:\n  - {id: a, prompt_ids: [1], max_new_tokens: 1, after: a}\n")
    assert refusal(lambda: read_workload(inline)).startswith(f"{inline}:3:5: request 'a' comes after 'a'")


def digest_of(folder: Path, arrivals: str, rows: list[dict[str, Any]]) -> str:
    return digest(resolve(read_workload(write_workload(folder, f"requests: w.jsonl\narrivals: {arrivals}\n", rows)), None))


def test_the_digest_tells_closed_from_recorded_only_where_somebody_comes_after_another(tmp_path: Path) -> None:
    closed, recorded = (digest_of(tmp_path, arrivals, SESSION) for arrivals in ("closed", "recorded"))
    longer = digest_of(tmp_path, "closed", [SESSION[0], SESSION[1] | {"think_s": 6}])
    assert len({closed, recorded, longer}) == 3
    alone = [{key: value for key, value in row.items() if key not in ("after", "think_s")} for row in SESSION]
    text = "\n".join(json.dumps([row["prompt_ids"], row["max_new_tokens"], True, float(row["arrival_s"])]) for row in alone)
    expected = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert digest_of(tmp_path, "closed", alone) == digest_of(tmp_path, "recorded", alone) == recorded == expected


def test_the_digest_of_a_closed_loop_ignores_names_and_times_that_do_not_count(tmp_path: Path) -> None:
    same = [SESSION[0] | {"id": "first"}, SESSION[1] | {"after": "first", "arrival_s": 77}]
    assert digest_of(tmp_path, "closed", SESSION) == digest_of(tmp_path, "closed", same)


def test_a_warm_up_does_not_think(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Skipping(RealClock):
        def wait_until(self, moment_s: float) -> None:
            waits.append(moment_s)
            self._start -= max(moment_s - self.now(), 0)

    monkeypatch.setattr(cbbench.runs.runner, "RealClock", Skipping)
    path = write_workload(tmp_path, "requests: w.jsonl\narrivals: closed\n", [SESSION[0] | {"arrival_s": 0}, SESSION[1]])
    words = ("--model", write_config(tmp_path), "--warmup", "2", "--rounds", "1", "--out", tmp_path / "results", "--format", "json")
    ended = command("run", path, *words)
    assert ended.code == 0 and ended.rows["continuous+varlen+paged"]["requests_completed"] == 2, ended.err
    assert len(waits) == 1 and waits[0] > 5
