"""The pages on writing a strategy work as they stand: the console script, any folder, one file."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import DOCS, ROOT, blocks, commands, strategy_of
from tests.support.commands import ENVIRONMENT

WRITE = sorted((DOCS / "write").glob("*.md"))
SCRIPT = Path(sys.executable).with_name("cbbench")


@pytest.mark.parametrize("page", WRITE, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_from_any_folder_by_the_console_script(page: Path, tmp_path: Path) -> None:
    """With the code as a file beside, and nothing else: no PYTHONPATH leads there. Counts need no model, which is quick."""
    (code,) = blocks(page, "python")
    module = strategy_of(page).partition(":")[0]
    assert f"`{module}.py` in the current folder" in page.read_text(), "the page says where to save it"
    (tmp_path / f"{module}.py").write_text(code)
    (tmp_path / "workloads").symlink_to(ROOT / "workloads")
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(ROOT)])}
    lines = [line for line in commands(page) if line.startswith("cbbench run ")]
    assert SCRIPT.is_file() and lines
    for line in lines:
        words = [str(SCRIPT), *shlex.split(line)[1:], "--model", "none", "--rounds", "1"]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert re.search(rf"\b{strategy_of(page).replace(':', '.')}\b", done.stdout), done.stdout
