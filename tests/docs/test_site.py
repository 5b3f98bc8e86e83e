"""The site of `make docs`, opened from disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.docs.pages import ROOT
from tests.support.browser import chromium, needs_chromium, opened

pytestmark = [needs_chromium, pytest.mark.skipif(not (find_spec("mkdocs") and find_spec("material")), reason="no mkdocs-material")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(out)]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    return out


def test_its_search_works_from_disk_and_asks_nobody(browser: Browser, site: Path) -> None:
    with opened(browser, site / "index.html", viewport={"width": 1300, "height": 900}) as found:
        found.page.locator(".md-search__input").click()
        found.page.keyboard.type("block table", delay=20)
        hit = found.page.locator(".md-search-result__link", has_text="Paged memory").first
        hit.wait_for(timeout=10_000)
        assert "block table" in hit.inner_text()
        hit.click()
        found.page.wait_for_url("**/paged.html*")
        assert [url for url in found.requested if not url.startswith("file:")] == []


def test_it_is_dark_where_the_system_is_and_can_be_switched(browser: Browser, site: Path) -> None:
    for scheme, named in (("light", "default"), ("dark", "slate")):
        with opened(browser, site / "index.html", color_scheme=scheme) as found:
            assert found.page.evaluate("document.body.dataset.mdColorScheme") == named
            found.page.locator("form[data-md-component=palette] label:visible").click()
            assert found.page.evaluate("document.body.dataset.mdColorScheme") == ("slate" if named == "default" else "default")


@pytest.mark.parametrize("width", [390, 1300])
def test_wide_tables_scroll_in_their_box_and_their_first_column_stays(browser: Browser, site: Path, width: int) -> None:
    with opened(browser, site / "performance.html", viewport={"width": width, "height": 900}) as found:
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        box = found.page.locator(".md-typeset__scrollwrap", has_text="prefill padding").first
        box.evaluate("(node) => { for (const part of [node, ...node.querySelectorAll('*')]) part.scrollLeft = 10000; }")
        outer, name, last = (box.locator(part).first.bounding_box() for part in (":scope", "tbody td:first-child", "tbody td:last-child"))
        assert outer and name and last
        assert abs(name["x"] - outer["x"]) < 30 and last["x"] + last["width"] <= outer["x"] + outer["width"] + 1
