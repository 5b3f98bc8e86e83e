"""The embedded model, end to end through the command line. Skipped, with the reason, where its wheel is not installed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cbbench.cli.app import app
from cbbench.errors import UserError
from cbbench.model import gguf
from cbbench.model.load import EMBEDDED, load
from cbbench.workload.file import read_workload
from tests.support.places import ROOT

TUTORIAL = ROOT / "workloads" / "tutorial.yaml"


def missing() -> str:
    try:
        gguf.embedded()
    except UserError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.real_model, pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(600)]


def test_tutorial_is_exact_on_the_real_model(tmp_path: Path) -> None:
    """With two threads, so that the parallel kernels are the ones that users run."""
    threads = torch.get_num_threads()
    arms = ["--arm", "continuous+varlen+paged", "--arm", "static+padded+cat"]
    try:
        options = ["--rounds", "1", "--threads", "2", "--format", "json", "--out", str(tmp_path)]
        result = CliRunner().invoke(app, ["run", str(TUTORIAL), *arms, *options])
    finally:
        torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    (run,) = json.loads(result.stdout)
    assert [cell["arm"] for cell in run["cells"]] == ["continuous+varlen+paged", "static+padded+cat"]
    for cell in run["cells"]:
        assert cell["metrics"]["exact_matched"] == cell["metrics"]["exact_checked"] == 8
        assert cell["metrics"]["output_tokens"] == 144
    continuous, static = (cell["metrics"] for cell in run["cells"])
    assert continuous["steps"] < static["steps"]
    assert run["model"]["bytes_per_token"] == 30 * 2 * 3 * 64 * 4


def test_the_second_start_needs_no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    load(EMBEDDED)
    monkeypatch.setattr(gguf, "_convert", lambda *_: pytest.fail("converted again"))
    started_s = time.perf_counter()
    model = load(EMBEDDED)
    print(f"second start: {time.perf_counter() - started_s:.1f} s")
    reference = read_workload(TUTORIAL).file.reference
    assert reference is not None and model.digest == reference.digest
