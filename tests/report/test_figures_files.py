"""Pictures as files: the same bytes for the same records, whole or not at all, and mistakes in one line."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from cbbench.report.figure import kinds as figures
from tests.docs.pictures import GOLDEN
from tests.support.commands import Ended, command
from tests.support.figures import ARMS, RECORDS, recorded


def plot(tmp_path: Path, *words: str | Path, out: str = "x.svg") -> Ended:
    return command("plot", *words, "-o", tmp_path / out)


def boxes_in_svg(path: Path) -> dict[str, list[tuple[float, float, float, float]]]:
    """By id: the boxes of the paths in a group, in points of the page."""
    svg = "{http://www.w3.org/2000/svg}"
    found = {}
    for group in ET.parse(path).getroot().iter(f"{svg}g"):
        name = group.get("id", "")
        if name.startswith("slots-"):
            corners = [
                np.array(re.findall(r"-?[\d.]+", p.get("d", "")), float).reshape(-1, 2) for p in group.iter(f"{svg}path") if p.get("d")
            ]
            found[name] = [(c[:, 0].min(), c[:, 0].max(), c[:, 1].min(), c[:, 1].max()) for c in corners]
    return found


def test_the_svg_holds_the_same_rectangles_at_one_scale(tmp_path: Path) -> None:
    assert plot(tmp_path, RECORDS / "tutorial", "slots", "--arm", ARMS[0], "--arm", ARMS[1]).code == 0
    golden = json.loads((GOLDEN / "slots.json").read_text())
    found = boxes_in_svg(tmp_path / "x.svg")
    assert {gid: len(boxes) for gid, boxes in found.items()} == {gid: len(boxes) for gid, boxes in golden.items()}
    drawn = np.array([box[:2] for gid in golden for box in found[gid]]).ravel()
    data = np.array([box[:2] for gid in golden for box in golden[gid]]).ravel()
    points_per_s, left = np.polyfit(data, drawn, 1)
    assert points_per_s > 100 and np.abs(points_per_s * data + left - drawn).max() < 0.01, "both arms share one time axis"


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_same_records_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    made = []
    for name in ("a", "b"):
        ended = plot(tmp_path, RECORDS / "preemption", "requests", out=f"{name}.{suffix}")
        assert (ended.code, ended.out) == (0, f"{tmp_path / name}.{suffix}\n")
        made.append((tmp_path / f"{name}.{suffix}").read_bytes())
    assert made[0] == made[1] and len(made[0]) > 5_000
    assert not [word for word in (b"dc:date", b"CreationDate", b"Software") if word in made[0]], "nothing of the day or the tool's version"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a.{suffix}", f"b.{suffix}"]


def test_stacked_kinds_ask_for_a_choice_of_arms_and_bars_take_all(tmp_path: Path) -> None:
    for kind in ("slots", "memory", "requests"):
        assert "at most 6 arms, not 11; choose with --arm" in plot(tmp_path, RECORDS / "tutorial", kind).mistake
    assert [plot(tmp_path, RECORDS / "tutorial", kind).code for kind in ("throughput", "latency")] == [0, 0]


def test_mistakes_are_one_line_and_leave_nothing_behind(tmp_path: Path) -> None:
    record = RECORDS / "preemption"
    for name in ("x.gif", "x", "x.svg.gz"):
        assert plot(tmp_path, record, "slots", out=name).mistake == f"--out {tmp_path / name}: should end in .svg, .png or .pdf"
    (tmp_path / "d.svg").mkdir()
    assert "is a folder" in plot(tmp_path, record, "slots", out="d.svg").mistake
    assert "no such file" in plot(tmp_path, tmp_path / "nothing", "slots").mistake
    assert "--arm mine" in plot(tmp_path, record, "slots", "--arm", "mine").mistake
    assert [path.name for path in tmp_path.iterdir()] == ["d.svg"]


def test_folders_that_are_not_there_are_made(tmp_path: Path) -> None:
    assert plot(tmp_path, RECORDS / "preemption", "slots", out="build/new/x.svg").code == 0
    for words, place in (
        (("report",), "a/b/page.html"),
        (("export", "--format", "perfetto"), "c/d/trace.json"),
        (("export", "--format", "csv"), "e/f/t"),
    ):
        assert command(*words, RECORDS / "preemption", "-o", tmp_path / place).code == 0
        assert (tmp_path / place).exists()
    (tmp_path / "file").write_text("mine")
    ended = command("report", RECORDS / "preemption", "-o", tmp_path / "file" / "x.html")
    assert ended.mistake == f"-o {tmp_path / 'file' / 'x.html'}: the folder cannot be made (File exists)"


def test_a_failed_drawing_keeps_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.svg").write_text("old")
    monkeypatch.setattr(mpl.figure.Figure, "savefig", lambda self, half, **_: Path(half).write_text("half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        figures.plot(recorded("preemption"), "slots", tmp_path / "x.svg")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.svg", "old")]


def test_drawing_leaves_global_settings_as_they_were(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    figures.plot(recorded("preemption"), "slots", tmp_path / "x.png")
    assert dict(mpl.rcParams) == before
