"""What each axis buys, taken apart from a matrix of arms; and which arm keeps an objective, with requests counted by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from cbbench.compare import effects, slo
from cbbench.compare.effects import Effect
from cbbench.compare.slo import Scored, parse_slos, score
from cbbench.results.metrics import summarize
from cbbench.results.store import Cell, Run
from tests.compare.test_arms import TWIN, A, arm, cells, saved
from tests.support.commands import refusal, write_lines

SCHEDULERS = {"static": 1.0, "continuous": 2.5}
ATTENTIONS = {"padded": 1.0, "varlen": 1.2, "compiled": 0.9}
CACHES = {"cat": 1.0, "paged": 0.8}
FACTORS = {**SCHEDULERS, **ATTENTIONS, **CACHES}
MATRIX = ["+".join(names) for names in itertools.product(SCHEDULERS, ATTENTIONS, CACHES)]


def speed(label: str, number: int) -> float:
    """Of an arm in a round: each strategy's factor, on a machine that is now faster, now slower."""
    return 100 * (1 + 0.3 * math.sin(number)) * math.prod(FACTORS[name] for name in label.split("+"))


def matrix(labels: list[str], num_rounds: int = 6, **limits: dict[str, Any]) -> Run:
    """Throughput as the factors make it, the time to the first token its inverse."""
    found = []
    for label, number in itertools.product(labels, range(1, num_rounds + 1)):
        value = speed(label, number)
        found.append(Cell(label, number, {"output_tok_per_s": value, "ttft_s_p50": 1 / value, "kv_utilization": None}))
    return saved([arm(label, **limits.get(label.replace("+", "_"), {})) for label in labels], found)


def steps(found: list[Effect], metric: str = "output_tok_per_s") -> dict[tuple[str, str], tuple[float, int]]:
    """(from, to) -> the ratio, and over how many pairs of arms."""
    return {(e.start, e.to): (round(math.exp(e.shift.estimate), 9), e.num_contexts) for e in found if e.metric == metric}


def test_a_full_matrix_gives_back_the_factors_that_made_it() -> None:
    found = effects.effects(matrix(MATRIX))
    expected = {
        ("static", "continuous"): (2.5, 6),
        ("padded", "varlen"): (1.2, 4),
        ("padded", "compiled"): (0.9, 4),
        ("cat", "paged"): (0.8, 6),
    }
    assert steps(found) == expected
    assert steps(found, "ttft_s_p50") == {names: (round(1 / ratio, 9), num) for names, (ratio, num) in expected.items()}
    assert steps(found, "kv_utilization") == {}, "what has no value has no effect"
    assert [e.axis for e in found] == ["scheduler"] * 2 + ["attn"] * 4 + ["kv"] * 2
    for effect in found:
        low, high = effect.shift.low, effect.shift.high
        assert low is not None and high is not None and low == pytest.approx(high), "the machine's moods cancel within a round"


def test_arms_that_are_not_there_leave_the_other_contexts() -> None:
    few = [label for label in MATRIX if label not in ("continuous+padded+cat", "static+varlen+paged")]
    assert steps(effects.effects(matrix(few))) == {
        ("static", "continuous"): (2.5, 4), ("padded", "varlen"): (1.2, 2), ("padded", "compiled"): (0.9, 3), ("cat", "paged"): (0.8, 4),
    }  # fmt: skip
    diagonal = effects.effects(matrix(["static+padded+cat", "continuous+varlen+paged"]))
    assert diagonal == [] and effects.as_grid(diagonal).note == "no two arms differ in one axis alone"


@pytest.mark.parametrize("num_rounds", [1, 5, 6, 10])
def test_an_interval_needs_six_rounds(num_rounds: int) -> None:
    found = effects.effects(matrix(MATRIX, num_rounds))
    assert {(e.shift.num, e.shift.low is None) for e in found} == {(num_rounds, num_rounds < 6)}
    line = effects.as_grid(found).lines[0]
    assert line == ["scheduler", "static", "continuous", "output tok/s", "6", str(num_rounds), "2.50 x (+150.0 %)", line[-1]]
    assert line[-1] == ("-" if num_rounds < 6 else "2.50 .. 2.50")


def test_options_make_another_strategy_and_copies_are_none() -> None:
    blocks = [arm("s+p+b16", kv={"name": "paged", "block_size": 16}), arm("s+p+b32", kv={"name": "paged", "block_size": 32})]
    run = saved([*blocks, arm("s+p+b16@1a2b3c4", base_of="s+p+b16", kv={"name": "paged", "block_size": 16})],
                cells("s+p+b16"), cells("s+p+b32", output_tok_per_s=3.0), cells("s+p+b16@1a2b3c4", output_tok_per_s=9.0))  # fmt: skip
    assert steps(effects.effects(run)) == {("paged block_size=16", "paged block_size=32"): (3.0, 1)}
    assert effects.effects(saved([arm(A), arm(TWIN, base_of=A)], cells(A), cells(TWIN))) == []


def test_a_round_counts_where_every_pair_has_a_whole_one() -> None:
    run = matrix(MATRIX, 7)
    run.cells[-1].interrupted = True
    nums = {(e.start, e.to): e.shift.num for e in effects.effects(run)}
    assert nums == {("static", "continuous"): 6, ("padded", "varlen"): 7, ("padded", "compiled"): 6, ("cat", "paged"): 6}


def test_an_arm_that_failed_leaves_the_other_contexts() -> None:
    run = matrix(MATRIX)
    failed = MATRIX[0]
    run.cells = [Cell(c.arm, c.round, failed="RuntimeError: x") if c.arm == failed else c for c in run.cells]
    assert steps(effects.effects(run))["static", "continuous"] == (2.5, 5)


def test_arms_with_other_limits_are_not_the_same_but_for_one_axis() -> None:
    run = matrix(["static+padded+cat", "continuous+padded+cat"], continuous_padded_cat={"max_num_seqs": 64, "budget_tokens": 4096})
    assert effects.effects(run) == []


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("ttft_p90=2s", ("ttft", "p90", 2.0)),
        ("tpot_p50=50ms", ("tpot", "p50", 0.05)),
        (" queue_wait_max=0.25s ", ("queue_wait", "max", 0.25)),
        ("itl_p99=0ms", ("itl", "p99", 0.0)),
        ("e2e_mean=10s", ("e2e", "mean", 10.0)),
    ],
)
def test_an_objective_as_it_is_written(text: str, parsed: tuple[str, str, float]) -> None:
    (found,) = parse_slos([text])
    assert (found.measure, found.point, found.bound_s) == parsed


NEAR = {
    "ttft_p90=2": "ttft_p90", "ttft_p90=-2s": "ttft_p90", "ttft_p90=2m": "ttft_p90", "ttft_p90=.5s": "ttft_p90", "ttft_p90<2s": "ttft_p90",
    "tfft_p90=2s": "ttft_p90", "queue_p99=1s": "queue_wait_p99", "xyz=1s": None, "": None,
}  # fmt: skip


@pytest.mark.parametrize("text", NEAR)
def test_an_objective_that_cannot_be_meant_is_refused(text: str) -> None:
    message = refusal(lambda: parse_slos(["e2e_p50=1s", text]))
    hint = f"; did you mean {NEAR[text]}?" if NEAR[text] else ""
    assert message == f"--slo {text}: should be like ttft_p90=2s, of ttft, tpot, e2e, itl, queue_wait and p50, p90, p99, mean, max{hint}"


def asked(id: str, arrival_s: float, *times: float, state: str = "finished") -> dict[str, Any]:
    """A line of requests.jsonl; scheduled half a second after it arrived."""
    return {
        "id": id, "index": 0, "state": state, "arrival_s": arrival_s, "submitted_s": arrival_s, "first_scheduled_s": arrival_s + 0.5,
        "token_times_s": list(times), "output_ids": [1] * len(times), "prompt_tokens": 3, "num_preemptions": 0, "recomputed_tokens": 0,
    }  # fmt: skip


# ttft 1, 4, 2; tpot 1, 1.5, none; itl 1 1, 1 2, none; e2e 3, 7, 2; one refused, one cut off, one given up. From 0 to 8 s.
MIXED = [
    asked("quick", 0, 1, 2, 3), asked("slow", 1, 5, 6, 8), asked("one", 2, 4), asked("no", 0, state="refused"),
    asked("cut", 0, 1, state="running"), asked("gone", 0, 1, 2, state="cancelled"),
]  # fmt: skip


def served(folder: Path, **arms: list[list[dict[str, Any]]]) -> Run:
    """A run of these arms, each with its rounds of requests, written as a run is."""
    found = []
    for label, rounds in arms.items():
        for number, requests in enumerate(rounds, 1):
            place = folder / label / str(number)
            place.mkdir(parents=True)
            write_lines(place / "requests.jsonl", requests)
            found.append(Cell(label, number, summarize([], requests, {})))
    run = saved([arm(label) for label in arms], found)
    run.path = folder
    return run


def of(run: Run, *texts: str) -> list[Scored]:
    return score(run, parse_slos(list(texts)))


@pytest.mark.parametrize(
    ("texts", "measured", "keeps", "good"),
    [
        (["ttft_p50=2s"], [2.0], True, 2),
        (["ttft_p90=2s"], [3.6], False, 2),
        (["ttft_p90=2s", "tpot_p50=1250ms"], [3.6, 1.25], False, 2),
        (["ttft_p50=2s", "tpot_p50=1250ms"], [2.0, 1.25], True, 2),
        (["tpot_p99=1s"], [1.495], False, 2),
        (["itl_max=1s"], [2.0], False, 2),
        (["e2e_max=7s"], [7.0], True, 3),
        (["e2e_mean=4s", "queue_wait_max=500ms"], [4.0, 0.5], True, 2),
        (["queue_wait_p50=499ms"], [0.5], False, 0),
    ],
)
def test_one_arm_by_hand(tmp_path: Path, texts: list[str], measured: list[float], keeps: bool, good: int) -> None:
    """The request of one token breaks no bound on the gaps that it has not; refused, cut and cancelled ones are never good."""
    (found,) = of(served(tmp_path, a=[MIXED]), *texts)
    assert found == Scored(tmp_path.name, "a", pytest.approx(measured), keeps, 7 / 8, good / 8, pytest.approx(good / 6))


def test_the_best_arm_is_the_fastest_of_those_that_keep_it(tmp_path: Path) -> None:
    late = [asked("x", 0, 9, 9.1, 9.2, 9.3)]
    run = served(
        tmp_path, slow=[[asked("x", 0, 1, 4)]], fast=[[asked("x", 0, 1, 2, 3, 4)]], late=[late], none=[[asked("x", 0, state="refused")]]
    )
    assert [(s.arm, s.keeps) for s in of(run, "ttft_p90=2s")] == [("fast", True), ("slow", True), ("late", False), ("none", False)]
    grid = slo.as_grid(of(run, "ttft_p90=2s"), parse_slos(["ttft_p90=2s"]))
    assert (grid.headers[2], grid.note) == ("ttft_p90=2s", "best: fast")
    assert grid.lines[0] == ["fast", "yes", "1.00 s", "1", "0.250", "100.0%"] and grid.lines[-1] == ["none", "no", "-", "-", "-", "0.0%"]
    nobody = slo.as_grid(of(run, "ttft_p90=1ms"), parse_slos(["ttft_p90=1ms"]))
    assert nobody.note == "no arm keeps it" and {line[1] for line in nobody.lines} == {"no"}


def test_rounds_count_by_their_median_and_only_whole_ones(tmp_path: Path) -> None:
    rounds = [[asked("x", 0, ttft, 8), asked("y", 0, 8)] for ttft in (1, 2, 7, 99)]
    run = served(tmp_path, a=rounds[:3], b=rounds, empty=[])
    run.cells[-1].interrupted = True
    a, b, empty = of(run, "ttft_p50=5s")
    assert a.measured == b.measured == [5.0] and a.keeps and b.keeps
    assert (a.goodput, a.good_frac) == (b.goodput, b.good_frac) == (1 / 8, 0.5)
    assert empty == Scored(tmp_path.name, "empty", [None], False, None, None, None)


def test_where_nothing_completed_there_is_no_rate_and_nothing_is_kept(tmp_path: Path) -> None:
    (found,) = of(served(tmp_path, a=[[asked("x", 0, state="refused"), asked("y", 0, 1, state="running")]]), "ttft_p90=100s")
    assert found == Scored(tmp_path.name, "a", [None], False, None, None, 0.0)


def test_a_peer_that_tells_no_times_of_tokens_has_no_goodput_for_a_bound_on_them(tmp_path: Path) -> None:
    """G8: a traceback. OpenVINO's and vLLM's rows have no first_scheduled_s, some peers no times of tokens."""
    base = {"id": "a", "index": 0, "state": "finished", "reason": "length", "prompt_tokens": 3, "arrival_s": 0.0, "submitted_s": 0.0,
            "first_scheduled_s": None, "token_times_s": [], "ended_s": 2.0, "output_ids": [1, 2], "num_preemptions": None,
            "recomputed_tokens": None}  # fmt: skip
    label = "some-peer"
    folder = tmp_path / label / "1"
    folder.mkdir(parents=True)
    write_lines(folder / "requests.jsonl", [base, base | {"id": "b", "index": 1, "state": "failed", "ended_s": None}])
    run = saved([{"label": label, "peer": "some"}], [Cell(label, 1, {"duration_s": 2.0, "output_tok_per_s": 1.0})], name=str(tmp_path))
    for text, good in (("ttft_p90=9s", None), ("itl_p99=9s", None), ("queue_wait_p50=9s", None), ("e2e_p90=9s", 0.5), ("e2e_p90=1s", 0.0)):
        (row,) = score(run, parse_slos([text]))
        assert row.good_frac == good, text
        assert slo.as_grid([row], parse_slos([text])).lines[0][-1] == ("-" if good is None else f"{good:.1%}")
