"""The page of `report`, read as text; test_html_report_browser.py opens it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbbench.errors import UserError
from cbbench.report.html import group as workload_group
from cbbench.report.html import report
from cbbench.report.html.bars import Bar, bars
from cbbench.report.html.charts import interval
from cbbench.report.html.over_time import held
from cbbench.report.html.report import mark, render, write_report
from cbbench.report.html.requests import followed
from cbbench.results.rounds import choose
from cbbench.results.store import Cell, Run, read_runs
from cbbench.results.timeline import Kind, Span
from tests.support.browser import every_kind, long_run, peer, save_run
from tests.support.commands import command
from tests.support.places import RECORDS

ARM = "continuous+varlen+paged"


def page_of(path: Path) -> str:
    return render(read_runs([path])[0])


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def figures(page: str, kind: str) -> list[dict[str, Any]]:
    return [figure for group in data_of(page).values() for figure in group["figures"].values() if figure["kind"] == kind]


def without_scripts(page: str) -> str:
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_the_command_writes_one_page_over_all_saved_runs(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    ended = command("report", RECORDS, "-o", out)
    assert (ended.code, ended.out, ended.err) == (0, f"{out}\n", "")
    page = out.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    names = ["long-prompt (7eb6aac3e635e4ea)", "tutorial (f04e00f4e066bc12)", "shared-prefix (e6e3ac67a82cc0f2)"]
    assert titles == [f"{name} on smollm2-135m in float32" for name in names]
    assert "AMD EPYC" in page and "cbbench run workloads/tutorial.yaml --arm" in page  # machine and configuration
    assert len(page.encode()) < 8_000_000


def test_the_page_loads_nothing_and_runs_only_scripts_that_its_policy_names() -> None:
    page = page_of(RECORDS)
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)[0].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "connect-src" not in policy
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts]
    assert len(hashes) == 3 and f"script-src {' '.join(hashes)};" in policy
    assert re.findall(r'(?:src|href)="(?!#|data:)', without_scripts(page)) == []


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    out = tmp_path / "folder"
    refused = command("report", RECORDS / "preemption", "-o", out)
    assert refused.mistake == f"-o {out}: is a folder; give a file, like {out / 'report.html'}"
    assert command("report", tmp_path / "nothing").mistake == f"{tmp_path / 'nothing'}: no such file or folder"


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    runs, _ = read_runs([RECORDS / "preemption"])
    with pytest.raises(UserError, match=r"report.html: cannot be written \(No space left on device\)"):
        write_report(runs, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_the_bars_are_the_spans_and_their_idle_share_the_metric(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", {ARM: [every_kind()]})
    (figure,) = figures(page_of(run), "slots")
    steps = {trace["meta"]["kind"]: sum(row[2] for row in trace["customdata"]) for trace in figure["data"]}
    assert steps == {"prefill": 3, "recompute": 1, "decode": 6, "stalled": 1, "held": 2, "starved": 3, "drained": 2}
    idle = steps["held"] + steps["starved"] + steps["drained"]
    assert idle / sum(steps.values()) == read_runs([run])[0][0].cells[0].metrics["slot_idle_frac"] == 7 / 18


def many_spans() -> list[Span]:
    """Two slots: short spans that alternate, and one long."""
    short = [
        Span(slot, kind, n, n, n, float(n), n + 1.0, 2)
        for n in range(1000)
        for slot, kind in ((0, Kind.PREFILL if n % 3 else Kind.DECODE),)
    ]
    return [*short, Span(1, Kind.HELD, 2000, 0, 999, 0.0, 1000.0, 0)]


def sums(found: list[Any]) -> dict[Any, Any]:
    total: Counter[Any] = Counter()
    for one in found:
        key = (one.slot, one.kind)
        total[key, "seconds"] += one.end_s - one.start_s
        total[key, "steps"] += one.num_steps
        total[key, "tokens"] += one.num_tokens
        total[key, "spans"] += getattr(one, "num_spans", 1)
    return dict(total)


def test_short_spans_stand_together_and_keep_their_sums() -> None:
    spans = many_spans()
    drawn = bars(spans, 200)
    assert len(drawn) <= 220
    assert sums(drawn) == pytest.approx(sums(spans))
    assert [bar for bar in drawn if bar.slot == 1] == [Bar(1, Kind.HELD, 2000, 0.0, 1000.0, 0, 999, 1000, 0, 1)]
    in_order = sorted((bar.start_s, bar.end_s) for bar in drawn if bar.slot == 0)
    assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(in_order))  # nothing lies over another


def test_a_followed_request_is_drawn_alone_unless_there_is_no_room() -> None:
    alone = {10, 500}
    drawn = bars(many_spans(), 200, alone)
    assert [(b.sequence, b.start_s, b.end_s, b.num_spans) for b in drawn if b.sequence in alone] == [
        (10, 10.0, 11.0, 1),
        (500, 500.0, 501.0, 1),
    ]
    assert len(bars(many_spans(), 200, set(range(1000)))) <= 220


def test_few_spans_are_drawn_one_by_one() -> None:
    spans = many_spans()[:50]
    assert [(b.start_s, b.end_s, b.sequence, b.num_spans) for b in bars(spans, 50)] == [(s.start_s, s.end_s, s.sequence, 1) for s in spans]


def test_what_holds_until_the_next_step_falls_to_zero_while_nothing_runs() -> None:
    starts_s, ends_s = np.array([0.0, 1.0, 5.0]), np.array([1.0, 2.0, 6.0])
    assert held(starts_s, ends_s, [np.array([3.0, 4.0, 5.0])], 100) == ([0.0, 1.0, 2.0, 5.0, 6.0], [[3.0, 4.0, 0.0, 5.0, 0.0]])


@pytest.fixture(scope="module")
def long_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(long_run(tmp_path_factory.mktemp("long") / "run", num_steps=100_000, num_slots=1, length=10))


def test_a_hundred_thousand_steps_stay_below_eight_megabytes(long_page: str) -> None:
    assert len(long_page.encode()) < 8_000_000
    (figure,) = figures(long_page, "slots")
    assert sum(len(trace["x"]) for trace in figure["data"]) < 2 * report.MAX_BARS
    assert sum(row[7] for trace in figure["data"] for row in trace["customdata"]) == 20_000  # a prefill and a decode each
    assert sum(row[2] for trace in figure["data"] for row in trace["customdata"]) == 100_000
    assert re.search(r"round 1\. 19,\d\d\d of 20,000 short spans stand together, their sums kept\.", long_page)
    assert "120 of 10,000 requests: of each run of neighbours the slowest." in long_page


def test_thinned_lines_keep_every_peak(long_page: str) -> None:
    (figure,) = figures(long_page, "steps")
    host = figure["data"][1]
    peaks = [x for x, y in zip(host["x"], host["y"], strict=True) if y == 19.25]  # one step of 20 s in 10,000, 0.75 s of it in the model
    assert peaks == [9_999 + 10_019 * n for n in range(10)]
    (figure,) = figures(long_page, "memory")
    used = figure["data"][0]
    assert (max(used["y"]), len(used["y"]) < 3000) == (4 + 9, True)


def test_of_too_many_requests_the_slowest_of_each_run_of_neighbours_is_followed(tmp_path: Path) -> None:
    steps, requests = every_kind()[1:]
    late = [dict(r, index=i, arrival_s=i, token_times_s=[i + 1, i + (9 if i in (3, 8) else 2)]) for i, r in enumerate([*requests] * 4)]
    run = save_run(tmp_path / "run", {ARM: [({}, steps, late)]})
    panels = choose(read_runs([run])[0][0])
    assert followed(panels, 2) == [3, 8]
    assert followed(panels, 12) == list(range(12))


def test_the_interval_is_the_range_until_six_rounds_and_then_95_percent() -> None:
    run = Run(Path("run"), {}, [Cell("a", n, {"x": float(n)}) for n in (1, 2, 3)] + [Cell("a", 9, {"x": 100.0}, interrupted=True)], [])
    assert interval(run, "a", "x") == (2.0, 1.0, 3.0, "lowest to highest of 3 rounds")
    run.cells = [Cell("a", n, {"x": float(n)}) for n in range(1, 11)]
    assert interval(run, "a", "x") == (5.5, 3.0, 8.0, "95 % interval of 10 rounds")
    run.cells = run.cells[:1]
    assert interval(run, "a", "x") is None


@pytest.mark.parametrize(("status", "quality"), [("32/32 exact", "good"), ("31/32 exact, 1 tie", "open"), ("30/32 exact, 1 WRONG", "bad"),
                         ("failed: out of memory", "bad"), ("unverified", "open"), ("31/31 exact, 1 refused", "open")])  # fmt: skip
def test_only_what_was_proved_is_marked_good(status: str, quality: str) -> None:
    assert mark(status)[1] == quality


def test_peers_failed_arms_and_refused_requests_have_their_place(tmp_path: Path) -> None:
    cell, steps, requests = every_kind()
    refused = dict(next(iter(requests)), index=3, id="too long", state="refused", token_times_s=[], output_ids=[], first_scheduled_s=None)
    arms = {
        ARM: [(cell, steps, [*requests, refused])],
        "telling": [peer([2.0, 3.0])],
        "silent": [peer(None)],
        "broken": [({"failed": "out of memory"}, [], [])],
    }
    page = page_of(save_run(tmp_path / "run", arms))
    assert "telling keeps no step records." in page and "silent keeps no step records." in page
    assert "broken of run is not drawn: it has no whole round." in page and "failed: out of memory" in page
    ours, telling, silent = figures(page, "requests")
    assert {trace["name"] for trace in telling["data"]} == {"not told", "decode"}
    assert [(trace["name"], trace["base"], trace["x"]) for trace in silent["data"]] == [("not told", [0.0, 0.0, 0.0], [4.0, 5.0, 6.0])]
    assert 3 not in {row[0] for trace in ours["data"] for row in trace["customdata"]}
    assert len(figures(page, "slots")) == len(figures(page, "memory")) == 1


def test_a_run_without_a_whole_round_is_a_page_that_says_so(tmp_path: Path) -> None:
    page = page_of(save_run(tmp_path / "run", {"broken": [({"failed": "out of memory"}, [], [])]}))
    assert "broken of run is not drawn: it has no whole round." in page
    assert 'class="follow"' not in page and "No arm here keeps step records." in page


def test_damaged_records_leave_out_their_arm_only(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", {ARM: [every_kind()], "other": [every_kind()]})
    steps = run / "other" / "1" / "steps.jsonl"
    steps.write_text(steps.read_text().replace("{", "[", 1))
    page = page_of(run)
    assert "other of run is not drawn: its records are damaged (JSONDecodeError" in page
    assert len(figures(page, "slots")) == 1


def test_arms_beyond_what_a_page_holds_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_group, "MAX_PANELS", 2)
    page = page_of(save_run(tmp_path / "run", {f"arm{n}": [every_kind()] for n in range(4)}))
    assert len(figures(page, "slots")) == 2 and len(figures(page, "throughput")[0]["data"][0]["x"]) == 4
    for arm in ("arm2", "arm3"):
        assert f"{arm} of run is not drawn over time: the page holds 2 arms; give fewer runs." in page


def test_texts_of_a_run_are_escaped_wherever_they_stand(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    cell, steps, requests = every_kind()
    arms = {"<script>alert(1)<b>+x+y": [(cell, steps, [dict(r, id=evil) for r in requests])]}
    page = page_of(save_run(tmp_path / "run", arms, workload=evil))
    assert page.count("<script") == 4 and page.count("</script") == 4
    assert "alert(1)<b>" not in page and "&lt;script&gt;alert(1)&lt;b&gt;" in page
    group = data_of(page)["g0"]
    assert group["requests"][0]["name"] == f"#0 {evil}"
    hover = next(figure for figure in group["figures"].values() if figure["kind"] == "slots")["data"][0]["customdata"][0][1]
    assert hover == "#0 &lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;"
