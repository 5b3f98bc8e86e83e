"""`cbbench show`: what a person sees, column by column, and that it agrees with the tables."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from cbbench.report.printable import printable
from cbbench.report.terminal.columns import Columns, filled
from cbbench.report.terminal.show import latencies_s, print_all, print_recorded
from cbbench.results.metrics import summarize
from cbbench.results.rounds import SavedRound, choose
from cbbench.results.store import Cell, Run, read_run
from cbbench.results.tables import number, percent, seconds
from tests.engine.test_properties import crowd
from tests.results.test_timeline import step_by_hand
from tests.support.commands import command
from tests.support.engines import run_virtual
from tests.support.places import RECORDS

TUTORIAL = ("static+padded+preallocated", "continuous+varlen+paged")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def by_hand(steps: list[dict[str, Any]], requests: list[dict[str, Any]], arm: str = "arm", **said: Any) -> SavedRound:
    metrics = summarize(steps, requests, said)
    info: dict[str, Any] = {"model": {"name": "none", "digest": None}, "arms": [{"label": arm}]}
    return SavedRound(Run(Path("run"), info, [Cell(arm, 1, metrics)], []), arm, 1, {"metrics": metrics, **said}, steps, requests)


def full_step(number: int, rows: list[tuple[int, int, int, int]], **changes: Any) -> dict[str, Any]:
    rest = {"live": len(rows), "held": 0, "passes": [["prefill", sum(row[3] for row in rows), 0, 0, 0]], "kv": [], "free_tokens": 10}
    return step_by_hand(number, rows, **{**rest, "external_tokens": 0, "copied_bytes": 0, "model_s": 1.0, **changes})


def request(index: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"r{index}", "index": index, "state": "finished", "reason": "length", "prompt_tokens": 1, "max_new_tokens": 1,
        "arrival_s": 0.0, "submitted_s": 0.0, "first_scheduled_s": 0.0, "token_times_s": [1.0], "output_ids": [7],
        "num_preemptions": 0, "recomputed_tokens": 0, "outcome": None,
    } | changes  # fmt: skip


def shown(recorded: SavedRound, capsys: pytest.CaptureFixture[str]) -> str:
    print_recorded(recorded)
    out = capsys.readouterr().out
    assert max(map(cell_len, out.splitlines())) <= 80 and "\x1b" not in out
    return out


def line_of(out: str, label: str) -> str:
    """What stands over the time axis behind a label."""
    (found,) = [line[8:] for line in out.splitlines() if line[:8].strip() == label]
    return found


def test_static_holds_what_has_ended_where_continuous_lets_the_next_in() -> None:
    static, continuous = (command("show", RECORDS / "tutorial", "--arm", arm).out for arm in TUTORIAL)
    assert set(line_of(static, "0").replace("=", "")) == set("AaEe") and "=" in line_of(static, "0")
    assert "=" not in continuous
    slots = [line_of(continuous, str(slot)) for slot in range(4)]
    assert slots[0].startswith("AA") and slots[0].strip(".").endswith("ee") and set("aEe") <= set(slots[0])
    assert not slots[1].replace("B", "").replace("b", ""), "the longest request fills its slot from end to end"
    assert line_of(continuous, "waiting").startswith("4444") and "tutorial-8-reverse-string" in continuous


@pytest.mark.parametrize("name", ["tutorial", "long-prompt", "preemption"])
def test_every_real_run_fits_80_columns_is_plain_and_says_the_shares_of_the_table(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for recorded in choose(read_run(RECORDS / name)):
        out, metrics = shown(recorded, capsys), recorded.metrics
        assert out.splitlines()[0] == recorded.arm and f"{metrics['exact_matched']}/{metrics['exact_checked']} exact" in out
        assert f"slots idle {percent(metrics['slot_idle_frac'])};" in out
        meanings = {
            "= held (it has ended)": "finished",
            "! starved (empty, others wait)": "starved",
            ". drained (empty, none waits)": "drain",
        }
        for meaning, key in meanings.items():
            share = metrics[f"slot_idle_{key}_frac"]
            assert (f"{meaning} {percent(share)}" in out) == (share > 0), meaning
        for part, key in {"█ token states": "kv_utilization", "▓ future": "kv_future_frac", "▒ internal": "kv_internal_frac"}.items():
            assert f"{part} {percent(metrics[key])}" in out


def test_a_preempted_request_is_marked_in_time_and_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    (recorded,) = choose(read_run(RECORDS / "preemption"))
    out = shown(recorded, capsys)
    mark = line_of(out, "preempt")
    assert mark.strip() == "d" and line_of(out, "3")[: mark.index("d")] == "D" * mark.index("d"), "it loses its slot there"
    assert re.search("[a-z]%+d", line_of(out, "0")), "and computes its prompt once more in another"
    assert "d tutorial-4-rhyme-with-moon 40+12 preempted 1x" in out and "% recompute 0.4 %" in out


def test_one_long_step_is_a_hole_in_the_rate_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    (recorded,) = choose(read_run(RECORDS / "long-prompt"), ["continuous+varlen+paged"])
    rate = line_of(shown(recorded, capsys), "tok/s")
    assert re.search("██.?▁{20,}.?█{20,}", rate), "the prompt of 1,633 tokens is one step, in which nobody gets a token"


def test_each_kind_has_its_own_sign_and_a_column_shows_what_lasts_longest(capsys: pytest.CaptureFixture[str]) -> None:
    """Seven steps over 71 columns: about ten each."""
    steps = [
        full_step(0, [(0, 0, 0, 3), (1, 1, 0, 2)], waiting=1), full_step(1, [(0, 0, 3, 1)], waiting=12, live=2),
        full_step(2, [(0, 0, 4, 1)], preempted=[1], waiting=2), full_step(3, [(0, 0, 5, 0), (1, 1, 0, 3)], live=1, held=1),
        full_step(4, [(1, 1, 3, 1)]), full_step(5, [], slots=1), full_step(6, [(0, 2, 0, 9)], start_s=6.0, end_s=7.1),
    ]  # fmt: skip
    requests = [request(0, prompt_tokens=3), request(1, prompt_tokens=2, num_preemptions=1), request(2, token_times_s=[7.1])]
    out = shown(by_hand(steps, requests), capsys)
    assert line_of(out, "0") == "A" * 10 + "a" * 20 + "=" * 10 + "." * 20 + "C" * 11
    assert line_of(out, "1") == "B" * 10 + "~" * 10 + "!" * 10 + "%" * 10 + "b" * 10 + " " * 10 + "." * 11
    assert line_of(out, "waiting") == "1" * 10 + "+" * 10 + "2" * 10
    assert line_of(out, "preempt") == " " * 20 + "b"
    assert "~ stalled 7.7 %" in out and "= held (it has ended) 7.7 %" in out and "slots idle 38.5 %;" in out


def test_a_wait_for_arrivals_is_blank_in_every_slot(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [full_step(0, [(0, 0, 0, 1)]), full_step(1, [(0, 1, 0, 1)], start_s=9.0, end_s=10.0)]
    out = shown(by_hand(steps, [request(0), request(1, arrival_s=9.0, token_times_s=[10.0])]), capsys)
    assert line_of(out, "0") == "A" * 7 + " " * 57 + "B" * 7
    assert line_of(out, "1") == "." * 7 + " " * 57 + "." * 7, "nothing ran, so no slot was idle in a step"


def test_memory_is_stacked_to_the_size_of_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 80 tokens one row is ten: 30 states, 20 for later, 10 never used, 10 in holes, 10 free."""
    step = full_step(0, [(0, 0, 0, 30)], kv=[(0, 60, 30)], free_tokens=20, external_tokens=10)
    out = shown(by_hand([step], [request(0, prompt_tokens=40, output_ids=[1] * 11)], bytes_per_token=2**20), capsys)
    assert "KV memory over time: 80 tokens (80.0 MiB), peak 60\n" in out
    rows = [line[8:] for line in out.partition("KV memory")[2].splitlines()[1:9]]
    assert rows == ["", *(sign * 71 for sign in "░▒▓▓███")]
    assert "░ external 14.3 %" in out and "free: 12.5 % of the cache" in out


def test_a_cache_far_larger_than_its_use_is_drawn_up_to_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    step = full_step(0, [(0, 0, 0, 30)], kv=[(0, 40, 40)], free_tokens=9_960)
    out = shown(by_hand([step], [request(0, prompt_tokens=40)]), capsys)
    assert "10,000 tokens, peak 40 (the axis ends there)\n" in out and line_of(out, "40") == "█" * 71


def test_latencies_are_those_of_the_table() -> None:
    for name in ("tutorial", "long-prompt", "preemption"):
        for recorded in choose(read_run(RECORDS / name)):
            for title, values in latencies_s(recorded).items():
                key = f"{title.lower()}_s"
                assert np.percentile(values, 50) == pytest.approx(recorded.metrics[f"{key}_p50"])
                assert max(values) == recorded.metrics[f"{key}_max"] and np.mean(values) == pytest.approx(recorded.metrics[f"{key}_mean"])


def test_all_arms_stand_on_the_scale_of_the_slowest_and_in_a_table_before(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = choose(read_run(RECORDS / "tutorial"), TUTORIAL)
    print_all(chosen)
    out = capsys.readouterr().out
    for line, recorded in zip(out.splitlines()[1:], chosen, strict=False):
        rate, idle, took = (recorded.metrics[key] for key in ("output_tok_per_s", "slot_idle_frac", "duration_s"))
        assert line.split()[:4] == [recorded.arm, number(rate), *percent(idle).split()] and line.endswith(seconds(took))
    assert out.splitlines()[1].count("█") == 12 and 5 <= out.splitlines()[2].count("█") <= 7
    static, continuous = (len(line_of(part, "tok/s")) for part in out.split("\n\ncontinuous+varlen+paged\n"))
    assert static == 71 and continuous == pytest.approx(71 * chosen[1].metrics["duration_s"] / chosen[0].metrics["duration_s"], abs=1)


def test_an_arm_that_would_vanish_on_that_scale_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    recorded = by_hand([full_step(0, [(0, 0, 0, 1)])], [request(0)])
    for until_s, columns in ((3.9, 18), (4.1, 71)):
        print_recorded(recorded, until_s)
        assert len(line_of(capsys.readouterr().out, "0")) == columns


def test_a_peer_shows_its_requests_and_what_it_does_not_tell_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    requests = [
        request(0, first_scheduled_s=1.0, token_times_s=[2.0, 7.1], output_ids=[1, 2], num_preemptions=None, ended_s=7.1),
        request(1, first_scheduled_s=None, token_times_s=None, num_preemptions=None, ended_s=3.55),
        request(2, first_scheduled_s=None, token_times_s=None, num_preemptions=None, ended_s=None, state="failed", output_ids=[]),
    ]  # fmt: skip
    out = shown(by_hand([], requests, peer="other"), capsys)
    assert line_of(out, "a") == "-" * 10 + "A" * 10 + "a" * 51 and line_of(out, "b") == "*" * 36
    assert "KV memory" not in out and "slots" not in out and "c r2 1+0 failed" in out


def test_a_run_in_which_nothing_ran_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    refused = request(0, state="refused", token_times_s=[], output_ids=[], first_scheduled_s=None, reason="needs 9 positions, has 4")
    assert "nothing ran: every request was refused" in shown(by_hand([], [refused]), capsys)
    assert "nothing ran: no requests" in shown(by_hand([], []), capsys)


def test_names_cannot_steer_the_terminal_or_its_colours(capsys: pytest.CaptureFixture[str]) -> None:
    ids = ["\x1b[31mred\x07", "[bold]x[/bold] [/]", "a\nb\tc", "half \ud800", "\u202eleft", "漢字" * 30]
    requests = [request(index, id=name) for index, name in enumerate(ids)]
    out = shown(by_hand([full_step(0, [(0, 0, 0, 1)])], requests, arm="[red]a\x1b[2J[/]"), capsys)
    assert out.splitlines()[0] == "[red]a\\x1b[2J[/]"
    for written in ("a \\x1b[31mred\\x07 1+1", "b [bold]x[/bold] [/] 1+1", "c a\\nb\\tc 1+1", "d half \\ud800 1+1", "e \\u202eleft 1+1"):
        assert written in out
    assert printable("\n") == "\\n" and printable("ä 漢") == "ä 漢"


def test_a_terminal_gets_colours_and_its_whole_width_but_never_less_than_60(monkeypatch: pytest.MonkeyPatch) -> None:
    (recorded,) = choose(read_run(RECORDS / "preemption"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for asked, got in ((120, 120), (40, 60)):
        monkeypatch.setenv("COLUMNS", str(asked))
        monkeypatch.setattr(sys, "stdout", Terminal())
        print_recorded(recorded)
        out = sys.stdout.getvalue()  # type: ignore[attr-defined]
        plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
        assert plain != out and "\x1b" not in plain
        lines = plain.splitlines()
        assert max(map(cell_len, lines)) <= got
        assert {len(line) for line in lines if line.strip().startswith("+--")} == {got - 1}, "the time axis"


def test_a_crowd_of_preemptions_fits_80_columns_under_every_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    for scheduler in ("static", "continuous", "chunked"):
        for seed in range(4):
            case = crowd(seed, scheduler, "paged")
            record = run_virtual(case.requests, case.scheduler, case.attn, case.kv, **case.arm).record()
            recorded = by_hand(record.step_lines(), record.request_lines())
            out = shown(recorded, capsys)
            assert ("preempt " in out) == (recorded.metrics["preemptions"] > 0)


def test_averages_over_slices_keep_the_area_and_know_where_nothing_is_known() -> None:
    columns = Columns(4, 8.0)
    means = columns.means(np.array([0.0, 3.0]), np.array([3.0, 5.0]), np.array([10.0, 20.0]))
    assert means[:3].tolist() == [10.0, 15.0, 20.0] and np.isnan(means[3])


@pytest.mark.parametrize(
    ("num", "end_s", "marks", "said"),
    [
        (40, 1.1, "+-----------------+-----------------+---", "0                 0.5 s             1 s"),
        (30, 300.0, "+---------+---------+---------", "0         100 s     200 s"),
        (25, 0.004, "+-----------+------------", "0           0.002 s"),
    ],
)
def test_the_axis_has_round_numbers_at_their_place(num: int, end_s: float, marks: str, said: str) -> None:
    assert Columns(num, end_s).axis() == (marks, said)


def test_a_legend_is_broken_between_its_items_only() -> None:
    assert filled(["a b", "c d", "e f"], 10) == ["a b   c d", "e f"]
    assert filled(["much too long", "x"], 5) == ["much too long", "x"]
