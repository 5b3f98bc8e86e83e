"""Tables for other tools: they come back as they were written, agree with the metrics, and overwrite nothing foreign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from cbbench.report.export import SCHEMAS, export, frames
from cbbench.results.rounds import SavedRound, choose
from cbbench.results.store import Run, read_run
from cbbench.results.timeline import IDLE
from tests.support.commands import command, refusal
from tests.support.places import RECORDS


@pytest.fixture(scope="module")
def chosen() -> list[SavedRound]:
    return choose(read_run(RECORDS / "tutorial"))[:3]


@pytest.fixture(scope="module")
def preempted() -> SavedRound:
    return choose(read_run(RECORDS / "preemption"))[0]


def strange() -> SavedRound:
    """A peer that tells no times of tokens, and ids as no sane person writes them."""
    base = {"state": "finished", "reason": "length", "prompt_tokens": 3, "max_new_tokens": 2, "submitted_s": None, "arrival_s": 0.5}
    base |= {"num_preemptions": None, "recomputed_tokens": None, "output_ids": [4, 5]}
    requests = [
        base | {"id": 'a,"b"\r\x00\nc', "index": 0, "first_scheduled_s": None, "token_times_s": None, "ended_s": 2.0},
        base | {"id": "NA", "index": 1, "first_scheduled_s": 1.0, "token_times_s": [1.25, 1.5], "ended_s": 1.5},
        base | {"id": "\ud800", "index": 2, "first_scheduled_s": None, "token_times_s": None, "state": "failed", "output_ids": []},
    ]
    info: dict[str, Any] = {"workload": {"name": "w"}, "model": {"name": "m", "digest": None}}
    return SavedRound(Run(Path("run"), info, [], []), "peer", 1, {"metrics": {}, "peer": "peer"}, [], requests)


def read_back(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    dtypes: Any = SCHEMAS[path.stem]
    return pd.read_csv(path, dtype=dtypes, float_precision="round_trip", keep_default_na=False, na_values=[""])


@pytest.mark.parametrize("format", ["parquet", "csv"])
@pytest.mark.parametrize("who", ["arms", "preempted", "peer"])
def test_tables_come_back_as_they_were_written(
    format: str, who: str, chosen: list[SavedRound], preempted: SavedRound, tmp_path: Path
) -> None:
    these = {"arms": chosen, "preempted": [preempted], "peer": [strange(), preempted]}[who]
    written = export(these, format, tmp_path / "tables")
    assert [path.name for path in written] == [f"{name}.{format}" for name in ("steps", "slots", "kv", "requests", "tokens")]
    for path in written:
        frame = frames(these)[path.stem]
        assert_frame_equal(read_back(path), frame, check_exact=True)
        assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == SCHEMAS[path.stem]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(path.name for path in written), "nothing half written"


def test_the_tables_agree_with_the_metrics(preempted: SavedRound) -> None:
    made, metrics = frames([preempted]), preempted.metrics
    steps, slots, kv, requests, tokens = (made[name] for name in ("steps", "slots", "kv", "requests", "tokens"))
    assert len(steps) == len(kv) == metrics["steps"]
    assert steps["model_s"].sum() == pytest.approx(metrics["model_s"])
    assert steps["padded_positions"].sum() == metrics["padded_positions"] and steps["copied_bytes"].sum() == metrics["kv_copy_bytes"]
    assert steps["num_preempted"].sum() == requests["num_preemptions"].sum() == metrics["preemptions"] == 1
    decodes = steps[steps["only_decodes"]]
    assert (decodes["end_s"] - decodes["start_s"]).median() == pytest.approx(metrics["decode_step_s_p50"])
    idle = slots[slots["kind"].isin([str(kind) for kind in IDLE])]
    assert idle["num_steps"].sum() / slots["num_steps"].sum() == pytest.approx(metrics["slot_idle_frac"])
    assert slots["computed_tokens"].sum() == steps["computed_tokens"].sum()
    areas = kv[["used_tokens", "future_tokens", "internal_tokens", "external_tokens"]].mul(kv["end_s"] - kv["start_s"], axis=0).sum()
    assert areas["used_tokens"] / areas.sum() == pytest.approx(metrics["kv_utilization"])
    assert areas["internal_tokens"] / areas.sum() == pytest.approx(metrics["kv_internal_frac"])
    for column, key in {"ttft_s": "ttft_s", "tpot_s": "tpot_s", "e2e_s": "e2e_s", "queue_wait_s": "queue_wait_s"}.items():
        values = requests.loc[requests["state"] == "finished", column].dropna().to_numpy(float)
        assert np.percentile(values, 50) == pytest.approx(metrics[f"{key}_p50"]) and values.max() == pytest.approx(metrics[f"{key}_max"])
    gaps = tokens["itl_s"].dropna().to_numpy(float)
    assert np.percentile(gaps, 99) == pytest.approx(metrics["itl_s_p99"])
    assert len(tokens) == metrics["output_tokens"] == requests["output_tokens"].sum()
    assert tokens.groupby("request")["time_s"].max().tolist() == [r["token_times_s"][-1] for r in preempted.requests]


def test_what_a_peer_does_not_tell_is_missing_and_never_zero() -> None:
    made = frames([strange()])
    assert [len(made[name]) for name in ("steps", "slots", "kv")] == [0, 0, 0]
    requests, tokens = made["requests"], made["tokens"]
    assert requests["e2e_s"].isna().tolist() == [False, False, True] and requests["e2e_s"].tolist()[:2] == [1.5, 1.0]
    assert requests["ttft_s"].isna().tolist() == [True, False, True] and requests["num_preemptions"].isna().all()
    assert tokens["position"].tolist() == [0, 1, 0, 1] and tokens["time_s"].isna().tolist() == [True, True, False, False]
    assert requests["id"].tolist() == ['a,"b"\\r\\x00\\nc', "NA", "\\ud800"]


def copied(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    for source in (RECORDS / "preemption").rglob("*"):
        if source.is_file():
            target = run / source.relative_to(RECORDS / "preemption")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return run


def test_without_a_place_exports_stand_beside_the_run_and_may_be_made_again(tmp_path: Path) -> None:
    run = copied(tmp_path)
    before = command("compare", run, "--format", "json").runs
    for _ in range(2):
        ended = command("export", run, "--format", "perfetto")
        assert (ended.code, ended.out, ended.err) == (0, f"{run / 'trace.json'}\n", "")
        for format in ("parquet", "csv"):
            ended = command("export", run, "--format", format)
            assert (ended.code, ended.err) == (0, "") and f"{run / 'tables' / f'kv.{format}'}\n" in ended.out
    assert command("compare", run, "--format", "json").runs == before, "a run with exports in it reads as before"


def test_nothing_that_an_export_did_not_write_is_overwritten(tmp_path: Path) -> None:
    run = copied(tmp_path)
    said = (run / "run.json").read_bytes()
    mistake = command("export", run, "--format", "perfetto", "-o", run / "run.json").mistake
    assert mistake == f"-o {run / 'run.json'}: is there already and no export wrote it; write elsewhere with -o"
    assert (run / "run.json").read_bytes() == said
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, content in (("steps.csv", b"my,own,table\n1,2,3\n"), ("kv.parquet", b"not parquet"), ("kv.csv", b"\xff\xfe")):
        (folder / name).write_bytes(content)
        mistake = command("export", run, "--format", name.rpartition(".")[2], "-o", folder).mistake
        assert mistake == f"-o {folder / name}: is there already and no export wrote it; write elsewhere with -o"
        assert [path.name for path in folder.iterdir()] == [name] and (folder / name).read_bytes() == content, "all tables or none"
        (folder / name).unlink()


def test_a_place_that_cannot_be_is_a_mistake_in_one_line(tmp_path: Path, preempted: SavedRound) -> None:
    file = tmp_path / "file"
    file.write_text("")
    nowhere = tmp_path / "nowhere"
    assert refusal(lambda: export([preempted], "perfetto", tmp_path / "trace.txt")) == f"-o {tmp_path / 'trace.txt'}: should end in .json"
    assert refusal(lambda: export([preempted], "perfetto", nowhere / "t.json")) == f"-o {nowhere / 't.json'}: there is no folder {nowhere}"
    assert refusal(lambda: export([preempted], "csv", file)) == f"-o {file}: should be a folder"
    assert refusal(lambda: export([preempted], "csv", nowhere / "a")) == f"-o {nowhere / 'a' / 'steps.csv'}: there is no folder {nowhere}"
    (tmp_path / "folder.json").mkdir()
    assert "is there already" in refusal(lambda: export([preempted], "perfetto", tmp_path / "folder.json"))
    assert command("export", RECORDS / "preemption", "--format", "xlsx", "-o", tmp_path / "x").code == 2


def test_a_file_that_breaks_on_the_way_leaves_what_was_there(
    tmp_path: Path, preempted: SavedRound, monkeypatch: pytest.MonkeyPatch
) -> None:
    export([preempted], "perfetto", tmp_path / "t.json")
    whole = (tmp_path / "t.json").read_bytes()

    def breaking(chosen: list[SavedRound]) -> Any:
        yield "half"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cbbench.report.perfetto.lines", breaking)
    assert "cannot be written (No space left on device)" in refusal(lambda: export([preempted], "perfetto", tmp_path / "t.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"] and (tmp_path / "t.json").read_bytes() == whole
