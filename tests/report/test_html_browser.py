"""The page of `report` in a real browser: it draws what was recorded, answers mouse and keyboard, and asks nobody for anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from cbbench.report.html.report import write_report
from cbbench.results.rounds import SavedRound, choose
from cbbench.results.store import read_runs
from cbbench.results.timeline import IDLE
from tests.support.browser import Opened, chromium, every_kind, needs_chromium, opened, peer, request, save_run, step
from tests.support.places import RECORDS

pytestmark = needs_chromium
EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='hacked = 2'>"
EVIL_ARM = "<script>window.hacked = 3<b>+x+y"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Over the runs of a real model that are kept in docs/records."""
    out = tmp_path_factory.mktemp("real") / "report.html"
    write_report(read_runs([RECORDS])[0], out)
    return out


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of span, a peer with and one without times, a failed arm, and texts that would like to be scripts."""
    folder = tmp_path_factory.mktemp("hand")
    cell, steps, requests = every_kind()
    evil = [dict(r, id=EVIL) if r["index"] == 0 else r for r in requests]
    arms = {EVIL_ARM: [(cell, steps, evil)], "other": [every_kind(), every_kind()], "telling": [peer([2.0, 3.0])], "silent": [peer(None)],
            "broken": [({"failed": "out of memory"}, [], [])]}  # fmt: skip
    write_report(read_runs([save_run(folder / "run", arms, workload=EVIL)])[0], folder / "report.html")
    return folder / "report.html"


@pytest.fixture
def page(browser: Browser, by_hand: Path) -> Iterator[Opened]:
    with opened(browser, by_hand, viewport={"width": 1200, "height": 900}) as found:
        yield found
        assert (found.complaints, found.requested) == ([], [by_hand.as_uri()])


def drawn_bars(figure: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Kind, slot, sequence, first and last step, steps, tokens, start and end of each bar in the browser."""
    return sorted(
        (trace["meta"]["kind"], slot, -1 if row[0] is None else row[0], row[3], row[4], row[2], row[5], round(base, 6), round(base + x, 6))
        for trace in figure["data"]
        for slot, row, base, x in zip(trace["y"], trace["customdata"], trace["base"], trace["x"], strict=True)
    )


def recorded_bars(recorded: SavedRound) -> list[tuple[Any, ...]]:
    return sorted(
        (str(s.kind), s.slot, -1 if s.sequence is None else s.sequence, s.first_step, s.last_step, s.num_steps, s.num_tokens,
         round(s.start_s, 6), round(s.end_s, 6)) for s in recorded.spans
    )  # fmt: skip


def test_every_bar_of_every_arm_is_a_recorded_span_and_no_picture_complains(browser: Browser, report: Path) -> None:
    with opened(browser, report, viewport={"width": 1200, "height": 900}) as found:
        found.page.evaluate("document.querySelectorAll('.choose input').forEach((box) => box.checked || box.click())")
        shown = {(figure["group"], figure["title"]): figure for figure in found.figures("slots")}
        expected = [
            recorded
            for name in ("long-prompt", "preemption", "shared-prefix", "tutorial")
            for recorded in choose(read_runs([RECORDS / name])[0][0])
        ]
        assert len(shown) == len(expected) == 16
        for recorded in expected:
            group = {"long-prompt": "g0", "shared-prefix": "g2"}.get(recorded.run.name, "g1")
            key = (group, f"{recorded.arm} ({recorded.run.name})" if group == "g1" else recorded.arm)
            assert drawn_bars(shown[key]) == recorded_bars(recorded), key
            steps = {trace["meta"]["kind"]: sum(row[2] for row in trace["customdata"]) for trace in shown[key]["data"]}
            idle = sum(steps.get(str(kind), 0) for kind in IDLE)
            assert idle / sum(steps.values()) == pytest.approx(recorded.metrics["slot_idle_frac"], abs=1e-12)
        assert {tuple(figure["range"]) for figure in shown.values() if figure["group"] == "g1"} == {
            tuple(shown[key]["range"])
        }  # one time axis
        assert (found.complaints, found.requested) == ([], [report.as_uri()])


def test_all_kinds_are_told_apart_in_light_and_dark(browser: Browser, by_hand: Path) -> None:
    looks = """async () => { await drawAll();
        const gd = [...figures.values()].find((f) => f.kind === 'slots').node;
        return gd.data.map((t) => [t.meta.kind, JSON.stringify([t.marker.color, t.marker.pattern?.shape])]); }"""
    with opened(browser, by_hand, color_scheme="dark") as found:
        seen = []
        for theme in ("dark", "light"):
            assert found.page.evaluate("document.documentElement.dataset.theme") == theme
            drawn = dict(found.page.evaluate(looks))
            assert len(set(drawn.values())) == len(drawn) == 7
            seen.append((drawn["decode"], found.page.evaluate("getComputedStyle(document.body).backgroundColor")))
            found.page.locator("#theme").click()
        assert seen[0][0] != seen[1][0] and seen[0][1] == "rgb(20, 23, 27)" and seen[1][1] == "rgb(252, 251, 249)"
        found.page.emulate_media(color_scheme="light")  # the system's own change counts too
        found.until("document.documentElement.dataset.theme === 'light'")
        assert found.page.evaluate("document.documentElement.dataset.theme") == "light"
        assert found.complaints == []


def centre(found: Opened, figure: str, trace: int, point: int) -> tuple[float, float]:
    """Where on the screen the middle of a bar is."""
    x, y = found.page.evaluate(
        """async ([id, trace, point]) => {
          const f = figures.get(id); f.node.scrollIntoView({ block: 'center' }); await drawAll();
          const { base, x, y } = f.node.data[trace], { xaxis, yaxis } = f.node._fullLayout, box = f.node.getBoundingClientRect();
          return [box.left + xaxis._offset + xaxis.d2p(base[point] + x[point] / 2), box.top + yaxis._offset + yaxis.d2p(y[point])];
        }""",
        [figure, trace, point],
    )
    return x, y


def test_a_tooltip_shows_the_numbers_of_its_bar(page: Opened) -> None:
    figure = page.figures("slots")[1]  # of "other"
    (decode,) = [i for i, trace in enumerate(figure["data"]) if trace["meta"]["kind"] == "decode"]
    (second,) = [i for i, row in enumerate(figure["data"][decode]["customdata"]) if row[0] == 1]
    page.page.mouse.move(*centre(page, figure["id"], decode, second))
    text = page.tooltip(figure["id"])
    for part in ("#1 second", "decode in slot 1", "3 steps, 3 to 5", "3 tokens computed", "3.00 s to 6.00 s, 3.00 s"):
        assert part in text


def followed_in(page: Opened, kind: str) -> list[list[set[int]]]:
    """Per picture and trace the sequences that do not fade; of a trace without selection None."""
    return [
        [
            {trace["customdata"][i][0] for i in trace["selectedpoints"]}
            for trace in figure["data"]
            if trace.get("selectedpoints") is not None
        ]
        for figure in page.figures(kind)
    ]


def test_a_clicked_request_is_followed_through_every_arms_pictures(page: Opened) -> None:
    figure = page.figures("slots")[0]
    (prefill,) = [i for i, trace in enumerate(figure["data"]) if trace["meta"]["kind"] == "prefill"]
    page.page.mouse.click(*centre(page, figure["id"], prefill, 0))
    page.until("groups.g0.followed === 0")
    for kind, num in (("slots", 2), ("requests", 4), ("ttft", 1), ("e2e", 1)):
        pictures = followed_in(page, kind)
        assert len(pictures) == num
        assert [set().union(*traces) for traces in pictures] == [{0}] * num, kind
    for figure in page.figures("slots"):  # all of its bars and no other
        for trace in figure["data"]:
            assert trace["selectedpoints"] == [i for i, row in enumerate(trace["customdata"]) if row[0] == 0]
    assert page.page.locator(".follow").input_value() == "0"
    told = page.page.locator(".followed tbody tr").all_inner_texts()
    assert told[1].split("\t") == ["other", "0 ms", "1.00 s", "1.00 s", "3.00 s", "0"]
    assert told[3].split("\t") == ["silent", "-", "-", "-", "4.00 s", "-"]
    edges = "[...figures.values()].filter((f) => f.kind === 'memory').map((f) => f.node.layout.shapes.map((s) => s.x0))"
    assert page.page.evaluate(edges) == [[0, 3], [0, 3]]
    page.page.locator(".clear").click()
    assert [traces for kind in ("slots", "requests") for traces in followed_in(page, kind)] == [[]] * 6


def test_the_keyboard_reaches_the_controls_and_walks_from_bar_to_bar(page: Opened) -> None:
    keyboard = page.page.keyboard
    reached = []
    for _ in range(30):
        keyboard.press("Tab")
        reached.append(page.page.evaluate("[document.activeElement.id, document.activeElement.className, document.activeElement.type]"))
    ids = [found[0] for found in reached]
    assert ids[1] == "theme" and "g0-follow" in ids
    controls = [found[1].split(" ")[0] for found in reached if found[1].startswith(("follow", "clear", "whole", "plot"))]
    assert controls[:5] == ["follow", "clear", "whole", "plot", "plot"]
    assert sum(found[2] == "checkbox" for found in reached) == 1  # the arms are folded; the other is "show free memory"
    figure = page.figures("slots")[1]
    page.page.locator(f"#{figure['id']}").focus()
    heard = "document.getElementById('said').textContent"
    keyboard.press("ArrowRight")
    page.until(f"{heard}.includes('#0 first, prefill in slot 0, 1 steps, 0 to 0')")
    keyboard.press("ArrowRight")
    page.until(f"{heard}.includes('#1 second')")
    assert page.page.evaluate(heard) == "#1 second, prefill in slot 1, 1 steps, 0 to 0, 4 tokens computed, 0 ms to 1.00 s, 1.00 s"
    keyboard.press("Enter")
    assert page.page.locator(".follow").input_value() == "1"
    keyboard.press("ArrowRight")
    keyboard.press("ArrowRight")
    page.until(f"{heard}.includes('recompute in slot 1')")  # the next bar of the followed request
    assert "recompute in slot 1" in page.tooltip(figure["id"])
    keyboard.press("+")
    assert {tuple(f["range"]) for kind in ("slots", "requests", "memory", "steps") for f in page.figures(kind)} == {(1.0, 4.0)}
    keyboard.press("0")
    assert {tuple(f["range"]) for f in page.figures("slots")} == {(0.0, 6.0)}
    keyboard.press("Escape")
    assert page.page.locator(".follow").input_value() == ""


def test_a_dragged_stretch_of_time_is_zoomed_in_every_picture_of_the_workload(page: Opened) -> None:
    figure = page.figures("slots")[1]
    left, y = centre(page, figure["id"], 0, 0)
    page.page.mouse.move(left, y)
    page.page.mouse.down()
    page.page.mouse.move(left + 300, y, steps=5)
    page.page.mouse.up()
    page.until("groups.g0.range")
    (zoomed,) = {tuple(f["range"]) for kind in ("slots", "requests", "memory", "steps") for f in page.figures(kind)}
    assert zoomed[0] == pytest.approx(0.5, abs=0.02) and 1.5 < zoomed[1] < 3
    page.page.locator(".whole").click()
    assert {tuple(f["range"]) for f in page.figures("memory")} == {(0.0, 6.0)}


def test_texts_of_a_run_are_shown_and_not_run(page: Opened) -> None:
    window = page.page
    assert window.evaluate("window.hacked") is None
    assert window.locator("h2").inner_text().startswith(EVIL)
    assert window.locator("tbody th", has_text=EVIL_ARM).count() == 4
    assert f"#0 {EVIL}" in window.locator(".follow option").all_text_contents()
    figure = page.figures("slots")[0]
    window.mouse.move(*centre(page, figure["id"], 0, 0))
    assert "#0 </script><script>window.hacked = 1" in page.tooltip(figure["id"])
    window.locator(".follow").select_option("0")
    assert EVIL_ARM in window.locator(".followed").inner_text()
    assert window.locator("script[src], .followed script, h2 script, img").count() == 0
    assert window.evaluate("window.hacked") is None


def test_a_script_that_came_in_all_the_same_could_neither_run_nor_reach_out(browser: Browser, by_hand: Path) -> None:
    with opened(browser, by_hand) as found:
        violated = """(act) => new Promise((resolve) => {
            addEventListener('securitypolicyviolation', (event) => resolve(event.effectiveDirective), { once: true });
            act === 'fetch' ? fetch('https://cbbench.invalid/').catch(() => {}) :
              document.body.append(Object.assign(document.createElement('script'), { textContent: 'window.hacked = 4' })); })"""
        assert found.page.evaluate(violated, "script").startswith("script-src")
        assert found.page.evaluate(violated, "fetch") == "connect-src"
        assert found.page.evaluate("window.hacked") is None


def test_arms_are_shown_and_hidden_everywhere_at_once_and_free_memory_can_be_left_out(page: Opened) -> None:
    page.page.locator(".choose summary").click()
    page.page.get_by_role("checkbox", name="other").uncheck()
    assert [figure["title"] for figure in page.figures("requests")] == [EVIL_ARM, "telling", "silent"]
    visible = page.page.locator("figure[data-panel]:visible").evaluate_all("(nodes) => nodes.map((node) => node.dataset.panel)")
    assert "1" not in visible and set(visible) == {"0", "2", "3"}
    assert [trace["visible"] for trace in page.figures("e2e")[0]["data"]] == [True, False, True, True]
    assert page.page.locator(".count").inner_text() == "3"
    free = page.figures("memory")[0]["data"][-1]
    assert (free["meta"]["kind"], free["visible"]) == ("free", True)
    page.page.get_by_label("show free memory").uncheck()
    assert page.figures("memory")[0]["data"][-1]["visible"] is False


def test_a_telephone_needs_no_sideways_scrolling(browser: Browser, report: Path) -> None:
    with opened(browser, report, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as found:
        found.page.evaluate("drawAll()")
        assert found.page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
        widths = found.page.evaluate(
            "[...figures.values()].filter((f) => f.isDrawn).map((f) => f.node.querySelector('.main-svg').clientWidth)"
        )
        assert len(widths) > 30 and max(widths) <= 390 and min(widths) > 300
        assert (
            found.page.evaluate("figures.values().find((f) => f.kind === 'slots').node.layout.dragmode") is False
        )  # a finger scrolls the page
        assert found.complaints == []


def test_pictures_have_words_beside_them(page: Opened) -> None:
    labels = page.page.locator(".plot").evaluate_all("(nodes) => nodes.map((node) => node.getAttribute('aria-label'))")
    assert len(labels) == len(set(labels)) > 10 and all(labels)
    assert "other: 3 slots over 6 steps, 38.9 % of them idle (held 11.1 %, starved 16.7 %, drained 11.1 %)" in labels
    assert page.page.locator("h3").count() == 9
    assert page.page.evaluate("[...document.querySelectorAll('h3')].every((h) => h.nextElementSibling.matches('p, .scroll, details'))")


def test_a_long_run_follows_its_slowest_requests_bar_by_bar(browser: Browser, tmp_path: Path) -> None:
    num = 4000
    steps = [step(n, float(n), [(0, n, 0, 4)], 1) for n in range(num)]
    requests = [request(n, f"r{n}", [n + 1.0], first_scheduled_s=float(n)) for n in range(num)]
    write_report(read_runs([save_run(tmp_path / "run", {"long": [({}, steps, requests)]})])[0], tmp_path / "long.html")
    with opened(browser, tmp_path / "long.html") as found:
        found.page.locator(".follow").select_option(label="#3999 r3999")
        (figure,) = found.figures("slots")
        (trace,) = figure["data"]
        assert len(trace["x"]) < num / 2 and sum(row[7] for row in trace["customdata"]) == num
        assert [trace["customdata"][i][:3] for i in trace["selectedpoints"]] == [[3999, "#3999 r3999", 1]]
        assert found.page.get_by_text("several requests' short spans").is_visible()
        assert found.complaints == []
