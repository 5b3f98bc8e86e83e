"""numba is optional: without it, or where it cannot compile or keep what it compiled, everything but our kernels works, and says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import ENVIRONMENT, command, write_config, write_workload
from tests.support.places import ROOT

ROWS = [{"id": str(i), "prompt_ids": [3, 4, 5 + i], "max_new_tokens": 4, "ignore_eos": True} for i in range(3)]
WITHOUT_NUMBA = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in ("numba", "llvmlite") else real(name, package)
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"): raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
"""
AS_IT_IS = ""
MAIN = """
import sys
from cbbench.cli import main
try: main()
finally: print("LOADED", sorted({name.split(".")[0] for name in sys.modules} & {"numba", "llvmlite"}), file=sys.stderr)
"""


def cbbench(folder: Path, before: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "CBBENCH_CACHE": str(folder / "cache"), **environment}
    return subprocess.run(
        [sys.executable, "-c", before + MAIN, *words], cwd=folder, env=everything, capture_output=True, text=True, check=False
    )


@pytest.fixture
def workload(tmp_path: Path) -> str:
    return str(write_workload(tmp_path, f"requests: w.jsonl\nmodel: {write_config(tmp_path)}\nmeasure: {{rounds: 1}}\n", ROWS))


@pytest.mark.parametrize("how", ["without numba", "NUMBA_DISABLE_JIT"])
def test_what_needs_no_kernel_runs_exactly_and_the_kernel_is_refused_by_name(how: str, workload: str, tmp_path: Path) -> None:
    before = WITHOUT_NUMBA if how == "without numba" else AS_IT_IS
    environment = {} if how == "without numba" else {"NUMBA_DISABLE_JIT": "1"}
    done = cbbench(tmp_path, before, "run", workload, "--attn", "serial,padded", "--verify", "--format", "json", **environment)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    assert [cell["metrics"]["exact_matched"] for cell in run["cells"]] == [3, 3] and run["model"]["prepared"] is None
    assert "runs with its own layers: " in done.stderr and "LOADED []" in done.stderr
    refused = cbbench(tmp_path, before, "run", workload, "--attn", "varlen", **environment)
    said = "numba is not installed" if how == "without numba" else "NUMBA_DISABLE_JIT is set"
    assert refused.returncode == 2 and f"varlen's cpu kernel cannot run: {said}" in refused.stderr and "Traceback" not in refused.stderr


def test_layers_as_they_come_and_no_kernel_load_no_numba(workload: str, tmp_path: Path) -> None:
    done = cbbench(tmp_path, AS_IT_IS, "run", workload, "--attn", "serial", "--prepare", "none")
    assert done.returncode == 0 and "LOADED []" in done.stderr, done.stderr


def test_code_that_cannot_be_written_to_and_no_cache_folder_compile_without_keeping(workload: str, tmp_path: Path) -> None:
    """Containers: read-only code and no usable HOME."""
    before = """
import pathlib
real = pathlib.Path.mkdir
def mkdir(self, *args, **kwargs):
    if "kernels-" in self.name: raise PermissionError(13, "Permission denied")
    return real(self, *args, **kwargs)
pathlib.Path.mkdir = mkdir
"""
    words = ["run", workload, "--prepare", "none", "--format", "json", "--verify"]  # attention's kernels alone: compiling takes long
    done = cbbench(tmp_path, before, *words, CBBENCH_CHECK="0")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    assert run["cells"][0]["metrics"]["exact_matched"] == 3 and "compiling kernels for this CPU" in done.stderr


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_cache_that_is_a_file_is_one_line(below: str, workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "file" / below))
    ended = command("run", workload, "--verify", "--out", tmp_path / "r")
    assert ended.code == 2 and "file is a file; set CBBENCH_CACHE to a folder" in ended.err and "Traceback" not in ended.err
