"""The sentences that runs begin with: they say what a person would, and never more than was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cbbench.compare.answer import answer
from tests.support.saved_runs import saved, timed

STATIC, CONTINUOUS, CHUNKED = "static+padded+preallocated", "continuous+varlen+paged", "chunked+varlen+paged"


def test_the_best_arm_its_ratio_to_static_with_the_spread_the_tokens_and_the_waste() -> None:
    static = timed([20, 22, 21], 4.0, slot_idle_frac=0.6, kv_utilization=0.3, decode_padding_frac=0.2)
    run = saved({CONTINUOUS: timed([60, 63, 63], 1.0, slot_idle_frac=0.1, kv_utilization=0.95, decode_padding_frac=0.0), STATIC: static})
    assert answer([run]) == [
        f"{CONTINUOUS} is the fastest of 2 arms: 63 output tok/s, 3.00 x {STATIC} (2.86 to 3.00 in 3 rounds).",
        f"Its median TTFT is 1.00 s, against 4.00 s of {STATIC}.",
        "All arms make the tokens of plain greedy generation (checked in 8 of 8 requests).",
        f"Waste of {STATIC} (in brackets: {CONTINUOUS}): slots idle 60.0 % (10.0 %), decode padding 20.0 % (0.0 %), "
        "reserved KV memory not written 70.0 % (5.0 %).",
    ]


def test_six_rounds_give_a_range_and_one_none() -> None:
    many = saved({STATIC: timed([20.0] * 6), CONTINUOUS: timed([40, 41, 42, 43, 44, 45])})
    assert "(95 % range 2.00 to 2.25, 6 rounds)" in answer([many])[0]
    one = saved({STATIC: timed([20]), CONTINUOUS: timed([40])})
    assert answer([one])[0].endswith(f"40 output tok/s, 2.00 x {STATIC} (one round: no spread).")


def test_what_the_rounds_do_not_tell_is_not_claimed() -> None:
    run = saved({STATIC: timed([20, 22, 21]), CONTINUOUS: timed([21, 21, 22])})
    assert answer([run])[0].startswith(f"No arm is clearly faster than {STATIC} (21 output tok/s): the best other, {CONTINUOUS}, has 1.0")
    near = saved({STATIC: timed([20]), CONTINUOUS: timed([20.9])})
    assert answer([near])[0].startswith("No arm is clearly faster"), "one round shows nothing below 5 %"
    alike = saved({STATIC: timed([20, 20]), CONTINUOUS: timed([40, 42]), CHUNKED: timed([41, 41])})
    assert answer([alike])[0].endswith(" is not clearly slower.")


def test_the_baseline_may_win_and_may_be_named_or_marked() -> None:
    run = saved({STATIC: timed([40]), CONTINUOUS: timed([20]), CHUNKED: timed([30])})
    assert answer([run])[0] == (
        f"{STATIC} is the fastest of 3 arms: 40 output tok/s; the baseline is not beaten, {CHUNKED} comes next with 30 output tok/s."
    )
    assert f"2.00 x {CONTINUOUS} " in answer([run], CONTINUOUS)[0]
    marked = saved({STATIC: timed([40]), CHUNKED: timed([10])}, marks={CHUNKED: {"baseline": True}})
    assert f"4.00 x {CHUNKED} " in answer([marked])[0]


def test_another_arm_that_wins_a_latency_is_named() -> None:
    run = saved({
        STATIC: timed([20], 4.0, itl_s_p99=0.5), CONTINUOUS: timed([40], 2.0, itl_s_p99=0.4), CHUNKED: timed([30], 1.0, itl_s_p99=0.1),
    })  # fmt: skip
    said = answer([run])
    assert f"{CHUNKED} has the lowest median TTFT: 1.00 s, against 2.00 s of {CONTINUOUS}." in said
    assert f"{CHUNKED} has the shortest gaps between tokens (ITL p99): 100 ms, against 400 ms of {CONTINUOUS}." in said


def test_wrong_tokens_come_first_and_their_arm_is_no_winner() -> None:
    run = saved({STATIC: timed([20]), CONTINUOUS: timed([90], exact_wrong=3, exact_matched=5), CHUNKED: timed([30])})
    said = answer([run])
    assert said[0].startswith(f"WRONG tokens, not those of plain greedy generation: {CONTINUOUS} (3 of 8 requests).")
    assert said[1].startswith(f"{CHUNKED} is the fastest of 2 arms")
    assert not any(sentence.startswith("All arms") for sentence in said)


def test_what_is_not_checked_or_only_nearly_equal_is_said() -> None:
    unchecked = {"exact_checked": 0, "exact_matched": 0}
    run = saved({STATIC: timed([20], **unchecked), CONTINUOUS: timed([40], **unchecked)})
    assert "The tokens were not checked: the workload has no reference tokens for this model (--verify makes them)." in answer([run])
    ties = saved({STATIC: timed([20]), CONTINUOUS: timed([40], exact_matched=6, exact_ties=2)})
    assert any("but for near ties of two logits in 2" in sentence for sentence in answer([ties]))
    some = saved({STATIC: timed([20]), "vllm": timed([40], **unchecked)})
    assert any(f"{STATIC} makes the tokens" in sentence and "vllm: not checked" in sentence for sentence in answer([some]))


def test_without_a_model_steps_are_counted_and_no_time_is_claimed() -> None:
    none = {"exact_checked": 0, "exact_matched": 0}
    run = saved({STATIC: timed([1.0], 9.0, steps=88, **none), CONTINUOUS: timed([2.0], 5.0, steps=44, **none)}, model=None)
    said = answer([run])
    assert said[0] == f"{CONTINUOUS} needs the fewest steps of 2 arms: 44, against 88 of {STATIC} (2.00 x as many)."
    assert "Nothing was computed" in said[1] and "tok/s" not in " ".join(said) and "TTFT" not in " ".join(said)
    alike = saved(
        {name: timed([1.0], steps=44, **none) for name in (STATIC, CONTINUOUS)} | {CHUNKED: timed([1.0], steps=40, **none)}, model=None
    )
    assert answer([alike])[0].startswith(f"{CHUNKED} needs the fewest")


def test_one_arm_is_told_without_a_race() -> None:
    (first, *rest) = answer([saved({CONTINUOUS: timed([40, 44], 1.5, slot_idle_frac=0.3)})])
    assert first == f"{CONTINUOUS} makes 42 output tok/s (40 to 44 in 2 rounds), TTFT p50 1.50 s."
    assert f"Waste of {CONTINUOUS}: slots idle 30.0 %." in rest


def test_other_systems_are_beside_whoever_wins() -> None:
    won = answer([saved({STATIC: timed([20]), CONTINUOUS: timed([40]), "vllm": timed([10])})])
    assert (
        f"Of the other systems vllm is the fastest (10 output tok/s): {CONTINUOUS} has 4.00 x its throughput (one round: no spread)." in won
    )
    lost = answer([saved({STATIC: timed([20]), CONTINUOUS: timed([40]), "vllm": timed([80])})])
    assert lost[0].startswith(f"vllm is the fastest of 3 arms: 80 output tok/s, 4.00 x {STATIC}")
    assert f"Of the arms of cbbench {CONTINUOUS} is the fastest: 40 output tok/s, 0.50 x vllm (one round: no spread)." in lost


def test_on_a_busy_machine_quiet_rounds_count_and_without_one_only_steps() -> None:
    def busy(speeds: list[float], steps: int, shares: list[float]) -> list[dict[str, object]]:
        return [{**metrics, "others_cpu_frac": share} for metrics, share in zip(timed(speeds, steps=steps), shares, strict=True)]

    mixed = saved({STATIC: busy([20, 2], 88, [0, 0.5]), CONTINUOUS: busy([40, 40], 44, [0, 0.5])})
    assert "2.00 x" in answer([mixed])[0] and "one round" in answer([mixed])[0]
    loud = saved({STATIC: busy([20], 88, [0.5]), CONTINUOUS: busy([40], 44, [0.3])})
    said = answer([loud])
    assert said[0] == "Other processes took up to 50.0 % of the machine in every round: times are not comparable, counts are."
    assert said[1].startswith(f"{CONTINUOUS} needs the fewest steps") and "tok/s" not in " ".join(said)


def test_failed_and_interrupted_arms_are_said() -> None:
    failed = saved({STATIC: timed([20]), CONTINUOUS: "ContractError: no luck"})
    assert answer([failed])[-1] == f"{CONTINUOUS} failed: ContractError: no luck." and answer([failed])[0].startswith(f"{STATIC} makes")
    half = saved({STATIC: timed([20]), CONTINUOUS: []}, finished=False, rounds=3)
    assert answer([half])[-1] == "The run is not finished: 1 of 6 rounds (arms x rounds) are whole."
    assert answer([saved({STATIC: "OSError: x"})]) == [f"{STATIC} failed: OSError: x."]
    assert answer([saved({STATIC: []})]) == ["There is no whole round."]


def test_refused_requests_are_said_with_their_reason_and_their_arm_does_not_win(tmp_path: Path) -> None:
    run = saved({STATIC: timed([20]), CONTINUOUS: timed([90], requests_completed=6, requests_refused=2)})
    folder = tmp_path / CONTINUOUS / "1"
    folder.mkdir(parents=True)
    rows = [{"state": "finished", "reason": "eos"}] * 6 + [{"state": "refused", "reason": "needs 99 tokens, the cache has 64"}] * 2
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = answer([replace(run, path=tmp_path)])
    assert said[0].startswith(f"{STATIC} makes 20")
    assert said[-1] == f"{CONTINUOUS} completed 6 requests, so it is left out above (2 refused: needs 99 tokens, the cache has 64)."


def test_a_revision_is_compared_with_itself() -> None:
    twin = f"{CONTINUOUS}@abc1234"
    run = saved({CONTINUOUS: timed([44, 44]), twin: timed([40, 40])}, marks={twin: {"base_of": CONTINUOUS}})
    assert f"{CONTINUOUS} has 1.10 x the throughput of {twin} (1.10 to 1.10 in 2 rounds)." in answer([run])


@pytest.mark.parametrize(("machine", "said"), [({"cpu": "a", "cores": 2}, "2.00 x"), ({"cpu": "b", "cores": 2}, "no time to compare with")])
def test_arms_of_different_runs_are_compared_on_one_machine_only(machine: dict[str, object], said: str) -> None:
    runs = [saved({STATIC: timed([20])}, "one"), saved({CONTINUOUS: timed([40])}, "two", machine=machine, versions={"torch": "3"})]
    sentences = answer(runs)
    assert said in sentences[0]
    assert "The runs were made with different versions: torch 2 and 3." in sentences
