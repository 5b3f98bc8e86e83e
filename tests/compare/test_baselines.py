"""Saved baselines: what is kept, when it is refused, and what a later run is held to."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from cbbench.compare.baselines import MAX_HISTORY
from cbbench.results.compared_metrics import EXACT, TIMED
from tests.support.commands import Ended, command, run_folder, write_config, write_workload
from tests.support.places import ROOT

ROWS = [{"id": str(i), "prompt_ids": [1] * (3 + i), "max_new_tokens": 2 + i, "ignore_eos": True} for i in range(4)]
PERF_ARMS = re.findall(r"--arm (\S+)", (ROOT / "Makefile").read_text())
PAGED, CAT = "continuous+varlen+paged", "continuous+varlen+cat"
YAML = "requests: w.jsonl\nmodel: none\nmeasure: {rounds: 2, warmup: 0}\n"


def made(folder: Path, *words: str, yaml: str = YAML) -> Path:
    """A run of it."""
    folder.mkdir(exist_ok=True)
    ended = command("run", write_workload(folder, yaml, ROWS), "--out", folder / "results", *words)
    assert ended.code == 0, ended.err
    return run_folder(folder / "results")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two arms on a tiny model."""
    folder = tmp_path_factory.mktemp("timed")
    return made(folder, "--kv", "paged,cat", "--threads", "1", yaml=YAML.replace("none", write_config(folder)))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the arms of `make check-perf`, without a model."""
    return made(tmp_path_factory.mktemp("counted"), *(word for arm in PERF_ARMS for word in ("--arm", arm)))


def named(run: Path, name: str, folder: Path) -> Path:
    """The same run under another name: a later one."""
    return Path(shutil.copytree(run, folder / name))


def save(tmp_path: Path, *words: str | Path, reason: str = "because") -> Ended:
    return command("baseline", "save", *words, "--folder", tmp_path / "kept", "--reason", reason)


def kept(tmp_path: Path, name: str = "main") -> Path:
    """The file of a baseline on the tiny model."""
    (found,) = (tmp_path / "kept" / name).glob("w-tiny-*.json")
    return found


def read(path: Path) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(path.read_text()))


def held(run: Path, tmp_path: Path, *words: str, baseline: str | Path = "main") -> Ended:
    return command("compare", run, "--baseline", baseline, "--folder", tmp_path / "kept", *words)


GATES = ("--fail-on", "regressed", "--fail-on", "missing")


def test_a_run_saved_is_listed_with_its_reason_and_passes_against_itself(timed: Path, tmp_path: Path) -> None:
    assert "none yet" in command("baseline", "list", "--folder", tmp_path / "kept").out
    ended = save(tmp_path, "main", timed, reason="  the first one ")
    path = kept(tmp_path)
    assert (ended.code, ended.out, ended.err) == (0, f"{path}\n", "")
    assert (read(path)["reason"], read(path)["name"], [*read(path)["arms"]]) == ("the first one", "main", [PAGED, CAT])
    listed = command("baseline", "list", "--folder", tmp_path / "kept").out
    (line,) = [line for line in listed.splitlines() if "main" in line]
    assert line.split()[:4] == ["main", path.stem, "2", "1"] and line.split()[-3:] == ["the", "first", "one"] and "0 d" in line
    counts = held(timed, tmp_path, *GATES, "--only", "exact")
    assert (counts.code, counts.err) == (0, "") and f"gate: passed ({2 * len(EXACT)} counts judged)" in counts.out
    times = held(timed, tmp_path, *GATES)
    assert times.code == 3 and "1 comparable run kept, 5 are needed to judge time" in times.out.split("gate: CANNOT VOUCH: ")[1]


def test_a_reason_and_a_plain_name_are_needed(counted: Path, tmp_path: Path) -> None:
    assert "--reason" in command("baseline", "save", "main", counted, "--folder", tmp_path / "kept").err
    assert "say why" in save(tmp_path, "main", counted, reason=" ").mistake
    for name in ("a/b", "../a", "/a", ".", "..", "", "a/"):
        assert "should be a plain name" in save(tmp_path, name, counted).mistake, name
    assert [*tmp_path.iterdir()] == []


def break_cells(run: Path, numbers: str, change: dict[str, Any] | None) -> None:
    for number in numbers:
        cell = run / CAT / number
        if change is None:
            shutil.rmtree(cell)
        else:
            (cell / "cell.json").write_text(json.dumps(read(cell / "cell.json") | change))


HOLES: dict[str, Callable[[Path], Any]] = {
    "failed": lambda run: break_cells(run, "12", {"failed": "no luck", "metrics": {}}),
    "interrupted": lambda run: break_cells(run, "12", {"interrupted": True}),
    "missing": lambda run: break_cells(run, "12", None),
    "a damaged round": lambda run: (run / CAT / "1" / "cell.json").write_text("{"),
    "a damaged run": lambda run: (run / "run.json").write_text("{"),
    "a failed round": lambda run: break_cells(run, "2", {"failed": "no luck", "metrics": {}}),
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_run_with_holes_is_refused_and_the_arm_named(timed: Path, tmp_path: Path, hole: str) -> None:
    run = named(timed, "holed", tmp_path)
    HOLES[hole](run)
    ended = save(tmp_path, "main", run)
    assert (ended.code, ended.out) == (2, "") and ended.err.splitlines()[-1].startswith("cbbench: "), ended.out
    assert hole == "a damaged run" or CAT in ended.err.splitlines()[-1]
    assert not (tmp_path / "kept").exists()


def test_runs_of_the_same_work_are_history_of_which_ten_are_kept(timed: Path, tmp_path: Path) -> None:
    for number in range(12):
        assert save(tmp_path, "main", named(timed, f"run-{number:02}", tmp_path)).code == 0
    path = kept(tmp_path)
    assert [run["run"] for run in read(path)["runs"]] == [f"run-{number:02}" for number in range(2, 12)] and MAX_HISTORY == 10
    assert save(tmp_path, "main", tmp_path / "run-05").code == 0
    assert [run["run"] for run in read(path)["runs"]][-2:] == ["run-11", "run-05"] and len(read(path)["runs"]) == 10
    judged = held(timed, tmp_path, "--format", "json").data["verdicts"]
    assert {row["outcome"] for row in judged if row["metric"] == "output_tok_per_s"} == {"same"}, "ten equal runs tell about time"
    assert not [*path.parent.glob(".*")]


def test_other_work_is_refused_and_begins_anew_where_that_is_asked_for(timed: Path, tmp_path: Path) -> None:
    assert save(tmp_path, "main", timed).code == 0
    other = named(timed, "other", tmp_path)
    info = read(other / "run.json")
    info["arms"][0]["max_num_seqs"] += 1
    (other / "run.json").write_text(json.dumps(info))
    assert "not comparable" in held(other, tmp_path).out and held(other, tmp_path, *GATES).code == 3
    said = save(tmp_path, "main", other).mistake
    assert said.startswith(f"{kept(tmp_path)}: keeps other work: {PAGED} (max_num_seqs 8 -> 9); --replace begins these arms anew")
    assert [[*run["arms"]] for run in read(kept(tmp_path))["runs"]] == [[PAGED, CAT]], "nothing was touched"
    ended = save(tmp_path, "main", other, "--replace")
    assert ended.code == 0 and f"begun anew: {PAGED}: max_num_seqs 8 -> 9" in ended.err
    assert [(run["run"], [*run["arms"]]) for run in read(kept(tmp_path))["runs"]] == [(timed.name, [CAT]), ("other", [PAGED, CAT])]


def test_exact_only_keeps_no_times(timed: Path, tmp_path: Path) -> None:
    assert save(tmp_path, "main", timed, "--exact-only").code == 0 and save(tmp_path, "all", timed).code == 0
    exact, whole = ({key for run in read(kept(tmp_path, name))["runs"] for arm in run["arms"].values() for key in arm}
                    for name in ("main", "all"))  # fmt: skip
    assert exact == {metric.key for metric in EXACT} and whole - exact <= {metric.key for metric in TIMED} and len(whole - exact) > 5
    judged = held(timed, tmp_path, *GATES, "--format", "json")
    assert judged.code == 0 and {row["exact"] for row in judged.data["verdicts"]} == {True}


def test_the_file_is_small_stable_and_says_nothing_about_this_machine_s_places(counted: Path, tmp_path: Path) -> None:
    assert len(PERF_ARMS) == 6 and save(tmp_path, "main", counted).code == 0
    path = tmp_path / "kept" / "main" / "w-virtual.json"
    text = path.read_text()
    assert len(text) < 20_000 and text.endswith("\n")
    places = {str(place) for place in (Path.home(), Path.cwd(), tmp_path, counted.parent, ROOT, socket.gethostname(), os.sep + "tmp")}
    assert [place for place in places if place in text.replace(read(path)["commit"] or "-", "")] == []
    assert save(tmp_path, "main", counted).code == 0
    before, after = json.loads(text), read(path)
    assert {**before, "saved": ""} == {**after, "saved": ""} and list(before) == list(after)
    assert [list(run["arms"]) for run in after["runs"]] == [list(after["arms"])] == [PERF_ARMS]


def test_a_baseline_is_a_name_a_file_a_folder_a_run_or_an_arm(timed: Path, tmp_path: Path) -> None:
    assert save(tmp_path, "main", timed).code == 0
    file = kept(tmp_path)
    for baseline in ("main", file, file.parent, timed):
        judged = held(timed, tmp_path, *GATES, "--only", "exact", "--format", "json", baseline=baseline)
        exact = [row["outcome"] for row in judged.data["verdicts"] if row["exact"]]
        assert (judged.code, set(exact), len(exact)) == (0, {"same"}, 2 * len(EXACT)), baseline
    within = held(timed, tmp_path, "--format", "json", baseline=CAT)
    assert {(row["base"], row["arm"]) for row in within.data["verdicts"]} == {(CAT, PAGED)}


def test_a_saved_name_wins_over_a_folder_that_happens_to_be_called_so(timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert save(tmp_path, "main", timed).code == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main").mkdir()
    assert held(timed, tmp_path, *GATES, "--only", "exact").code == 0


def test_a_baseline_that_is_not_there_is_one_line_with_what_there_is(timed: Path, tmp_path: Path) -> None:
    said = held(timed, tmp_path, baseline="mian").mistake
    assert said.startswith(f"--baseline mian: no run, no baseline in {tmp_path / 'kept'}") and f"arms are {PAGED}, {CAT}" in said
    gated = held(timed, tmp_path, *GATES, baseline="mian")
    assert (gated.code, gated.out) == (3, "") and gated.err == f"cbbench: {said}: a gate cannot vouch without it\n"
    assert held(timed, tmp_path, baseline=tmp_path / "nowhere" / "run").code == 2


def test_a_workload_that_the_baseline_has_not_is_a_hole(timed: Path, counted: Path, tmp_path: Path) -> None:
    assert save(tmp_path, "main", timed).code == 0
    assert held(counted, tmp_path).code == 0
    judged = held(counted, tmp_path, "--fail-on", "regressed")
    assert judged.code == 3 and "main has no w on a virtual clock" in judged.out and "CANNOT VOUCH: 6 needed rows" in judged.out
    assert held(counted, tmp_path, "--fail-on", "missing").code == 1


@pytest.mark.parametrize("key", [metric.key for metric in EXACT])
def test_a_count_that_moved_is_named(timed: Path, tmp_path: Path, key: str) -> None:
    assert save(tmp_path, "main", timed).code == 0
    path = kept(tmp_path)
    data = read(path)
    stored = data["runs"][-1]["arms"][PAGED][key]
    better = 1 if key == "output_tokens" else -1
    stored.update({number: "0" * 16 if isinstance(value, str) else value + better for number, value in stored.items()})
    path.write_text(json.dumps(data))
    judged = held(timed, tmp_path, *GATES, "--format", "json")
    (row,) = [row for row in judged.data["verdicts"] if row["outcome"] == "regressed"]
    assert (judged.code, row["arm"], row["metric"]) == (1, PAGED, key)
    assert row["why"] == ("other tokens" if key == "output_digest" else f"{-better:+}")
    assert held(timed, tmp_path).code == 0


def test_an_old_baseline_is_said_to_be_old(counted: Path, tmp_path: Path) -> None:
    assert save(tmp_path, "main", counted).code == 0
    path = tmp_path / "kept" / "main" / "w-virtual.json"
    for days, said in ((31, f"cbbench: {path}: saved 31 days ago\n"), (29, "")):
        at = datetime.now(UTC) - timedelta(days=days)
        path.write_text(json.dumps(read(path) | {"saved": at.strftime("%Y-%m-%dT%H:%M:%SZ")}))
        judged = held(counted, tmp_path, *GATES)
        assert (judged.code, judged.err) == (0, said)


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another version": lambda data: data | {"schema_version": 99},
    "no version": lambda data: {key: value for key, value in data.items() if key != "schema_version"},
    "a list": lambda data: [data],
    "no runs": lambda data: data | {"runs": []},
    "no time": lambda data: data | {"saved": "long ago"},
    "arms of another kind": lambda data: data | {"arms": list(data["arms"])},
    "runs of another kind": lambda data: data | {"runs": [7, *data["runs"]]},
    "an older run without arms": lambda data: data | {"runs": [{"machine": data["runs"][0]["machine"]}, *data["runs"]]},
    "values of another kind": lambda data: data | {"runs": [data["runs"][0] | {"arms": {PERF_ARMS[0]: {"steps": 5}}}]},
}


@pytest.mark.parametrize("damage", ["half", *DAMAGE])
def test_a_damaged_baseline_is_one_line(timed: Path, tmp_path: Path, damage: str) -> None:
    assert save(tmp_path, "main", timed).code == 0
    path = kept(tmp_path)
    text = path.read_text()[:500] if damage == "half" else json.dumps(DAMAGE[damage](read(path)))
    path.write_text(text.replace(PERF_ARMS[0], PAGED))
    for ended in (held(timed, tmp_path), save(tmp_path, "main", timed), command("baseline", "list", "--folder", tmp_path / "kept")):
        assert ended.mistake.startswith(f"{path}: no baseline that can be read (")


def test_the_shipped_baseline_holds_for_the_code_as_it_is(tmp_path: Path) -> None:
    flags = [word for arm in PERF_ARMS for word in ("--arm", arm)]
    for name in ("tutorial", "mixed", "counts/tight", "counts/arriving"):
        arms = [] if "/" in name else flags
        words = ["run", ROOT / "workloads" / f"{name}.yaml", "--model", "none", "--rounds", "1", *arms, "--format", "json"]
        assert command(*words, "--out", tmp_path / "perf").code == 0
    folder = ["--folder", ROOT / "results" / "baselines"]
    judged = command("compare", tmp_path / "perf", "--baseline", "main", *folder, *GATES, "--out", tmp_path / "compare.xml")
    assert judged.code == 0 and "gate: passed" in judged.out, judged.out
    assert 'failures="0" errors="0" skipped="0"' in (tmp_path / "compare.xml").read_text()
    listed = command("baseline", "list", *folder)
    assert listed.code == 0 and [line.split()[:3] for line in listed.out.splitlines() if "virtual" in line] == [
        ["main", f"{name}-virtual", num] for name, num in (("arriving", "4"), ("mixed", "6"), ("tight", "8"), ("tutorial", "6"))
    ]


def change(run: Path, arm: str, **metrics: Any) -> Path:
    for path in (run / arm).glob("*/cell.json"):
        cell = read(path)
        path.write_text(json.dumps(cell | {"metrics": cell["metrics"] | metrics}))
    return run


def on_machine(run: Path, cpu: str) -> Path:
    info = read(run / "run.json")
    (run / "run.json").write_text(json.dumps(info | {"machine": info["machine"] | {"cpu": cpu}}))
    return run


def test_counts_are_held_to_the_newest_run_whatever_its_machine(counted: Path, tmp_path: Path) -> None:
    """I3: 560 steps saved on A, 600 on B; on A the stale 560 passed and 600 failed."""
    arm = PERF_ARMS[0]
    for name, cpu, steps in (("one", "A", 560), ("two", "B", 600)):
        assert save(tmp_path, "main", change(on_machine(named(counted, name, tmp_path), cpu), arm, steps=steps)).code == 0
    for cpu in "AB":
        for steps, outcome in ((600, "same"), (560, "improved"), (601, "regressed")):
            run = change(on_machine(named(counted, f"now-{cpu}-{steps}", tmp_path), cpu), arm, steps=steps)
            rows = held(run, tmp_path, "--format", "json").data["verdicts"]
            assert [row["outcome"] for row in rows if (row["arm"], row["metric"]) == (arm, "steps")] == [outcome], (cpu, steps)


def test_arms_that_a_later_run_has_not_stay(tmp_path: Path) -> None:
    """I4: a run of one arm took the other's place."""
    both, one = (made(folder, "--kv", kv) for folder, kv in ((tmp_path / "a", "paged,cat"), (tmp_path / "b", "paged")))
    for run in (both, one):
        assert save(tmp_path, "main", run).code == 0
    data = read(tmp_path / "kept" / "main" / "w-virtual.json")
    assert [*data["arms"]] == [PAGED, CAT] and [[*run["arms"]] for run in data["runs"]] == [[PAGED, CAT], [PAGED]]
    assert held(both, tmp_path, *GATES).code == 0
    assert held(one, tmp_path, "--fail-on", "missing").code == 1, "and are missed where they are not run"


def test_another_model_on_the_same_workload_has_a_file_of_its_own(timed: Path, tmp_path: Path) -> None:
    other = named(timed, "other", tmp_path)
    info = read(other / "run.json")
    (other / "run.json").write_text(json.dumps(info | {"model": info["model"] | {"name": "hub/B: x", "digest": "b" * 16}}))
    for run in (timed, other):
        assert save(tmp_path, "main", run).code == 0
    assert sorted(path.name for path in (tmp_path / "kept" / "main").iterdir()) == ["w-B-x-bbbbbbbb.json", kept(tmp_path).name]
    for run in (timed, other):
        assert held(run, tmp_path, *GATES, "--only", "exact").code == 0


def test_a_run_with_wrong_tokens_becomes_no_baseline_and_is_none(timed: Path, tmp_path: Path) -> None:
    """I10: what is held to wrong tokens may be anything."""
    wrong = change(named(timed, "wrong", tmp_path), CAT, exact_wrong=2)
    assert f"{CAT}: 2 requests with wrong tokens" in save(tmp_path, "main", wrong).mistake
    judged = held(timed, tmp_path, *GATES, "--only", "exact", baseline=wrong)
    assert judged.code == 3 and f"{CAT}, output tok/s: the base one: 2 requests with wrong tokens" in judged.out
    within = command("compare", wrong, "--baseline", CAT, "--fail-on", "regressed", "--format", "json")
    assert within.code == 1 and within.data["gate"]["hits"] == [
        {"rule": "regressed", "workload": "w", "arm": CAT, "metric": "exact_wrong"}
    ], "the base of a run"


def test_damage_in_the_run_that_is_the_baseline_is_no_silence(timed: Path, tmp_path: Path) -> None:
    base = named(timed, "base", tmp_path)
    (base / CAT / "1" / "cell.json").write_text("{")
    judged = held(timed, tmp_path, *GATES, "--only", "exact", baseline=base)
    assert judged.code == 3 and "damaged" in judged.err


def test_a_run_of_few_rounds_is_not_held_to_runs_of_many(timed: Path, tmp_path: Path) -> None:
    """I13: medians of fewer rounds spread more; a run of one round against five of ten failed in a third of all cases."""
    for number in range(5):
        assert save(tmp_path, "main", named(timed, f"run-{number}", tmp_path)).code == 0
    assert held(timed, tmp_path, *GATES).code == 0, "as many rounds"
    short = named(timed, "short", tmp_path)
    for arm in (PAGED, CAT):
        shutil.rmtree(short / arm / "2")
    judged = held(short, tmp_path, *GATES)
    assert (
        judged.code == 3
        and "0 comparable runs kept, 5 are needed to judge time (5 more had more rounds than the 1 of this run)" in judged.out
    )


def test_a_changed_default_is_judged_and_said(counted: Path, tmp_path: Path) -> None:
    """I7: it was other work, and went unjudged."""
    arm = PERF_ARMS[2]
    assert save(tmp_path, "main", counted).code == 0
    run = change(named(counted, "later", tmp_path), arm, steps=10_000)
    info = read(run / "run.json")
    next(one for one in info["arms"] if one["label"] == arm)["kv"]["block_size"] = 32
    (run / "run.json").write_text(json.dumps(info))
    judged = held(run, tmp_path, *GATES, "--format", "json")
    (row,) = [row for row in judged.data["verdicts"] if row["outcome"] == "regressed"]
    assert judged.code == 1 and row["metric"] == "steps" and row["why"].endswith("; default changed: kv.block_size 16 -> 32")
    assert "default changed: kv.block_size 16 -> 32" in save(tmp_path, "main", run).mistake, "its history begins anew, if asked"
