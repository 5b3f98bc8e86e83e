"""Who is compared with whom: within a run and against a baseline, nothing unlike is judged and nothing missing passes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cbbench.compare.arms import Rules, compare_with_baseline, compare_within, without_baseline
from cbbench.compare.baselines import Baseline, of_run
from cbbench.compare.verdicts import Verdict
from cbbench.compare.work import arm_work, changed_defaults, work_difference
from cbbench.results.compared_metrics import EXACT, METRICS_VERSION, TIMED
from cbbench.results.store import Cell, Run
from tests.support.commands import refusal

EXACT_KEYS, TIMED_KEYS = [m.key for m in EXACT], [m.key for m in TIMED]
NUMBERS: dict[str, Any] = dict.fromkeys(TIMED_KEYS, 1.0) | dict.fromkeys(EXACT_KEYS, 100) | {"output_digest": "ab"}
MODEL = {"name": "m", "dtype": "float32", "digest": "d1"}
MACHINE = {"cpu": "A", "cores": 8, "gpu": None}


def arm(label: str, **more: Any) -> dict[str, Any]:
    """As run.json describes it; `scheduler+attn+kv`, and what is the copy of what."""
    named = dict(zip(("scheduler", "attn", "kv"), ({"name": name} for name in label.split("@")[0].split("+")), strict=False))
    return {"label": label, **named, "max_num_seqs": 7, "memory_budget": None, "budget_tokens": 640, **more}


def cells(label: str, num_rounds: int = 6, failed: str | None = None, interrupted: bool = False, **changed: Any) -> list[Cell]:
    """The rounds of an arm, all alike: NUMBERS with changes."""
    metrics = {} if failed else {**NUMBERS, **changed}
    return [Cell(label, number, dict(metrics), failed, interrupted) for number in range(1, num_rounds + 1)]


def saved(arms: list[dict[str, Any]], *found: list[Cell], name: str = "now", **info: Any) -> Run:
    """A run as it is read back."""
    about = {"workload": {"name": "w", "digest": "w1", "arrivals": "offline"}, "model": MODEL, "machine": MACHINE}
    about |= {"versions": {}, "created": "2026-01-01T00:00:00Z", "isolated": True}
    return Run(Path(name), {**about, **info, "arms": arms}, list(chain(*found)), [])


def outcomes(verdicts: list[Verdict], arm: str | None = None) -> dict[str, str]:
    return {v.metric.key: str(v.outcome) for v in verdicts if arm in (None, v.subject.arm)}


def told(verdicts: list[Verdict]) -> list[tuple[str, str, str, str | None]]:
    """(arm, base, outcome, why) of each."""
    return [(v.subject.arm, v.subject.base, str(v.outcome), v.why) for v in verdicts]


A, B, C = "static+padded+cat", "continuous+padded+cat", "continuous+varlen+paged"
TWIN = f"{A}@1a2b3c4"
THREE = [cells(A), cells(B, ttft_s_p50=2.0), cells(C, ttft_s_p50=0.5)]


def three(**marked: str) -> Run:
    return saved([arm(label, **({"baseline": True} if marked.get("base") == label else {})) for label in (A, B, C)], *THREE)


@pytest.mark.parametrize(
    ("run", "named", "pairs"),
    [
        (three(), None, [(B, A), (C, A)]),
        (three(base=B), None, [(A, B), (C, B)]),
        (three(base=B), C, [(A, C), (B, C)]),
    ],
    ids=["the first", "the marked one", "the one that is named"],
)
def test_the_base_of_a_run(run: Run, named: str | None, pairs: list[tuple[str, str]]) -> None:
    verdicts = compare_within(run, named, Rules())
    assert list(dict.fromkeys((v.subject.arm, v.subject.base) for v in verdicts)) == pairs
    assert not any(v.subject.same_strategy or v.metric.exact for v in verdicts), "between strategies counts are no fault"
    assert [v.metric.key for v in verdicts] == TIMED_KEYS * 2
    assert refusal(lambda: compare_within(run, "nobody", Rules())) == f"--baseline nobody: now has no such arm; it has {A}, {B}, {C}"


def test_which_way_is_worse_and_margins_of_their_own() -> None:
    verdicts = compare_within(three(), None, Rules())
    assert (outcomes(verdicts, B)["ttft_s_p50"], outcomes(verdicts, C)["ttft_s_p50"]) == ("regressed", "improved")
    assert outcomes(verdicts, B)["output_tok_per_s"] == "same"
    wide = compare_within(three(), None, Rules({"ttft_s_p50": 1.5, "": 0.3}))
    assert outcomes(wide, B)["ttft_s_p50"] == "same" and {v.margin for v in wide if v.metric.key != "ttft_s_p50"} == {0.3}


def twins(*found: list[Cell], **info: Any) -> Run:
    return saved([arm(A, baseline=True), arm(TWIN, base_of=A, baseline=True), arm(B)], *found, **info)


def test_another_revision_is_the_base_of_its_arm_and_no_row_of_its_own() -> None:
    verdicts = compare_within(twins(cells(A, steps=90), cells(TWIN), cells(B)), None, Rules())
    pairs = [(v.subject.arm, v.subject.base, v.subject.same_strategy) for v in verdicts]
    assert list(dict.fromkeys(pairs)) == [(A, TWIN, True), (B, A, False)]
    assert list(outcomes(verdicts, A)) == EXACT_KEYS + TIMED_KEYS and list(outcomes(verdicts, B)) == TIMED_KEYS
    assert outcomes(verdicts, A) == dict.fromkeys(EXACT_KEYS + TIMED_KEYS, "same") | {"steps": "improved"}
    first = saved([arm(TWIN, base_of=A), arm(A), arm(B)], cells(TWIN), cells(A), cells(B))
    assert {(v.subject.arm, v.subject.base) for v in compare_within(first, None, Rules())} == {(A, TWIN), (B, A)}, "nor a base of others"


VIRTUAL = {"name": "none", "dtype": "float32", "digest": None}
OPEN = {"workload": {"name": "w", "digest": "w1", "arrivals": {"poisson": {"rate_per_s": 4}}}}


@pytest.mark.parametrize(
    ("info", "judged"),
    [
        ({}, EXACT_KEYS + TIMED_KEYS),
        ({"model": MODEL | {"dtype": "bfloat16"}}, EXACT_KEYS[2:] + TIMED_KEYS),
        (OPEN, TIMED_KEYS),
        (OPEN | {"model": VIRTUAL}, EXACT_KEYS),
        ({"model": VIRTUAL}, EXACT_KEYS),
    ],
    ids=["offline", "offline, half precision", "open loop", "open loop, virtual clock", "offline, virtual clock"],
)
def test_counts_are_judged_where_strategies_alone_decide_them(info: dict[str, Any], judged: list[str]) -> None:
    assert EXACT_KEYS[:2] == ["output_digest", "output_tokens"]
    run = twins(cells(A), cells(TWIN), cells(B), **info)
    assert list(outcomes(compare_within(run, None, Rules()), A)) == judged
    assert list(outcomes(compare_with_baseline(run, of_run(run), Rules()), B)) == judged


def test_other_amounts_of_tokens_are_other_work() -> None:
    run = twins(cells(A, output_tokens=99, output_digest="cd"), cells(TWIN), cells(B, output_tokens=120, ttft_s_p50=9.0))
    verdicts = compare_within(run, None, Rules())
    mine = outcomes(verdicts, A)
    assert (mine["output_tokens"], mine["output_digest"], mine["steps"]) == ("regressed", "regressed", "same")
    timed = [v for v in verdicts if not v.metric.exact]
    assert {v.outcome for v in timed} == {"not comparable"} and all(v.shift is None and v.values for v in timed)
    assert {(v.subject.arm, v.why) for v in timed} == {
        (A, "[99] output tokens against [100]"),
        (B, "[120] output tokens against [99]"),
    }


def test_an_arm_that_failed_or_is_not_there_is_one_verdict() -> None:
    broken = [*cells(B, 5), Cell(B, 6, failed="RuntimeError: out of memory")]
    run = saved([arm(label) for label in (A, B, C)], cells(A), broken, cells(C, interrupted=True))
    assert told(compare_within(run, None, Rules())) == [
        (B, A, "failed", f"{B}: RuntimeError: out of memory"),
        (C, A, "missing", f"{C}: no whole round"),
    ]
    assert told(compare_within(run, B, Rules())) == [(name, B, "failed", f"{B}: RuntimeError: out of memory") for name in (A, C)]
    assert told(compare_with_baseline(run, of_run(three()), Rules()))[-2:] == [
        (B, "now", "failed", f"{B}: RuntimeError: out of memory"),
        (C, "now", "missing", f"{C}: no whole round"),
    ]


def test_an_interrupted_round_counts_for_nothing() -> None:
    cut = Cell(B, 7, {**NUMBERS, "ttft_s_p50": 99.0, "output_tokens": 3}, interrupted=True)
    run = saved([arm(A), arm(B)], cells(A, 7), cells(B), [cut])
    (verdict,) = [v for v in compare_within(run, None, Rules()) if v.metric.key == "ttft_s_p50"]
    assert (verdict.outcome, list(verdict.values)) == ("same", [1, 2, 3, 4, 5, 6])


def test_one_arm_alone_and_two_strategies_on_a_virtual_clock_have_nothing_to_compare() -> None:
    assert compare_within(saved([arm(A)], cells(A)), None, Rules()) == []
    assert compare_within(saved([arm(A), arm(B)], cells(A), cells(B), model=VIRTUAL), None, Rules()) == []


def history(num_runs: int = 5, arms: tuple[str, ...] = (A,), change: Callable[[int], dict[str, Any]] = lambda i: {}) -> Baseline:
    """A baseline of runs that differ by a percent or two."""
    newest = of_run(saved([arm(label) for label in arms], *map(cells, arms), name="main"))
    spread = (1.0, 1.02, 0.98, 1.01, 0.99)
    run = newest.runs[0]
    runs = []
    for i in range(num_runs):
        scaled = {label: {k: {r: v * spread[i % 5] if k in TIMED_KEYS else v for r, v in at.items()} for k, at in series.items()}
                  for label, series in run["arms"].items()}  # fmt: skip
        runs.append({**run, "run": str(i), "arms": scaled, **change(i)})
    return Baseline("main", Path("main.json"), newest.saved, "why", newest.arms, runs)


def now(**changed: Any) -> Run:
    return saved([arm(A)], cells(A, **changed))


def test_a_run_against_five_runs_of_a_baseline() -> None:
    verdicts = compare_with_baseline(now(ttft_s_p50=1.3, steps=101), history(), Rules())
    same = dict.fromkeys(EXACT_KEYS + TIMED_KEYS, "same")
    assert outcomes(verdicts) == same | {"steps": "regressed", "ttft_s_p50": "regressed"}
    assert {(v.subject.run, v.subject.base, v.subject.same_strategy) for v in verdicts} == {("now", "main", True)}
    few = compare_with_baseline(now(ttft_s_p50=1.3, steps=101), history(4), Rules())
    assert outcomes(few) == same | dict.fromkeys(TIMED_KEYS, "unresolved") | {"steps": "regressed"}
    assert outcomes(compare_with_baseline(now(), of_run(now(), exact_only=True), Rules())) == dict.fromkeys(EXACT_KEYS, "same")


def test_arms_that_one_side_lacks_are_missing() -> None:
    verdicts = compare_with_baseline(saved([arm(A), arm(C)], cells(A), cells(C)), history(arms=(A, B)), Rules())
    assert told(verdicts)[-2:] == [(B, "main", "missing", f"{B}: no whole round"), (C, "main", "missing", "not in the baseline")]
    assert told(without_baseline(now(), "main")) == [(A, "main", "missing", "main has no w on m (d1) in float32")]
    assert told(without_baseline(saved([arm(A)], [], model=VIRTUAL), "main"))[0][3] == "main has no w on a virtual clock"


def test_other_work_names_the_fields_that_differ() -> None:
    run = saved([arm(A, max_num_seqs=8)], cells(A), model=MODEL | {"dtype": "bfloat16"}, workload={"name": "w", "digest": "w2"})
    ((_, _, outcome, why),) = told(compare_with_baseline(run, history(), Rules()))
    assert (outcome, why) == ("not comparable", "other work: workload 'w1' -> 'w2', dtype 'float32' -> 'bfloat16', max_num_seqs 7 -> 8")


def test_times_of_another_machine_are_no_measure_and_counts_are() -> None:
    run = saved([arm(A)], cells(A, steps=90, ttft_s_p50=1.3), machine=MACHINE | {"cpu": "B", "cores": 4})
    label = "other machine: cpu 'A' -> 'B', cores 8 -> 4"
    verdicts = compare_with_baseline(run, history(), Rules())
    assert outcomes(verdicts) == dict.fromkeys(EXACT_KEYS, "same") | {"steps": "improved"} | dict.fromkeys(TIMED_KEYS, "not comparable")
    assert {v.why for v in verdicts if not v.metric.exact} == {label}
    allowed = compare_with_baseline(run, history(), Rules(allow_machine=True))
    assert outcomes(allowed) == dict.fromkeys(EXACT_KEYS + TIMED_KEYS, "same") | {"steps": "improved", "ttft_s_p50": "regressed"}
    assert {v.why for v in allowed if not v.metric.exact} == {label} and {v.why for v in allowed if v.metric.exact} == {None, "-10"}
    assert all(v.why is None for v in compare_with_baseline(now(), history(), Rules(allow_machine=True)))


def test_allowed_rows_of_another_machine_say_so_whatever_else_they_say() -> None:
    run = saved([arm(A)], cells(A), machine=MACHINE | {"cpu": "B"})
    verdicts = compare_with_baseline(run, history(4), Rules(allow_machine=True))
    assert [v.metric.key for v in verdicts if not v.metric.exact and "other machine: cpu 'A' -> 'B'" not in (v.why or "")] == []


def test_five_runs_of_this_machine_are_enough_whoever_saved_last() -> None:
    kept = history(6, change=lambda i: {"machine": MACHINE | ({"cpu": "B"} if i == 5 else {})})
    assert outcomes(compare_with_baseline(now(ttft_s_p50=1.3), kept, Rules()))["ttft_s_p50"] == "regressed"


def test_other_amounts_of_tokens_are_other_work_against_a_baseline_too() -> None:
    found = outcomes(compare_with_baseline(now(output_tokens=20, e2e_s_p50=0.5), history(), Rules()))
    assert (found["output_tokens"], found["e2e_s_p50"]) == ("regressed", "not comparable")


def test_the_version_of_the_metrics_is_part_of_the_work() -> None:
    assert METRICS_VERSION in arm_work(now().info, arm(A)).values()


def test_an_option_that_came_later_is_no_other_work_and_one_that_changed_is_a_changed_default() -> None:
    before = {"attn": {"name": "varlen", "backend": "auto"}, "max_num_seqs": 8}
    assert work_difference(before, {**before, "attn": {"name": "varlen", "backend": "auto", "graphs": False}}) == ""
    assert work_difference({**before, "attn": {"name": "varlen", "graphs": False}}, before) == ""
    changed = {**before, "attn": {"name": "varlen", "backend": "cpu", "graphs": False}}
    assert (work_difference(before, changed), changed_defaults(before, changed)) == ("", "default changed: attn.backend 'auto' -> 'cpu'")
    assert changed_defaults(before, {**before, "attn": {"name": "varlen", "backend": "auto", "graphs": False}}) == ""
    assert work_difference(before, {**before, "attn": {"name": "padded"}}) == "attn 'varlen' -> 'padded'"
    assert work_difference(before, {**before, "max_num_seqs": 9}) == "max_num_seqs 8 -> 9"


def test_rounds_of_one_process_are_in_doubt_unless_allowed() -> None:
    """I14: what luck a process has would be taken for a difference; a stored baseline has the spread of runs for that."""
    shared = saved([arm(A), arm(B)], cells(A), cells(B), isolated=False)
    for run, rules, expected in ((shared, Rules(), True), (shared, Rules(allow_process=True), False), (three(), Rules(), False)):
        assert {bool(v.doubt) for v in compare_within(run, None, rules) if not v.metric.exact} == {expected}
    assert not any(v.doubt for v in compare_with_baseline(shared, history(arms=(A, B)), Rules()))


def test_rounds_on_a_busy_machine_are_counted_where_a_verdict_lacks_rounds() -> None:
    busy = [Cell(B, c.round, {**c.metrics, "others_cpu_frac": 0.5 if c.round > 4 else 0.0}) for c in cells(B)]
    verdicts = compare_within(saved([arm(A), arm(B)], cells(A), busy), None, Rules())
    assert {v.why for v in verdicts} == {"4 of the 6 rounds needed, 18 are recommended; 2 more on a busy machine"}


HALF = MODEL | {"dtype": "bfloat16"}


def test_in_half_precision_a_token_more_or_less_is_no_regression() -> None:
    """I11: rounding ends requests earlier or later there."""
    run = twins(cells(A, output_tokens=99.5, steps=105), cells(TWIN), cells(B), model=HALF)
    found = compare_within(run, None, Rules())
    assert outcomes(found, A) == dict.fromkeys(TIMED_KEYS, "same"), "counts follow the lengths, so they are no measure either"
    assert {v.why for v in found if v.subject.arm == A} == {"[99.5] output tokens against [100]"}
    far = compare_within(twins(cells(A, output_tokens=90), cells(TWIN), cells(B), model=HALF), None, Rules())
    assert outcomes(far, A) == dict.fromkeys(TIMED_KEYS, "not comparable")


def test_wrong_tokens_of_any_arm_are_a_verdict() -> None:
    """I10: those of the base were none."""
    run = saved([arm(A), arm(B), arm(TWIN, base_of=B)], cells(A, exact_wrong=1), cells(B), cells(TWIN, exact_wrong=3))
    found = [(v.subject.arm, v.why) for v in compare_within(run, None, Rules()) if v.metric.key == "exact_wrong"]
    assert found == [(A, "1 requests with wrong tokens"), (TWIN, "3 requests with wrong tokens")]
    alone = compare_within(saved([arm(A)], cells(A, exact_wrong=1)), None, Rules())
    assert [v.metric.key for v in alone] == ["exact_wrong"]
