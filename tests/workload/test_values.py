"""What a workload's values mean: arrival processes, the digest, memory budgets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbbench.errors import UserError
from cbbench.request import Request
from cbbench.runs.budgets import tokens_of
from cbbench.runs.config import Overrides, build_arms
from cbbench.workload.arrivals import Arrivals, arriving
from cbbench.workload.budget import budget_tokens
from cbbench.workload.file import digest, longest_tokens, read_workload, resolve

NUM = 20_000


def arrivals(tmp_path: Path, text: str, num: int, recorded: list[float] | None = None) -> list[float]:
    """Arrival times as a workload file with that `arrivals` gives them."""
    times = recorded or [0.0] * num
    rows = [{"id": str(i), "prompt_ids": [1], "max_new_tokens": 1, "arrival_s": time} for i, time in enumerate(times)]
    (tmp_path / "w.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "w.yaml").write_text(f"requests: w.jsonl\n{text}\n")
    return [r.arrival_s for r in resolve(read_workload(tmp_path / "w.yaml"), None)]


def test_offline_is_all_at_once_and_recorded_is_what_stands_there(tmp_path: Path) -> None:
    recorded = [3.0, 0.0, 1.25]
    assert arrivals(tmp_path, "arrivals: offline", 3, recorded) == [0, 0, 0]
    assert arrivals(tmp_path, "", 3, recorded) == [0, 0, 0], "offline is the default"
    assert arrivals(tmp_path, "arrivals: recorded", 3, recorded) == recorded


@pytest.mark.parametrize(
    ("text", "cv"),
    [
        ("poisson: {rate_per_s: 4, seed: 5}", 1.0),
        ("gamma: {rate_per_s: 4, cv: 3, seed: 5}", 3.0),
        ("gamma: {rate_per_s: 4, cv: 0.25, seed: 5}", 0.25),
    ],
)
def test_a_process_has_its_rate_and_its_coefficient_of_variation(tmp_path: Path, text: str, cv: float) -> None:
    times = arrivals(tmp_path, f"arrivals: {{{text}}}", NUM)
    gaps = np.diff(times)
    assert times[0] == 0 and (gaps >= 0).all()
    assert abs(gaps.mean() * 4 - 1) < 4 * cv / NUM**0.5, "four standard errors"
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06)


def test_poisson_gaps_are_exponential(tmp_path: Path) -> None:
    gaps = np.sort(np.diff(arrivals(tmp_path, "arrivals: {poisson: {rate_per_s: 10, seed: 1}}", NUM)))
    distance = np.abs(1 - np.exp(-10 * gaps) - np.arange(1, NUM) / NUM).max()
    assert distance < 1.95 / NUM**0.5, "Kolmogorov-Smirnov at 0.1 %"


def test_the_same_seed_gives_the_same_times_and_another_does_not(tmp_path: Path) -> None:
    text = "arrivals: {gamma: {rate_per_s: 2, cv: 2, seed: %d}}"
    assert arrivals(tmp_path, text % 1, 50) == arrivals(tmp_path, text % 1, 50) != arrivals(tmp_path, text % 2, 50)
    assert arrivals(tmp_path, "arrivals: {poisson: {rate_per_s: 2}}", 9) == arrivals(
        tmp_path, "arrivals: {poisson: {rate_per_s: 2, seed: 0}}", 9
    )


def test_a_rate_is_a_change_of_scale(tmp_path: Path) -> None:
    slow, fast = (arrivals(tmp_path, f"arrivals: {{poisson: {{rate_per_s: {rate}, seed: 3}}}}", 20) for rate in (1, 8))
    assert [time / 8 for time in slow] == pytest.approx(fast)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{poisson: {rate_per_s: 0}}", ["rate_per_s", "greater than 0"]),
        ("{poisson: {rate_per_s: .nan}}", ["rate_per_s"]),
        ("{poisson: {rate: 4}}", ["poisson", "rate"]),
        ("{gamma: {rate_per_s: 4}}", ["gamma", "cv"]),
        ("{gamma: {rate_per_s: 4, cv: -1}}", ["gamma", "cv"]),
        ("{weibull: {rate_per_s: 4}}", ["weibull"]),
        ("sometimes", ["'offline'", "'recorded'", "poisson", "gamma", "'sometimes'"]),
    ],
)
def test_a_wrong_process_is_refused_by_the_name_of_what_is_wrong(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        arrivals(tmp_path, f"arrivals: {text}", 2)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'w.yaml'}:2:") and "\n" not in message and "literal[" not in message, message
    assert [word for word in said if word not in message] == [], message


def test_no_requests_have_no_times() -> None:
    assert arriving([], Arrivals()) == arriving([], Arrivals(recorded=True)) == []


ASKED = Request("a", (1, 2, 3), 4)


@pytest.mark.parametrize(
    "same", [{"id": "b"}, {"prompt": "text"}, {"meta": {"from": "x"}}, {"output_ids": (1, 2)}], ids=lambda change: next(iter(change))
)
def test_the_digest_ignores_what_is_not_computed(same: dict[str, Any]) -> None:
    assert digest([replace(ASKED, **same)]) == digest([ASKED])


@pytest.mark.parametrize(
    "other",
    [{"prompt_ids": (1, 2, 4)}, {"max_new_tokens": 5}, {"ignore_eos": True}, {"arrival_s": 0.5}],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_changes_with_what_is_computed(other: dict[str, Any]) -> None:
    assert digest([replace(ASKED, **other)]) != digest([ASKED])


def test_the_digest_tells_order_and_number_of_requests() -> None:
    other = replace(ASKED, max_new_tokens=9)
    assert len({digest(rows) for rows in ([ASKED], [ASKED, ASKED], [ASKED, other], [other, ASKED])}) == 4


def test_the_digest_is_of_the_file_as_read_and_not_of_its_comments_or_engine(tmp_path: Path) -> None:
    def of(text: str, **changes: Any) -> str:
        row = {"id": "a", "prompt_ids": [1, 2], "max_new_tokens": 3} | changes
        (tmp_path / "w.jsonl").write_text(json.dumps(row))
        (tmp_path / "w.yaml").write_text(f"requests: w.jsonl\n{text}")
        return digest(resolve(read_workload(tmp_path / "w.yaml"), None))

    plain = of("")
    assert plain == of("# a comment\ndescription: other\nengine: {kv: cat}\nmeasure: {rounds: 9}\n") == of("", id="b", meta={"x": 1})
    assert of("", arrival_s=2.0) == plain, "offline: the arrival that stands there is not used"
    assert of("arrivals: recorded\n", arrival_s=2.0) != plain != of("", max_new_tokens=2)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("512MiB", 512 * 2**20 // 46080),
        ("2GB", 2 * 10**9 // 46080),
        ("1.5 GiB", 3 * 2**29 // 46080),
        ("46080 B", 1),
        ("46079b", 0),
        ("92 kb", 1),
        ("4096 tokens", 4096),
        ("1 token", 1),
        (" 7TOKENS ", 7),
    ],
)
def test_a_budget_is_memory_or_tokens(text: str, tokens: int) -> None:
    assert budget_tokens(text, 46080) == tokens


@pytest.mark.parametrize(
    "text", ["", "lots", "512", "MiB", "-1 tokens", "0 tokens", "0MiB", "1 TiBs", "1e9 B", "nan MiB", "4096tok", "1 2 GB"]
)
def test_nonsense_is_no_budget_and_the_message_shows_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"512MiB, 2GB or '4096 tokens'") as caught:
        budget_tokens(text, 46080)
    assert repr(text) in str(caught.value)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_budget_in_bytes_holds_what_fits_and_no_more(num_bytes: int, per_token: int) -> None:
    held = budget_tokens(f"{num_bytes} B", per_token)
    assert held * per_token <= num_bytes < (held + 1) * per_token


def test_every_cache_gets_the_same_budget_and_without_one_a_full_batch_of_the_longest_request(tmp_path: Path) -> None:
    arrivals(tmp_path, "engine: {max_num_seqs: 3, memory_budget: 1MiB}", 1)
    workload = read_workload(tmp_path / "w.yaml")
    budgeted = build_arms(workload, Overrides({"kv": "all"}))
    assert len(budgeted) >= 3
    assert {tokens_of(arm, 1024, 70, budgeted) for arm in budgeted} == {1024}
    free = [replace(arm, memory_budget=None) for arm in budgeted]
    assert {tokens_of(arm, 1024, 70, free) for arm in free} == {3 * 128}


def test_a_budget_in_bytes_needs_a_model(tmp_path: Path) -> None:
    arrivals(tmp_path, "engine: {memory_budget: 1MiB}", 1)
    (arm,) = build_arms(read_workload(tmp_path / "w.yaml"), Overrides())
    with pytest.raises(UserError, match="without a model a budget is counted in tokens"):
        tokens_of(arm, 0, 70, [arm])
    assert tokens_of(replace(arm, memory_budget="50 tokens"), 0, 70, [arm]) == 50


def test_the_longest_request_is_of_those_that_can_run() -> None:
    rows = [Request("a", (1,) * 10, 5), Request("b", (1,) * 100, 50), Request("empty", (), 500)]
    assert (longest_tokens(rows, None), longest_tokens(rows, 64), longest_tokens([], None)) == (149, 14, 1)


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_recorded_times_are_kept_in_the_order_of_the_file(times: list[float]) -> None:
    asked = [replace(ASKED, arrival_s=time) for time in times]
    assert arriving(asked, Arrivals(recorded=True)) == asked
    assert all(request.arrival_s == 0 for request in arriving(asked, Arrivals()))
