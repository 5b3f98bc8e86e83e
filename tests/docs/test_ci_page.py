"""docs/ci.md works as it is written, from an empty repository: its files, its commands, and the steps of its workflows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import ENVIRONMENT, write_config
from tests.support.places import ROOT

PAGE = (ROOT / "docs" / "ci.md").read_text()
OWN = PAGE[: PAGE.index("## In cbbench's own repository")]
SCRIPT = f"#!{sys.executable}\nimport sys\nfrom cbbench.cli import main\nsys.exit(main())\n"  # as pip writes it


def blocks() -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", OWN, re.MULTILINE | re.DOTALL)


def files() -> dict[str, str]:
    """Path -> text, of the blocks whose first line is a name."""
    return {found[1]: block for block in blocks() if (found := re.match(r"# (\S+)\n", block))}


def commands() -> list[str]:
    return [line for block in blocks() if not block.startswith("# ") for line in block.splitlines()]


def steps(path: str) -> list[str]:
    (job,) = yaml.safe_load(files()[path])["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step and not step["run"].startswith("pip install")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the console script, and the repository `mine` that the page makes; a tiny model stands in for the real one."""
    root = tmp_path_factory.mktemp("ci")
    (root / "bin").mkdir()
    (root / "bin" / "cbbench").write_text(SCRIPT)
    (root / "bin" / "cbbench").chmod(0o755)
    git(root, "init", "--quiet", "--bare", "--initial-branch=main", "origin")
    git(root, "clone", "--quiet", str(root / "origin"), "mine")
    for name, text in files().items():
        path = root / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("model: smollm2-135m", f"model: {write_config(root)}"))
    for line in commands():
        if "calibrate" not in line:
            assert run(root / "mine", line) == 0, line
    git(root / "mine", "push", "--quiet", "origin", "HEAD:main")
    return root


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, env=environment(folder))


def environment(folder: Path) -> dict[str, str]:
    root = next(path for path in (folder, *folder.parents) if (path / "bin").is_dir())
    who = {f"GIT_{role}_{key}": "a@example.com" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    path = os.pathsep.join([str(root / "bin"), ENVIRONMENT["PATH"]])
    return {
        **ENVIRONMENT,
        **who,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "CBBENCH_CACHE": str(root / "cache"),
        "GIT_CONFIG_GLOBAL": os.devnull,
    }


def run(folder: Path, line: str) -> int:
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment(folder), capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode


def clone(place: Path, name: str) -> Path:
    """As a runner has it: one commit deep."""
    git(place, "clone", "--quiet", "--depth=1", f"file://{place / 'origin'}", name)
    return place / name


def test_the_page_has_everything_that_it_needs() -> None:
    assert [*files()] == [
        "traffic.yaml", "strategies/shortest.py", ".gitignore", ".github/workflows/counts.yml", ".github/workflows/times.yml",
    ]  # fmt: skip
    assert len(commands()) == 5 and len(steps(".github/workflows/counts.yml")) == 2 and len(steps(".github/workflows/times.yml")) == 4


def test_counts_pass_and_a_worse_strategy_fails_the_gate(place: Path) -> None:
    runner = clone(place, "counts")
    assert [run(runner, line) for line in steps(".github/workflows/counts.yml")] == [0, 0]
    strategy = runner / "strategies" / "shortest.py"
    strategy.write_text(strategy.read_text().replace("self.admit(room)", "self.admit_one(room)"))
    assert [run(runner, line) for line in steps(".github/workflows/counts.yml")] == [0, 1]
    assert 'failures="0"' not in (runner / "build" / "counts.xml").read_text()
    strategy.write_text(strategy.read_text().replace("self.grow(room)", "self.grow(room, 1)"))
    assert [run(runner, line) for line in steps(".github/workflows/counts.yml")] == [3, 1], "one that fails has a report too"


def small(line: str) -> str:
    """Six rounds in one process, on one thread."""
    line = line.replace("--rounds 18 --isolate", "--rounds 6 --warmup 0 --threads 1").replace("${{ github.base_ref }}", "main")
    return line.replace("cbbench compare", "cbbench compare --format json --allow process") + (
        " > judged.json" if "compare" in line else ""
    )


def test_times_are_judged_beside_those_of_the_target_branch(place: Path) -> None:
    runner = clone(place, "times")
    (calibrate,) = [line for line in commands() if "calibrate" in line]
    assert run(runner, small(calibrate)) in (0, 3), "the noise of this machine"
    *before, judge = steps(".github/workflows/times.yml")
    assert [run(runner, small(line)) for line in before] == [0, 0, 0]
    assert (runner / "strategies" / "before.py").read_text() == (runner / "strategies" / "shortest.py").read_text()
    code = run(runner, small(judge))
    found: Any = yaml.safe_load((runner / "judged.json").read_text())
    judged = {(row["arm"], row["base"]) for row in found["verdicts"] if not row["exact"]}
    assert judged == {("strategies.shortest.Shortest+varlen+paged", "strategies.before.Shortest+varlen+paged")}
    assert code == found["gate"]["exit_code"] and code in (0, 1, 3) and "no row" not in found["gate"]["says"]
    assert all((row["rounds"] or 6) <= 6 for row in found["verdicts"]), "fewer where this machine is busy"
    one_process = judge.replace(" --only", " --format json --only") + " > judged.json"
    assert run(runner, one_process) == 3 and "--isolate" in yaml.safe_load((runner / "judged.json").read_text())["gate"]["says"]


def test_the_deepened_clone_that_against_needs_is_said(place: Path) -> None:
    """I17: a clone of CI has one commit, and --against HEAD~1 only said that there is none."""
    from cbbench.errors import UserError
    from cbbench.runs import isolate

    runner = clone(place, "shallow")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match=r"in this shallow clone \(git fetch --deepen=1"):
        patch.setattr(isolate, "ROOT", runner)
        isolate.commit_of("HEAD~1")
