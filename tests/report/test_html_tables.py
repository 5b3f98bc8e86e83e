"""The page of `report` from its top: the answer, tables that sort, a request that is followed in sight, lines that differ."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from cbbench.compare.answer import answer
from cbbench.compare.slo import parse_slos
from cbbench.report.html.group import MAX_PANELS
from cbbench.report.html.report import write_report
from cbbench.results.durations import seconds, tick_text
from cbbench.results.store import read_runs
from tests.support.browser import Opened, chromium, every_kind, needs_chromium, opened, save_run
from tests.support.places import RECORDS

pytestmark = needs_chromium
TELEPHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tables") / "report.html"
    write_report(read_runs([RECORDS / "tutorial"])[0], out, parse_slos(["ttft_p90=1s"]))
    return out


@pytest.fixture
def page(browser: Browser, tutorial: Path) -> Iterator[Opened]:
    with opened(browser, tutorial, viewport={"width": 1200, "height": 900}) as found:
        yield found
        assert (found.complaints, found.requested) == ([], [tutorial.as_uri()])


def test_the_answer_comes_first_then_the_table_then_the_slots(page: Opened) -> None:
    assert page.page.locator(".answer p").all_inner_texts() == answer(read_runs([RECORDS / "tutorial"])[0])
    parts = page.page.locator("h3").all_inner_texts()
    assert parts[:3] == ["Slots over time", "KV memory over time", "Latencies"]
    assert parts[-4:] == ["Verdicts", "What each choice buys", "Under the objective", "Configuration and machine"]
    headline = page.page.locator("table.sortable").first
    assert headline.locator("thead th").count() <= 8 and headline.locator(".best").count() >= 3
    gap = """document.querySelector('.plot').getBoundingClientRect().top
        - document.querySelector('table.sortable').getBoundingClientRect().bottom"""
    assert page.page.evaluate(gap) < 450, "the first slots picture is half a screen below the table"


def test_all_columns_are_behind_a_switch(page: Opened) -> None:
    more = page.page.locator(".columns")
    assert not more.locator("table").first.is_visible()
    more.locator("summary").click()
    assert more.locator("h4").all_inner_texts() == ["Throughput", "Latency", "Memory and waste"]
    assert more.locator("table").last.is_visible()


def column(page: Opened, title: str) -> list[str]:
    texts: list[str] = page.page.evaluate(
        """(title) => { const table = document.querySelector('table.sortable');
          const place = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent.startsWith(title));
          return [...table.tBodies[0].rows].map((row) => row.cells[place].textContent.trim()); }""",
        title,
    )
    return texts


def test_a_pressed_header_sorts_upwards_downwards_and_as_it_came(page: Opened) -> None:
    as_it_came = column(page, "TTFT p50")
    button = page.page.locator("table.sortable").first.get_by_role("button", name="TTFT p50")
    button.focus()
    sorts = "document.activeElement.closest('th').ariaSort"
    orders = []
    for _ in range(3):
        page.page.keyboard.press("Enter")
        orders.append((page.page.evaluate(sorts), column(page, "TTFT p50")))
    amount = {text: page.page.evaluate("amount", text) for text in as_it_came}
    upwards = sorted(as_it_came, key=amount.__getitem__)
    assert len(set(as_it_came)) > 2 and upwards != as_it_came
    assert orders == [("ascending", upwards), ("descending", upwards[::-1]), ("none", as_it_came)]
    page.page.locator("table.sortable").first.get_by_role("button", name="arm").click()
    assert column(page, "arm") == sorted(column(page, "arm"))


def test_amounts_sort_by_what_they_are_and_not_by_their_digits(page: Opened) -> None:
    ascending = ["0.42 ms", "9.5 ms", "340 ms", "1.00 s", "119.00 s", "2 min", "7 min 12 s", "59 min 59 s", "1 h", "7 h 12 min", "3 d 4 h"]
    sizes = ["12.0 MiB", "1,020.5 MiB", "1.5 GiB"]
    for texts in (ascending, sizes, ["-3.1 %", "2.0 %", "31.2 %"], ["0.98 x (0.9 to 1.1)", "2.74 x (2.6 to 2.9)"], ["9", "1,234"]):
        values = page.page.evaluate("(texts) => texts.map(amount)", texts)
        assert values == sorted(values) and len(set(values)) == len(values), texts
    assert page.page.evaluate("amount('-')") is None


def test_what_has_no_value_stays_last_in_both_directions(browser: Browser, tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", {"a": [every_kind()], "broken": [({"failed": "no memory"}, [], [])], "c": [every_kind()]})
    write_report(read_runs([run])[0], tmp_path / "report.html")
    with opened(browser, tmp_path / "report.html") as found:
        button = found.page.locator("table.sortable").first.get_by_role("button", name="output tok/s")
        for _ in range(2):
            button.click()
            assert column(found, "arm")[-1] == "broken"


def test_a_followed_request_is_told_beside_the_picture_that_was_clicked(page: Opened) -> None:
    figure = page.figures("memory")[-1]
    page.page.locator(f"#{figure['id']}").scroll_into_view_if_needed()
    page.page.evaluate("follow(Object.values(groups)[0], 3)")
    box = page.page.locator(".followed table").bounding_box()
    assert box is not None and 0 <= box["y"] < 300
    assert page.page.locator(f"#{figure['id']}").is_visible()


def test_on_a_telephone_the_arms_name_stays_while_its_numbers_scroll(browser: Browser, tutorial: Path) -> None:
    with opened(browser, tutorial, **TELEPHONE) as found:
        found.page.locator(".columns summary").click()
        for table in found.page.locator(".scroll").all()[:4]:
            table.evaluate("(node) => { node.scrollLeft = 10000; }")
            assert table.evaluate("(node) => node.scrollLeft") > 0
            name = table.locator("tbody th.arm").first.bounding_box()
            assert name is not None and 0 <= name["x"] < 30 and name["width"] < 160
        assert found.page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_the_paper(browser: Browser, tutorial: Path, scheme: str) -> None:
    """WCAG 2.2, 1.4.3: at least 4.5 to 1."""
    with opened(browser, tutorial, color_scheme=scheme) as found:
        pairs = "['ink', 'quiet', 'accent', 'good', 'bad'].map((name) => [name, colour(name), colour('paper'), colour('tint')])"
        for name, *colours in found.page.evaluate(pairs):
            text, *grounds = (luminance(hex_colour) for hex_colour in colours)
            for ground in grounds:
                low, high = sorted((text, ground))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (scheme, name)


def luminance(hex_colour: str) -> float:
    parts = [int(hex_colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_browser_says_times_as_the_tables_do(page: Opened) -> None:
    rng = random.Random(0)
    values = [0.0, 4e-7, 0.00994, 0.9996, 119.99, 120.0, 3599.4, 3599.7, 86_399.0, *(10 ** rng.uniform(-6, 9) for _ in range(300))]
    assert page.page.evaluate("(values) => values.map(seconds)", values) == [seconds(value) for value in values]
    assert page.page.evaluate("(values) => values.map(tickText)", values) == [tick_text(value) for value in values]
    assert page.page.evaluate("timeTicks([1800, 25200], 6, 's').ticktext") == ["2 h", "4 h", "6 h"]
    assert page.page.evaluate("timeTicks([0.1, 0.35], 3, 's').ticktext") == ["100 ms", "200 ms", "300 ms"]
    assert page.page.evaluate("timeTicks([0, 90], 5, 'steps').ticktext") == ["0 steps", "20 steps", "40 steps", "60 steps", "80 steps"]


def test_no_two_arms_have_the_same_line_and_those_seen_at_first_no_colour_twice(browser: Browser, tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", {f"arm{number}": [every_kind()] for number in range(MAX_PANELS)})
    write_report(read_runs([run])[0], tmp_path / "report.html")
    with opened(browser, tmp_path / "report.html") as found:
        looks = "groups.g0.arms.map((_, panel) => [armColour(groups.g0, panel), armDash(groups.g0, panel)])"
        lines = [tuple(line) for line in found.page.evaluate(looks)]
        assert len(lines) == len(set(lines)) == MAX_PANELS
        shown = found.page.evaluate("[...groups.g0.shown]")
        assert len({lines[panel][0] for panel in shown}) == len(shown) == 6
        found.page.evaluate("drawAll()")
        numbers = "[...figures.values()].find((f) => f.kind === 'e2e').node.layout.annotations.map((note) => [note.text, note.y])"
        notes = found.page.evaluate(numbers)
        assert {text for text, _ in notes} == {f"<b>{panel + 1}</b>" for panel in shown}
        assert len({height for _, height in notes}) == len(shown), "no number lies over another"
        assert found.complaints == []
