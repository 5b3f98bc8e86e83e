"""Pages in a real browser, and saved runs written by hand to show in one."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from cbbench.plugins import AXES
from cbbench.results.store import RunDir, name_cell, write_records

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the path")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, what it complained about and what it asked for beside itself."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def figures(self, kind: str) -> list[dict[str, Any]]:
        """All drawn pictures of a kind, as plotly holds them: id, group, panel, data, layout."""
        found: list[dict[str, Any]] = self.page.evaluate(
            """async (kind) => {
              await drawAll();
              return [...figures.values()].filter((f) => f.kind === kind && f.isDrawn).map((f) => (
                { id: f.id, panel: f.panel, title: f.group.arms[f.panel], group: Object.keys(groups).find((id) => groups[id] === f.group),
                  data: f.node.data.map(({ meta, base, x, y, customdata, selectedpoints, visible }) => (
                    { meta, base, x, y, customdata, selectedpoints, visible })), range: f.node.layout.xaxis.range }));
            }""",
            kind,
        )
        return found

    def until(self, expression: str) -> None:
        """Waits for what an event brings about (playwright's own way is forbidden by the page's policy)."""
        waits = f"(async () => {{ for (let n = 0; n < 250 && !({expression}); n++) await new Promise((next) => setTimeout(next, 20)); }})()"
        self.page.evaluate(waits)

    def tooltip(self, figure: str) -> str:
        self.page.locator(f"#{figure} .hoverlayer .hovertext").wait_for(timeout=5000)
        return self.page.locator(f"#{figure} .hoverlayer").text_content() or ""


@contextlib.contextmanager
def opened(browser: Browser, path: Path, **settings: Any) -> Iterator[Opened]:
    """The file in a window of its own, ready when its scripts have run."""
    context = browser.new_context(**settings)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on(
        "request", lambda request: found.requested.append(request.url) if not request.url.startswith(("data:", "blob:")) else None
    )
    found.page.goto(path.as_uri())
    yield found
    context.close()


def step(number: int, start_s: float, rows: list[tuple[int, int, int, int]], slots: int = 2, **said: Any) -> dict[str, Any]:
    """A step of a second, decoding unless told; each sequence has what it has written, and as much reserved."""
    live, held = sum(new > 0 for *_, new in rows), sum(new == 0 for *_, new in rows)
    kv = [(sequence, start + new, start + new) for _, sequence, start, new in rows]
    passes = [["decode" if all(new <= 1 for *_, new in rows) else "prefill", sum(new for *_, new in rows), 0, 0, 0]]
    return {
        "step": number, "start_s": start_s, "end_s": start_s + 1, "model_s": 0.75, "slots": slots, "live": live, "held": held, "waiting": 0,
        "passes": passes, "rows": rows, "kv": kv, "free_tokens": 10, "external_tokens": 0, "copied_bytes": 0, "preempted": [], **said,
    }  # fmt: skip


def request(index: int, identity: str, times_s: list[float] | None, **said: Any) -> dict[str, Any]:
    """One that finished, with four prompt tokens."""
    return {
        "id": identity, "index": index, "state": "finished", "reason": "length", "prompt_tokens": 4, "max_new_tokens": 50, "arrival_s": 0.0,
        "submitted_s": 0.0, "first_scheduled_s": 0.0, "token_times_s": times_s, "output_ids": [7] * len(times_s or [7]),
        "num_preemptions": 0, "recomputed_tokens": 0, **said,
    }  # fmt: skip


Records = tuple[dict[str, Any], Iterable[dict[str, Any]], Iterable[dict[str, Any]]]


def every_kind() -> Records:
    """Six steps of three slots in which everything occurs: see timeline.Kind. 7 of 18 places are idle."""
    steps = [
        step(0, 0, [(0, 0, 0, 4), (1, 1, 0, 4)], 3, waiting=1),
        step(1, 1, [(0, 0, 4, 1)], 3, waiting=2, preempted=[1]),
        step(2, 2, [(0, 0, 5, 1), (1, 1, 0, 4)], 3),
        step(3, 3, [(0, 0, 6, 0), (1, 1, 4, 1), (2, 2, 0, 4)], 3),
        step(4, 4, [(0, 0, 6, 0), (1, 1, 5, 1)], 3, live=2),
        step(5, 5, [(1, 1, 6, 1), (2, 2, 4, 1)], 3),
    ]
    requests = [
        request(0, "first", [1, 2, 3]),
        request(1, "second", [3, 4, 5, 6], num_preemptions=1, recomputed_tokens=4),
        request(2, "third", [4, 6], first_scheduled_s=3),
    ]
    return {}, steps, requests


def peer(times_s: list[float] | None) -> Records:
    """Another system, which tells when tokens came, or not even that."""
    told = {"submitted_s": None, "first_scheduled_s": None, "num_preemptions": None, "recomputed_tokens": None}
    return {"peer": "other"}, [], [request(index, f"request {index}", times_s, ended_s=4.0 + index, **told) for index in range(3)]


def save_run(path: Path, arms: dict[str, list[Records]], workload: str = "by-hand") -> Path:
    """A run of those arms: per round its cell.json (beside arm and round), steps and requests."""
    saved = RunDir(path)
    model = {"name": "tiny", "dtype": "float32", "digest": "0" * 16}
    axes = {axis: {"name": "by-hand"} for axis in AXES}
    described = [{"label": arm, **axes} for arm in arms]
    saved.write_run({"workload": {"name": workload, "digest": "1" * 16}, "model": model, "arms": described})
    for arm, rounds in arms.items():
        for number, (cell, steps, requests) in enumerate(rounds, 1):
            with saved.making(arm, number) as folder:
                write_records(folder, {"bytes_per_token": 8, **cell}, list(steps), list(requests))
                name_cell(folder, arm, number)
    return path


def long_run(path: Path, num_steps: int, num_slots: int = 8, length: int = 50) -> Path:
    """Slots that never rest: a prompt, then `length` - 1 decodes, then the next request. One step in 10,000 takes 20 s."""
    return save_run(
        path, {"continuous+varlen+paged": [({}, _long_steps(num_steps, num_slots, length), _long_requests(num_steps, num_slots, length))]}
    )


def _starts(num_steps: int) -> list[float]:
    return [number + 19.0 * (number // 10_000) for number in range(num_steps + 1)]


def _long_steps(num_steps: int, num_slots: int, length: int) -> Iterator[dict[str, Any]]:
    starts_s = _starts(num_steps)
    for number in range(num_steps):
        age = number % length
        first = number // length * num_slots
        rows = [(slot, first + slot, 3 + age if age else 0, 1 if age else 4) for slot in range(num_slots)]
        yield step(number, starts_s[number], rows, num_slots) | {"end_s": starts_s[number + 1]}


def _long_requests(num_steps: int, num_slots: int, length: int) -> Iterator[dict[str, Any]]:
    starts_s = _starts(num_steps)
    for index in range(num_steps // length * num_slots):
        first = index // num_slots * length
        times_s = starts_s[first + 1 : first + length + 1]
        yield request(index, f"request-{index}", times_s, first_scheduled_s=starts_s[first])
