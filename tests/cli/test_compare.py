"""`cbbench compare` reads what is whole and names what is not; `cbbench list` and `cbbench doctor` say what exists here."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cbbench import plugins
from cbbench.errors import UserError
from cbbench.model import ceilings, gguf
from tests.support.commands import command, read_lines, run_folder, write_lines
from tests.support.engines import ATTENTIONS, CACHES, SCHEDULERS

IMPORTERS = plugins.names("importer")
PEERS = plugins.names("peer")

ROWS = [{"id": str(i), "prompt_ids": [1] * (3 + i), "max_new_tokens": 2 + i} for i in range(5)]
DENSE = "static+padded+cat"
PAGED = "static+padded+paged"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two arms and two rounds."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "w.yaml").write_text("requests: w.jsonl\nmodel: none\n")
    write_lines(folder / "w.jsonl", ROWS)
    ended = command("run", folder / "w.yaml", "--arm", DENSE, "--arm", PAGED, "--rounds", "2", "--out", folder / "results")
    assert ended.code == 0, ended.err
    return run_folder(folder / "results")


@pytest.fixture
def saved(original: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(original, tmp_path / "runs" / "one"))


def test_what_is_read_back_is_what_was_shown(saved: Path) -> None:
    ended = command("compare", saved, "--format", "csv")
    frame = pd.read_csv(io.StringIO(ended.out))
    shown = pd.read_csv(saved / "summary.csv")
    assert (ended.code, ended.err) == (0, "")
    for metric in ("steps", "output_tok_per_s", "kv_utilization", "output_digest"):
        tidy = frame[frame["metric"] == metric]
        read = dict(zip(zip(tidy["arm"], tidy["round"], strict=True), tidy["value"].astype(str), strict=True))
        wide = dict(zip(zip(shown["arm"], shown["round"], strict=True), shown[metric], strict=True))
        assert len(read) == 4 and read.keys() == wide.keys()
        assert all(read[key] == str(value) or float(read[key]) == pytest.approx(float(value)) for key, value in wide.items()), metric
    assert command("compare", saved, "--format", "markdown").out.count(f"| {DENSE}") == 4


def test_a_folder_of_runs_is_read_whole_and_each_row_names_its_run(saved: Path) -> None:
    shutil.copytree(saved, saved.parent / "two")
    ended = command("compare", saved.parent, "--all-runs", "--format", "json")
    assert [run["run"] for run in ended.runs] == ["one", "two"]
    assert [run["run"] for run in command("compare", saved, saved.parent / "two", "--format", "json").runs] == ["one", "two"]
    table = command("compare", saved.parent, "--all-runs").out
    assert [line.split()[:2] for line in table.splitlines() if line.startswith(("one ", "two ")) and line.split()[1] == DENSE][:2] == [
        ["one", DENSE],
        ["two", DENSE],
    ]


def test_runs_of_different_workloads_are_in_no_common_table(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("requests: [{id: a, prompt_ids: [1, 2], max_new_tokens: 9}]\nmodel: none\n")
    assert command("run", tmp_path / "other.yaml", "--rounds", "1", "--out", tmp_path / "runs").code == 0
    digests = {run["workload"]["digest"] for run in command("compare", tmp_path / "runs", "--format", "json").runs}
    assert len(digests) == 2
    shown = command("compare", tmp_path / "runs", "--format", "markdown").out
    assert shown.count("### Throughput") == 2 and all(digest in shown for digest in digests)


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


DAMAGE_TO_A_ROUND: dict[str, Callable[[Path], Any]] = {
    "steps.jsonl cut in a line": lambda cell: (cell / "steps.jsonl").write_text((cell / "steps.jsonl").read_text()[:-30]),
    "steps.jsonl cut between lines": lambda cell: write_lines(cell / "steps.jsonl", read_lines(cell / "steps.jsonl")[:-2]),
    "steps.jsonl missing": lambda cell: (cell / "steps.jsonl").unlink(),
    "steps.jsonl of other records": lambda cell: write_lines(cell / "steps.jsonl", [{"step": 0}]),
    "requests.jsonl cut between lines": lambda cell: write_lines(cell / "requests.jsonl", read_lines(cell / "requests.jsonl")[:-1]),
    "requests.jsonl of no text": lambda cell: (cell / "requests.jsonl").write_bytes(b"\xff\xfe\x00"),
    "requests.jsonl of lists": lambda cell: (cell / "requests.jsonl").write_text("[1]\n"),
    "cell.json empty": lambda cell: (cell / "cell.json").write_text(""),
    "cell.json missing": lambda cell: (cell / "cell.json").unlink(),
    "cell.json of a list": lambda cell: (cell / "cell.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGE_TO_A_ROUND)
def test_a_damaged_round_is_named_and_left_out_and_the_rest_is_read(saved: Path, damage: str) -> None:
    cell = saved / DENSE / "2"
    DAMAGE_TO_A_ROUND[damage](cell)
    ended = command("compare", saved, "--format", "json")
    assert [(c["arm"], c["round"]) for c in ended.runs[0]["cells"]] == [(DENSE, 1), (PAGED, 1), (PAGED, 2)]
    (said,) = ended.err.splitlines()
    assert said.startswith(f"cbbench: {cell}: damaged, left out") and ended.code == 0


@pytest.mark.parametrize("damage", ["steps.jsonl cut in a line", "cell.json missing"])
def test_an_arm_without_a_whole_round_is_still_a_row(saved: Path, damage: str) -> None:
    for number in ("1", "2"):
        DAMAGE_TO_A_ROUND[damage](saved / DENSE / number)
    ended = command("compare", saved)
    assert ended.code == 0 and len(ended.err.splitlines()) == 2
    assert command("compare", saved, "--fail-on", "missing").code == 1
    assert any(DENSE in line and "no rounds" in line for line in ended.out.splitlines()), ended.out


DAMAGE_TO_A_RUN: dict[str, Callable[[Path], Any]] = {
    "half": lambda path: path.write_text(path.read_text()[:200]),
    "empty": lambda path: path.write_text(""),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda path: path.write_text("[]"),
    "another version": lambda path: replace_text(path, '"schema_version": 1', '"schema_version": 99'),
    "arms of another kind": lambda path: replace_text(path, '"arms": [', '"arms": [7, '),
    "no arms": lambda path: replace_text(path, '"arms"', '"legs"'),
    "no workload": lambda path: replace_text(path, '"workload"', '"load"'),
    "no model": lambda path: replace_text(path, '"model"', '"modle"'),
}


@pytest.mark.parametrize("damage", DAMAGE_TO_A_RUN)
@pytest.mark.parametrize("format", ["json", "table"])
def test_a_damaged_run_is_named_and_left_out_and_the_others_are_read(saved: Path, damage: str, format: str) -> None:
    shutil.copytree(saved, saved.parent / "two")
    DAMAGE_TO_A_RUN[damage](saved / "run.json")
    ended = command("compare", saved.parent, "--format", format)
    assert ended.code == 0, ended.err
    (said,) = ended.err.splitlines()
    another = "made by cbbench 0.1.0 in schema version 99; this is 0.1.0 and reads 1"
    reason = another if damage == "another version" else "run.json is damaged ("
    assert said.startswith((f"cbbench: {saved}: left out, {reason}", f"cbbench: {saved}: left out: {reason}"))
    assert [run["run"] for run in ended.runs] == ["two"] if format == "json" else DENSE in ended.out
    gated = command("compare", saved.parent, "--format", format, "--fail-on", "regressed")
    assert gated.code == 3, "a gate cannot vouch for what it could not read"
    alone = command("compare", saved, "--format", format)
    assert (alone.code, alone.out) == (2, "") and "no runs in" in alone.err


def test_nothing_to_compare_is_one_line(tmp_path: Path) -> None:
    assert command("compare", tmp_path / "nowhere").mistake == f"{tmp_path / 'nowhere'}: no such file or folder"
    assert command("compare", tmp_path).mistake == f"no runs in {tmp_path}"


def test_a_failed_and_an_interrupted_round_are_in_the_rows_and_in_no_median(saved: Path) -> None:
    first = read_lines(saved / PAGED / "2" / "requests.jsonl")
    for arm, changed in ((DENSE, {"failed": "RuntimeError: x"}), (PAGED, {"interrupted": True})):
        path = saved / arm / "2" / "cell.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    write_lines(saved / PAGED / "2" / "requests.jsonl", [row | {"state": "running"} for row in first])
    tidy = pd.read_csv(io.StringIO(command("compare", saved, "--format", "csv").out))
    frame = tidy.drop_duplicates(["arm", "round"]).sort_values(["arm", "round"], ascending=[True, True])
    assert frame["arm"].tolist() == [DENSE, DENSE, PAGED, PAGED]
    assert frame["failed"].tolist()[:2] == [pytest.approx(float("nan"), nan_ok=True), "RuntimeError: x"]
    assert frame["interrupted"].tolist() == [False, False, False, True]
    completed = tidy[(tidy["metric"] == "requests_completed") & (tidy["arm"] == PAGED)].sort_values("round")
    assert completed["value"].astype(int).tolist() == [5, 0]
    shown = command("compare", saved).out
    assert "failed: RuntimeError: x" in shown
    assert any(PAGED in line and "done" in line and "unfinished" not in line for line in shown.splitlines())


def test_list_shows_every_strategy_with_its_cost_and_use() -> None:
    ended = command("list")
    assert (ended.code, ended.err) == (0, "")
    found = [line.strip() for line in ended.out.splitlines() if re.match(r"  \S", line)]
    assert found == [*SCHEDULERS, *ATTENTIONS, *CACHES, *IMPORTERS, *PEERS]
    assert ended.out.count("Cost:") == ended.out.count("Use when:") == len(found)
    assert "option kv.block_size=16: tokens per block" in ended.out and "runs here (cpu, float32)" in ended.out
    assert "\x1b" not in ended.out


@pytest.mark.parametrize(
    ("kind", "names"), [("schedulers", SCHEDULERS), ("attn", ATTENTIONS), ("kvcache", CACHES), ("kv", CACHES), ("importers", IMPORTERS)]
)
def test_list_of_one_kind_shows_that_kind(kind: str, names: list[str]) -> None:
    out = command("list", kind).out
    assert [line.strip() for line in out.splitlines() if re.match(r"  \S", line)] == names


def test_list_of_an_unknown_kind_is_one_line() -> None:
    assert command("list", "caches").mistake == "list caches: should be schedulers, attention, kvcache, importers, peers or metrics"


@pytest.mark.parametrize("is_there", [True, False])
def test_doctor_says_what_is_here_also_without_the_embedded_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool) -> None:
    def embedded() -> Path:
        if not is_there:
            raise UserError("the embedded model is not installed: pip install it")
        return tmp_path / "it.gguf"

    monkeypatch.setattr(gguf, "embedded", embedded)
    monkeypatch.setattr(ceilings, "ROUNDS", 2)
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path))
    ended = command("doctor")
    facts = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in ended.out.splitlines())
    assert (ended.code, ended.err) == (0, "")
    assert facts["embedded model"] == ("it.gguf" if is_there else "the embedded model is not installed: pip install it")
    assert facts["cache"] == str(tmp_path) and facts["torch"] and facts["threads"] == "1"
    assert facts["attn in float32"].split(", ") == ATTENTIONS and "varlen" not in facts["attn in bfloat16"]
    assert set(plugins.AXES) <= {name.split()[0] for name in facts}


def test_two_runs_of_one_name_are_told_apart_by_their_folders(saved: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(saved, tmp_path / "elsewhere" / "one"))
    frame = pd.read_csv(io.StringIO(command("compare", saved, other, "--format", "csv").out))
    assert {*frame["run"]} == {str(saved), str(other)} and len(frame) == 2 * len(frame[frame["run"] == str(other)])


def test_a_number_that_is_none_makes_a_round_damaged(saved: Path) -> None:
    replace_text(saved / DENSE / "1" / "cell.json", '"steps": ', '"steps": NaN, "was": ')
    ended = command("compare", saved)
    assert ended.code == 0 and "NaN is no number" in ended.err


@pytest.mark.parametrize("words", [("--effects",), ("--slo", "ttft_p90=2s")])
def test_what_is_only_a_table_is_refused_in_other_formats(saved: Path, words: tuple[str, ...]) -> None:
    assert (
        command("compare", saved, *words, "--format", "json").mistake == f"{words[0]} is a table: it goes with --format table or markdown"
    )
    assert command("compare", saved, *words).code == 0
