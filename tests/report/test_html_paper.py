"""The page of `report` on paper: nothing is cut, and the numbers can be read back from a PDF."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from pypdf import PdfReader

from cbbench.report.html.report import write_report
from cbbench.results import tables
from cbbench.results.store import Run, read_runs
from cbbench.results.units import number
from tests.support.browser import CHROMIUM, QUIET, chromium, every_kind, needs_chromium, opened, save_run
from tests.support.places import RECORDS

pytestmark = needs_chromium
SHEETS = {"A4": (595, 842), "Letter": (612, 792)}  # points


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return read_runs([RECORDS / "tutorial"])[0]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, runs: list[Run]) -> Path:
    out = tmp_path_factory.mktemp("paper") / "report.html"
    write_report(runs, out)
    return out


@dataclass(frozen=True)
class Word:
    """A piece of text and where it begins, in points from the left of its sheet."""

    text: str
    x: float


def words_of(pdf: Path) -> list[Word]:
    found: list[Word] = []

    def visit(text: str, cm: list[float], tm: list[float], font: Any, size: float) -> None:
        if text.strip():
            found.append(Word(text.strip(), cm[0] * tm[4] + cm[2] * tm[5] + cm[4]))

    for page in PdfReader(pdf).pages:
        page.extract_text(visitor_text=visit)
    return found


def printed(report: Path, out: Path) -> Path:
    """By the command that any user has."""
    words = [str(CHROMIUM), *QUIET, f"--print-to-pdf={out}", "--no-pdf-header-footer", report.as_uri()]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    return out


def test_every_number_of_every_table_and_bar_is_on_paper(report: Path, runs: list[Run], tmp_path: Path) -> None:
    pdf = printed(report, tmp_path / "report.pdf")
    text = re.sub(r"\s+", "", "".join(page.extract_text() for page in PdfReader(pdf).pages))
    rows = tables.table_rows(runs)
    cells = {cell for grid in [tables.main_grid(rows), *tables.grids(rows)] for line in grid.lines for cell in line}
    assert len(cells) > 60
    assert [cell for cell in cells if re.sub(r"\s+", "", cell) not in text] == []
    speeds = [f"{number(row.values['output_tok_per_s'])} tok/s" for row in rows]
    assert len(set(speeds)) > 3 and all(text.count(re.sub(r"\s+", "", speed)) >= speeds.count(speed) for speed in speeds)
    assert max(word.x for word in words_of(pdf)) < SHEETS["Letter"][0] - 20, "nothing begins beyond the margin"


def test_the_first_sheet_has_the_answer_and_no_picture_is_cut_between_two(report: Path, runs: list[Run], tmp_path: Path) -> None:
    sheets = [" ".join(page.extract_text().split()) for page in PdfReader(printed(report, tmp_path / "report.pdf")).pages]
    assert "is the fastest of 11 arms" in sheets[0] and "Bold: the best of its column" in sheets[0]
    assert all(len(sheet) > 100 for sheet in sheets), "no sheet is empty"
    over_time = [sheet for sheet in sheets if "round 1" in sheet]
    # A picture's name stands above it and one tick at half a second below it: both on one sheet, or it is cut.
    assert [sheet.count("500 ms") for sheet in over_time] == [sheet.count("round 1") for sheet in over_time]
    assert sum(sheet.count("500 ms") for sheet in over_time) == 4 * 6  # slots, memory, requests and steps of six arms


def test_the_layout_fits_the_sheet_and_every_picture_is_drawn_for_it(browser: Browser, report: Path) -> None:
    with opened(browser, report, viewport={"width": 1400, "height": 900}, color_scheme="dark") as found:
        folded = "document.querySelectorAll('details:not([open])').length"
        num_folded = found.page.evaluate(folded)
        found.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        widths = """[...document.querySelectorAll('.plot .main-svg, .scroll > table, .answer, h2')]
            .filter((node) => node.clientWidth || node.getBoundingClientRect().width)
            .map((node) => Math.round(node.getBoundingClientRect().right - document.body.getBoundingClientRect().left))"""
        rights = found.page.evaluate(widths)
        assert len(rights) > 40 and max(rights) <= 690
        assert found.page.evaluate("[...figures.values()].filter((f) => f.node.clientWidth && !f.isDrawn).length") == 0
        assert found.page.evaluate("document.documentElement.dataset.theme") == "light"
        assert num_folded >= 4 and found.page.evaluate(folded) == 0
        assert found.page.evaluate("getComputedStyle(document.querySelector('.swatch')).printColorAdjust") == "exact"
        found.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert found.page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert found.page.evaluate(folded) == num_folded
        assert found.complaints == []


def test_bars_are_as_long_on_paper_as_their_numbers_say(browser: Browser, tmp_path: Path) -> None:
    """139, 162 and 170 tokens a second were cut to one length."""
    run = save_run(tmp_path / "run", {f"arm{n}": [every_kind()] for n in range(3)})
    runs = read_runs([run])[0]
    for cell, speed in zip(runs[0].cells, (139.0, 162.0, 170.0), strict=True):
        cell.metrics["output_tok_per_s"] = speed
    write_report(runs, tmp_path / "report.html")
    with opened(browser, tmp_path / "report.html") as found:
        found.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        bars = """(() => { const { node } = [...figures.values()].find((f) => f.kind === 'throughput');
            const right = document.body.getBoundingClientRect().left + 690;
            return [...node.querySelectorAll('.bars .point path')].map((bar) => [bar.getBoundingClientRect().width,
              right - bar.getBoundingClientRect().right]); })()"""
        lengths = found.page.evaluate(bars)
    assert [round(length / lengths[0][0], 3) for length, _ in lengths] == [1, round(162 / 139, 3), round(170 / 139, 3)]
    assert all(left > 0 for _, left in lengths) and all(b - a > 5 for (a, _), (b, _) in pairwise(lengths))


def test_the_colours_of_keys_and_bars_are_printed(browser: Browser, report: Path, tmp_path: Path) -> None:
    """A browser prints no backgrounds unless it is told to."""
    pdf = printed(report, tmp_path / "report.pdf")
    painted = b"".join(found.get_data() for page in PdfReader(pdf).pages if (found := page.get_contents()) is not None)
    colours = {tuple(round(float(part), 2) for part in found) for found in re.findall(rb"([\d.]+) ([\d.]+) ([\d.]+) rg", painted)}
    for name, colour in {"token": "0072b2", "future": "8ecbf0", "internal": "e69f00", "free": "eceae5"}.items():
        assert tuple(round(int(colour[at : at + 2], 16) / 255, 2) for at in (0, 2, 4)) in colours, name
