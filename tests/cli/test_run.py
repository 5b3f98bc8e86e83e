"""`cbbench run`: what can be asked for, what comes out on which stream, and how it ends."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import cbbench.model.reference
from tests.support.commands import (
    ENVIRONMENT,
    SOURCE,
    Ended,
    command,
    read_lines,
    run,
    run_folder,
    run_json,
    write_config,
    write_lines,
)
from tests.support.engines import ALL, ATTENTIONS, CACHES, SCHEDULERS


def test_without_a_word_the_default_arm_runs_and_is_exact(recorded: Path, tmp_path: Path) -> None:
    ended = run_json(recorded, tmp_path)
    assert ended.code == 0, ended.err
    (row,) = ended.rows.values()
    assert [*ended.rows] == ["continuous+varlen+paged"]
    assert (row["exact_checked"], row["exact_matched"], row["requests_completed"], row["output_tokens"]) == (4, 4, 4, 25)


@pytest.mark.parametrize(
    ("words", "arms"),
    [
        (["--scheduler", "static"], ["static+varlen+paged"]),
        (["--kv", "cat,preallocated,cat"], ["continuous+varlen+cat", "continuous+varlen+preallocated"]),
        (["--attn", "padded, serial", "--kv", "cat"], ["continuous+padded+cat", "continuous+serial+cat"]),
        (["--arm", "static+padded+cat", "--arm", "chunked+serial+paged"], ["static+padded+cat", "chunked+serial+paged"]),
        (["--set", "kv.block_size=7"], ["continuous+varlen+paged(block_size=7)"]),
        (["--set", "max_num_seqs=2", "--set", "kv.block_size=8", "--kv", "cat,paged"],
         ["continuous+varlen+cat", "continuous+varlen+paged(block_size=8)"]),
        (["--scheduler", "chunked", "--set", "scheduler.max_num_batched_tokens=9", "--attn", "unbatched"],
         ["chunked(max_num_batched_tokens=9)+unbatched+paged"]),
    ],
)  # fmt: skip
def test_names_lists_arms_and_options_choose_what_runs(recorded: Path, tmp_path: Path, words: list[str], arms: list[str]) -> None:
    ended = run_json(recorded, tmp_path, *words)
    assert ended.code == 0, ended.err
    assert [*ended.rows] == arms
    assert all(row["exact_matched"] == 4 for row in ended.rows.values())


def test_all_on_every_axis_is_every_pairing_and_each_is_exact(recorded: Path, tmp_path: Path) -> None:
    ended = run_json(recorded, tmp_path, "--scheduler", "all", "--attn", "all", "--kv", "all")
    assert {*ended.rows} == {"+".join(names) for names in ALL} and len(ALL) >= len(SCHEDULERS) * len(ATTENTIONS) * len(CACHES) >= 36
    assert {(row["exact_matched"], row["exact_wrong"]) for row in ended.rows.values()} == {(4, 0)}
    assert ended.code == 0


def test_without_a_model_every_count_is_exact_and_nothing_is_verified(recorded: Path, tmp_path: Path) -> None:
    ended = run_json(recorded, tmp_path, "--model", "none", "--scheduler", "static", "--max-num-seqs", "2", "--memory-budget", "64 tokens")
    (row,) = ended.rows.values()
    assert (ended.code, row["steps"], row["duration_s"], row["output_tokens"], row["exact_checked"]) == (0, 7 + 12, 19, 25, 0)
    assert row["peak_memory_bytes"] is row["kv_peak_bytes"] is None
    assert "4 done" in run(recorded, tmp_path, "--model", "none").out


def test_another_random_model_is_another_model_and_the_reference_does_not_apply(recorded: Path, tmp_path: Path) -> None:
    model = write_config(tmp_path)
    same, other = (run_json(recorded, tmp_path, "--model", f"{model}{seed}") for seed in ("", "@7"))
    assert (same.code, [row["exact_matched"] for row in same.rows.values()]) == (0, [4]), "the same weights under another path"
    assert "do not apply" not in same.err and "the reference tokens were recorded on random:" in other.err and "do not apply" in other.err
    assert (other.code, [row["exact_checked"] for row in other.rows.values()]) == (0, [0])


def test_verify_generates_what_is_missing_once(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "w.yaml").write_text("requests: w.jsonl\n")
    write_lines(tmp_path / "w.jsonl", SOURCE)
    words = ("--model", write_config(tmp_path), "--verify")
    first = run_json(tmp_path / "w.yaml", tmp_path, *words)
    assert [(row["exact_checked"], row["exact_matched"]) for row in first.rows.values()] == [(4, 4)] and first.code == 0
    shown = run(tmp_path / "w.yaml", tmp_path, *words[:2])
    assert "unverified" in shown.out, "without --verify there is nothing to check against"
    monkeypatch.setattr(cbbench.model.reference, "greedy", lambda *_: pytest.fail("generated again"))
    again = run_json(tmp_path / "w.yaml", tmp_path, *words)
    assert [row["exact_matched"] for row in again.rows.values()] == [4]


def test_a_reference_for_some_requests_checks_those_and_counts_the_rest(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(recorded.read_text())
    rows = [row | {"output_ids": None} if row["id"] == "long" else row for row in read_lines(recorded.with_suffix(".jsonl"))]
    write_lines(tmp_path / "w.jsonl", rows)
    shown = run(tmp_path / "w.yaml", tmp_path)
    assert shown.code == 0 and "3/3 exact, 1 unverified" in shown.out, shown


def test_formats_hold_the_same_rows_and_stdout_holds_nothing_else(recorded: Path, tmp_path: Path) -> None:
    words = ("--model", "none", "--kv", "cat,paged")
    table, markdown, csv, data = (run(recorded, tmp_path, *words, "--format", name) for name in ("table", "markdown", "csv", "json"))
    frame = pd.read_csv(io.StringIO(csv.out))
    assert list(frame["arm"]) == [*data.rows] == ["continuous+varlen+cat", "continuous+varlen+paged"]
    assert list(frame["steps"]) == [row["steps"] for row in data.rows.values()]
    columns = {"run", "workload", "workload_digest", "arm", "round", "failed", "interrupted"}
    assert {*frame.columns} == columns | {*data.rows["continuous+varlen+cat"]}
    headings = [line for line in markdown.out.splitlines() if line.startswith("### ")]
    assert headings == ["### Throughput", "### Latency", "### Memory and waste"]
    assert sum(line.startswith("| continuous+varlen+") for line in markdown.out.splitlines()) == 8
    assert all(table.out.count(arm) >= 2 for arm in data.rows)
    for ended in (table, markdown, csv, data):
        assert "\x1b" not in ended.out + ended.err
        assert "saved in" in ended.err and "saved in" not in ended.out


def test_a_run_on_disk_says_what_was_asked_and_on_what(recorded: Path, tmp_path: Path) -> None:
    ended = run_json(recorded, tmp_path, "--set", "kv.block_size=8", "--memory-budget", "4096 tokens")
    folder = run_folder(tmp_path / "results")
    info = json.loads((folder / "run.json").read_text())
    assert (info["schema_version"], info["finished"], info["rounds"], info["warmup"]) == (1, True, 1, 0)
    assert info["arms"][0]["kv"] == {"name": "paged", "block_size": 8} and info["arms"][0]["budget_tokens"] == 4096
    assert info["model"]["bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    assert info["machine"]["cores"] >= 1 and info["versions"]["torch"] and len(info["workload"]["digest"]) == 16
    cell = folder / "continuous+varlen+paged(block_size=8)" / "1"
    assert {path.name for path in cell.iterdir()} == {"cell.json", "steps.jsonl", "requests.jsonl"}
    assert {path.name for path in folder.iterdir()} == {"run.json", "summary.csv", "summary.md", cell.parent.name}
    assert pd.read_csv(folder / "summary.csv")["steps"].tolist() == [len(read_lines(cell / "steps.jsonl"))]
    assert ended.data[0]["workload"]["digest"] == info["workload"]["digest"]


def test_73_rounds_alternate_in_order_and_a_warm_up_is_in_no_record(recorded: Path, tmp_path: Path) -> None:
    words = ("run", recorded, "--kv", "cat,paged", "--rounds", "2", "--format", "json", "--out", tmp_path / "r")
    cold, warm = (command(*words, "--warmup", number) for number in ("0", "2"))
    order = re.findall(r"\+(\w+) round (\d)", warm.err)
    assert sorted(order[:2]) == [("cat", "1"), ("paged", "1")], "a random order"
    assert order[2:] == [(kv, "2") for kv, _ in reversed(order[:2])], "and its mirror"
    counts = ("steps", "output_tokens", "exact_matched", "slot_idle_frac", "kv_final_utilization", "kv_copy_bytes")
    assert [[row[key] for key in counts] for row in cold.rows.values()] == [[row[key] for key in counts] for row in warm.rows.values()]


THREADS = "import torch; from cbbench.cli import main\ntry: main()\nfinally: print(torch.get_num_threads())"


def test_the_command_as_a_process_gives_json_to_a_pipe_and_words_to_stderr(recorded: Path, tmp_path: Path) -> None:
    words = ["run", str(recorded), "--rounds", "1", "--threads", "1", "--format", "json", "--out", str(tmp_path / "r")]
    environment = {key: value for key, value in ENVIRONMENT.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", THREADS, *words], capture_output=True, text=True, env=environment, check=False)
    out, threads = done.stdout.rstrip("\n").rsplit("\n", 1)
    ended = Ended(done.returncode, out, done.stderr)
    assert ended.code == 0, ended.err
    assert ended.rows["continuous+varlen+paged"]["exact_matched"] == 4
    said = [f"loading random:{recorded.parent / 'tiny.json'}", "continuous+varlen+paged round 1", "saved"]
    assert [line.split(" in ")[0].split(": ")[0] for line in ended.err.splitlines()] == said
    assert ended.data[0]["command"] == ["cbbench", *words] and ended.data[0]["machine"]["threads"] == 1
    assert threads == "1", "no strategy changes the threads that later arms run with"
