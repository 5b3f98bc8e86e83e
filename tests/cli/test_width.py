"""On a terminal of 80 columns no line is wider, no word is broken, and the answer comes first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Ended, command, run_folder
from tests.support.places import ROOT

COLUMNS = 80


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Ended]]:
    """Every combination, without a model, on 80 columns."""
    folder = tmp_path_factory.mktemp("all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(COLUMNS))
        words = ("run", ROOT / "workloads" / "tutorial.yaml", "--model", "none", "--rounds", "1", "--out", folder / "r")
        every = ("--scheduler", "all", "--attn", "all", "--kv", "all", "--set", "scheduler.max_num_batched_tokens=128")
        yield folder, command(*words, *every)


def widest(text: str) -> str:
    return max(text.splitlines(), key=len)


def assert_fits(ended: Ended) -> None:
    assert ended.code == 0, ended.err
    assert len(widest(ended.out)) <= COLUMNS, widest(ended.out)
    assert "\x1b" not in ended.out


def test_a_run_of_every_combination_fits_and_begins_with_the_answer(ran: tuple[Path, Ended]) -> None:
    _, ended = ran
    assert_fits(ended)
    lines = ended.out.splitlines()
    assert "needs the fewest steps of 48 arms" in " ".join(lines[1:3])
    heading = next(i for i, line in enumerate(lines) if line.startswith("arm  "))
    (row,) = (line for line in lines if line.startswith("static+serial+cat"))
    assert len(re.split(r" +(?!done|steps|x|%)", row)) <= 8, lines[heading]
    assert "chunked(max_num_batched_tokens=128)" in ended.out, "no name is cut"
    assert "*44" in ended.out or ("*" in ended.out and "* the best of its column" in ended.out)
    assert "base" in ended.out


@pytest.mark.parametrize("words", [
    (), ("--columns", "all"), ("--columns", "TTFT p90,steps"), ("--effects",), ("--slo", "ttft_p90=2s"),
    ("--baseline", "static+padded+cat"),
])  # fmt: skip
def test_a_comparison_fits(ran: tuple[Path, Ended], words: tuple[str, ...]) -> None:
    folder, _ = ran
    assert_fits(command("compare", run_folder(folder / "r"), *words))


def test_the_other_commands_fit(ran: tuple[Path, Ended], tmp_path: Path) -> None:
    folder, _ = ran
    assert_fits(command("list"))
    assert_fits(command("list", "metrics"))
    assert_fits(command("show", run_folder(folder / "r"), "--arm", "static+padded+cat"))
    assert_fits(command("workload", "describe", ROOT / "workloads" / "tutorial.yaml"))
    saved = command("baseline", "save", "b", run_folder(folder / "r"), "--reason", "why " * 40, "--folder", tmp_path, "--exact-only")
    assert saved.code == 0
    assert_fits(command("baseline", "list", "--folder", tmp_path))


@pytest.mark.parametrize("words", [
    (), ("run",), ("compare",), ("report",), ("show",), ("plot",), ("export",), ("calibrate",), ("list",), ("doctor",),
    ("workload", "record"), ("workload", "import"), ("workload", "make"), ("workload", "describe"), ("baseline", "save"),
])  # fmt: skip
def test_help_fits_and_keeps_its_brackets(words: tuple[str, ...]) -> None:
    ended = command(*words, "--help")
    assert_fits(ended)
    wanted = {("run",): "[@SEED]", ("compare",): "[@ARM]", ("workload", "make"): "[,min=N]"}.get(words, "")
    assert wanted in re.sub(r"[\s│]+", "", ended.out)
    assert "\\" not in ended.out and "…" not in ended.out, "no word is cut"
