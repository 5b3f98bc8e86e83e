"""Strategies that are wrong end by themselves, and are named with the step and the rule that they broke."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cbbench.attention.base import ForwardPass, LayerCall
from cbbench.attention.serial import Serial
from cbbench.clock import RealClock
from cbbench.engine.executor import ModelExecutor
from cbbench.engine.loop import Engine
from cbbench.errors import ContractError, StuckError
from cbbench.kvcache.base import KVView
from cbbench.plan import Plan, Room, Row
from cbbench.schedulers.continuous import Continuous
from tests.support.commands import command, read_lines, run_folder, write_config, write_workload
from tests.support.engines import assert_exact, build, requests, strategies, tiny

Wrong = Callable[[Any, float, Room], Any]
PLAN = Continuous.plan


def asks_for_nothing(self: Any, now_s: float, room: Room) -> Any:
    return None


def one_row_twice(self: Any, now_s: float, room: Room) -> Any:
    plan = PLAN(self, now_s, room)
    return Plan([*plan.rows, *plan.rows[:1]])


def a_row_split_in_two(self: Any, now_s: float, room: Room) -> Any:
    row = PLAN(self, now_s, room).rows[0]
    return Plan([Row(row.sequence, row.start, 1), Row(row.sequence, row.start + 1, row.num_new - 1)])


def too_many_at_once(self: Any, now_s: float, room: Room) -> Any:
    self.max_num_seqs, most = 99, self.max_num_seqs
    plan = PLAN(self, now_s, room)
    self.max_num_seqs = most
    return plan


def somebody_who_waits(self: Any, now_s: float, room: Room) -> Any:
    return Plan([Row(self.waiting[0], 0, 1)])


def beyond_its_tokens(self: Any, now_s: float, room: Room) -> Any:
    rows = PLAN(self, now_s, room).rows
    return Plan([Row(rows[0].sequence, rows[0].start, rows[0].num_new + 1)])


def without_room(self: Any, now_s: float, room: Room) -> Any:
    while self.waiting and len(self.running) < self.max_num_seqs:
        self.running.append(self.waiting.popleft())
    return Plan([self.rest_of(sequence) for sequence in self.running])


RULES: dict[Wrong, str] = {
    asks_for_nothing: "it returned NoneType, not a Plan",
    one_row_twice: "request r0 has two rows",
    a_row_split_in_two: "request r0 has two rows",
    too_many_at_once: "4 sequences run, max_num_seqs is 2",
    somebody_who_waits: "request r0 has a row and does not run",
    beyond_its_tokens: "request r0: a row over positions 0 to 6, but 0 of its 5 tokens are computed",
    without_room: "request r0: a row up to position 5, with room for 0",
}


@pytest.mark.parametrize("wrong", RULES, ids=lambda wrong: wrong.__name__)
def test_a_broken_plan_is_named(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Continuous, "plan", wrong)
    model = tiny()
    made = requests(model, "5/9@0 3/4@0 7/3@0 2/2@0")
    engine = build(model, made, max_num_seqs=2, budget_tokens=256)
    with model.serving(), pytest.raises(ContractError) as caught:
        engine.run(made)
    assert str(caught.value) == f"Continuous.plan, step 0: {RULES[wrong]}"


@pytest.mark.parametrize("wake_s", [0.0, -5.0, math.nan, math.inf, 3600.0, 1e18])
def test_who_only_asks_to_be_woken_ends(wake_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the checks off: nothing else would end it."""
    monkeypatch.setattr(Continuous, "plan", lambda self, now_s, room: Plan([], wake_s))
    model = tiny()
    made = requests(model, "5/9@0")
    arm = strategies(model.spec, made)
    engine = Engine(arm["scheduler"], arm["kv"], ModelExecutor(model, arm["attn"], arm["kv"]), RealClock())
    with model.serving(), pytest.raises(StuckError, match=r"Continuous.plan, step 0: there is work, and it only asks to be woken"):
        engine.run(made)


class HalfTheHeads(Serial):
    def attend(self, call: LayerCall, queries_BWHD: torch.Tensor, forward_pass: ForwardPass, kv: KVView) -> torch.Tensor:
        return super().attend(call, queries_BWHD, forward_pass, kv)[:, :, : queries_BWHD.shape[2] // 2]


class NotANumber(Serial):
    def attend(self, call: LayerCall, queries_BWHD: torch.Tensor, forward_pass: ForwardPass, kv: KVView) -> torch.Tensor:
        return super().attend(call, queries_BWHD, forward_pass, kv) * math.nan


@pytest.mark.parametrize(
    ("attention", "said"),
    [(HalfTheHeads, r"HalfTheHeads.attend gave \[1, 5, 2, 16\] for queries of \[1, 5, 4, 16\]"), (NotANumber, "logits are no numbers")],
)
def test_what_an_attention_returns_is_looked_at(attention: type[Serial], said: str) -> None:
    model = tiny()
    made = requests(model, "5/9@0")
    arm = strategies(model.spec, made)
    engine = Engine(arm["scheduler"], arm["kv"], ModelExecutor(model, attention(Serial.Options()), arm["kv"]), RealClock())
    with model.serving(), pytest.raises((AssertionError, ValueError), match=said):
        engine.run(made)


def test_a_strategy_from_outside_is_checked_in_a_run_and_its_row_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside.py").write_text(
        "from cbbench.plan import Plan\nfrom cbbench.schedulers.continuous import Continuous\n\n\n"
        "class Twice(Continuous):\n    def plan(self, now_s, room):\n        rows = super().plan(now_s, room).rows\n"
        "        return Plan([*rows, *rows])\n\n\n"
        "class Breaks(Continuous):\n    def plan(self, now_s, room):\n        return {}['0']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rows = [{"id": "a", "prompt_ids": [3, 4, 5], "max_new_tokens": 3, "ignore_eos": True}]
    workload = write_workload(tmp_path, f"requests: w.jsonl\nmodel: {write_config(tmp_path)}\nmeasure: {{rounds: 1, warmup: 0}}\n", rows)
    ended = command("run", workload, "--scheduler", "outside:Twice,outside:Breaks,continuous", "--verify", "--out", tmp_path / "r")
    assert ended.code == 3, ended.err
    assert "failed in round 1: ContractError: Twice.plan, step 0: request a has two rows" in ended.err
    assert "failed in round 1: KeyError: '0' (outside.py:13, plan)" in ended.err
    run = run_folder(tmp_path / "r")
    assert [line["id"] for line in read_lines(run / "outside.Twice+varlen+paged" / "1" / "requests.jsonl")] == ["a"], "what it had is kept"


def test_a_right_one_passes_every_check() -> None:
    model = tiny()
    made = requests(model, "5/9@0 30/7@0 3/4@0")
    engine = build(model, made, max_num_seqs=2)
    assert engine.checks
    with model.serving():
        engine.run(made)
    assert_exact(engine)
