"""`make check-perf` catches a strategy that was made worse: each mutant moves a count of the committed baseline the wrong way."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cbbench.attention.base import ForwardPass, packed_pass
from cbbench.attention.padded import Padded
from cbbench.attention.varlen import Varlen
from cbbench.kvcache._arena import Buddy, FirstFit
from cbbench.kvcache.base import KVCache
from cbbench.kvcache.cat import Cat
from cbbench.kvcache.paged import Paged
from cbbench.kvcache.preallocated import Preallocated
from cbbench.plan import Plan
from cbbench.schedulers.base import Scheduler
from cbbench.schedulers.chunked import Chunked
from cbbench.schedulers.continuous import Continuous
from cbbench.schedulers.static import Static
from tests.support.commands import command, run_folder
from tests.support.places import ROOT

Patch = pytest.MonkeyPatch
CHUNKED = "chunked(max_num_batched_tokens=24)+varlen+paged"
PAGED = "continuous+varlen+paged"
BASE_LABEL = {"tight": "counts/tight", "arriving": "counts/arriving"}


def judged(tmp_path: Path, workload: str, label: str) -> set[str]:
    """What the comparison with the committed baseline finds worse about one arm: metrics, or that it failed."""
    source = ROOT / "workloads" / f"{BASE_LABEL.get(workload, workload)}.yaml"
    data = yaml.safe_load(source.read_text())
    shutil.copy(source.parent / data["requests"], tmp_path)
    if workload in BASE_LABEL:
        data["arms"] = [arm for arm in data["arms"] if label_of(arm) == label]
        assert len(data["arms"]) == 1, "the arm is one of the file"
    path = tmp_path / f"{workload}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    words = [] if workload in BASE_LABEL else ["--arm", label]
    ran = command("run", path, "--model", "none", "--rounds", "1", *words, "--out", tmp_path / "out", "--format", "json")
    assert ran.code in (0, 3), ran.err
    folder = ["--folder", ROOT / "results" / "baselines"]
    words = ["--fail-on", "regressed", "--fail-on", "missing", "--format", "json"]
    ended = command("compare", run_folder(tmp_path / "out"), "--baseline", "main", *folder, *words)
    mine = [row for row in ended.data["verdicts"] if row["arm"] == label]
    assert mine and not [row for row in mine if row["outcome"] in ("missing", "not comparable")], mine
    hits = {hit["metric"] for hit in ended.data["gate"]["hits"] if hit["arm"] == label}
    assert hits == {row["metric"] for row in mine if row["outcome"] in ("regressed", "failed")}
    return hits


def label_of(arm: dict[str, Any]) -> str:
    named = [arm[axis] if isinstance(arm[axis], dict) else {"name": arm[axis]} for axis in ("scheduler", "attn", "kv")]
    options = [",".join(f"{key}={value}" for key, value in one.items() if key != "name") for one in named]
    return "+".join(one["name"] + (f"({said})" if said else "") for one, said in zip(named, options, strict=True))


def preempts_the_oldest(patch: Patch) -> None:
    def give_way(self: Scheduler, room: Any) -> None:
        oldest = self.running.pop(0)
        room.preempt(oldest)
        self.waiting.appendleft(oldest)

    patch.setattr(Scheduler, "give_way", give_way)


def preempted_to_the_back(patch: Patch) -> None:
    def give_way(self: Scheduler, room: Any) -> None:
        newest = self.running.pop()
        room.preempt(newest)
        self.waiting.append(newest)

    patch.setattr(Scheduler, "give_way", give_way)


def preempts_two(patch: Patch) -> None:
    give_way = Scheduler.give_way

    def twice(self: Scheduler, room: Any) -> None:
        give_way(self, room)
        if len(self.running) > 1:
            give_way(self, room)

    patch.setattr(Scheduler, "give_way", twice)


def copies_counted_twice(patch: Patch) -> None:
    count_copy = KVCache.count_copy
    patch.setattr(KVCache, "count_copy", lambda self, num_tokens, num_layers=1: count_copy(self, 2 * num_tokens, num_layers))


def prompts_before_decodes(patch: Patch) -> None:
    def plan(self: Chunked, now_s: float, room: Any) -> Plan:
        self.grow(room)
        rows = [self.rest_of(sequence) for sequence in self.running]
        rows.sort(key=lambda row: row.num_new <= 1)
        budget = self.options.max_num_batched_tokens
        for row in rows:
            row.num_new = min(row.num_new, budget)
            budget -= row.num_new
        while budget and self.admit_one(room):
            row = self.rest_of(self.running[-1])
            row.num_new = min(row.num_new, budget)
            budget -= row.num_new
            rows.append(row)
        return Plan([row for row in rows if row.num_new])

    patch.setattr(Chunked, "plan", plan)


def smaller_chunks(patch: Patch) -> None:
    plan = Chunked.plan

    def halved(self: Chunked, now_s: float, room: Any) -> Plan:
        self.options = self.options.model_copy(update={"max_num_batched_tokens": 16})
        return plan(self, now_s, room)

    patch.setattr(Chunked, "plan", halved)


def the_last_chunk_waits(patch: Patch) -> None:
    """The newest prompt is computed but for its last token, which a step of its own computes."""
    plan = Chunked.plan

    def late(self: Chunked, now_s: float, room: Any) -> Plan:
        found = plan(self, now_s, room)
        for row in found.rows:
            if row.num_new > 1 and row.samples:
                row.num_new -= 1
        return found

    patch.setattr(Chunked, "plan", late)


def one_admission_a_step(patch: Patch) -> None:
    patch.setattr(Scheduler, "admit", Scheduler.admit_one)


def newest_first(patch: Patch) -> None:
    def admit_one(self: Scheduler, room: Any) -> bool:
        if not self.waiting or len(self.running) >= self.max_num_seqs or not room.reserve(self.waiting[-1], self.waiting[-1].num_tokens):
            return False
        self.running.append(self.waiting.pop())
        return True

    patch.setattr(Scheduler, "admit_one", admit_one)


def a_slot_is_never_used(patch: Patch) -> None:
    admit_one = Scheduler.admit_one
    patch.setattr(Scheduler, "admit_one", lambda self, room: len(self.running) < self.max_num_seqs - 1 and admit_one(self, room))


def blocks_are_rounded_up_once_more(patch: Patch) -> None:
    patch.setattr(Paged, "blocks_for", lambda self, num_tokens: num_tokens // self.options.block_size + 1)


def two_blocks_at_a_time(patch: Patch) -> None:
    blocks_for = Paged.blocks_for
    patch.setattr(Paged, "blocks_for", lambda self, num_tokens: blocks_for(self, num_tokens) + blocks_for(self, num_tokens) % 2)


def regions_are_larger(patch: Patch) -> None:
    region_tokens = Preallocated.region_tokens
    patch.setattr(Preallocated, "region_tokens", lambda self, sequence: region_tokens(self, sequence) + 16)


def buddies_never_join(patch: Patch) -> None:
    patch.setattr(Buddy, "free", lambda self, start, size: self.holes.append((start, size)))


def holes_never_join(patch: Patch) -> None:
    patch.setattr(FirstFit, "free", lambda self, start, size: self.holes.append((start, size)))


def growth_copies_all(patch: Patch) -> None:
    copies = Cat.copies
    patch.setattr(Cat, "copies", lambda self, rows, form: [*copies(self, rows, form), *(row.num_new for row in rows)])


def prompts_and_decodes_share_a_rectangle(patch: Patch) -> None:
    patch.setattr(Padded, "lay_out", lambda self, plan: [ForwardPass(plan.rows, max(row.num_new for row in plan.rows))])


def a_pass_for_each_sequence(patch: Patch) -> None:
    patch.setattr(Varlen, "lay_out", lambda self, plan: [packed_pass([row]) for row in plan.live])


def the_static_batch_waits_for_one(patch: Patch) -> None:
    """Finished sequences give their memory back only when the batch has ended, so unfinished ones are preempted first."""
    patch.setattr(Static, "give_way", Scheduler.give_way)


def an_incomplete_batch_does_not_wait(patch: Patch) -> None:
    plan = Static.plan

    def at_once(self: Static, now_s: float, room: Any) -> Plan:
        self.options = self.options.model_copy(update={"max_wait_s": 0.0})
        return plan(self, now_s, room)

    patch.setattr(Static, "plan", at_once)


def decodes_rest_while_a_prompt_runs(patch: Patch) -> None:
    plan = Continuous.plan

    def prompts_alone(self: Continuous, now_s: float, room: Any) -> Plan:
        found = plan(self, now_s, room)
        prompts = [row for row in found.rows if not row.is_decode]
        return Plan(prompts or found.rows)

    patch.setattr(Continuous, "plan", prompts_alone)


def an_arm_that_raises(patch: Patch) -> None:
    def plan(self: Continuous, now_s: float, room: Any) -> Plan:
        raise RuntimeError("no luck")

    patch.setattr(Continuous, "plan", plan)


MUTANTS: list[tuple[Callable[[Patch], None], str, str]] = [
    (preempts_the_oldest, "tight", PAGED),
    (preempted_to_the_back, "tight", PAGED),
    (preempts_two, "tight", PAGED),
    (copies_counted_twice, "tight", "continuous+serial+cat"),
    (prompts_before_decodes, "tight", CHUNKED),
    (smaller_chunks, "tight", CHUNKED),
    (the_last_chunk_waits, "arriving", "chunked(max_num_batched_tokens=32)+varlen+paged"),
    (one_admission_a_step, "tutorial", PAGED),
    (newest_first, "arriving", PAGED),
    (a_slot_is_never_used, "tutorial", PAGED),
    (blocks_are_rounded_up_once_more, "tutorial", PAGED),
    (two_blocks_at_a_time, "tutorial", PAGED),
    (regions_are_larger, "tight", "continuous+varlen+preallocated(reserve=exact)"),
    (buddies_never_join, "tight", "continuous+padded+preallocated(reserve=pow2,placement=buddy)"),
    (holes_never_join, "tight", "continuous+varlen+preallocated(reserve=exact)"),
    (growth_copies_all, "tutorial", "static+padded+cat"),
    (prompts_and_decodes_share_a_rectangle, "tight", "continuous+padded+paged(block_size=32)"),
    (a_pass_for_each_sequence, "tutorial", PAGED),
    (the_static_batch_waits_for_one, "tight", "static+padded+cat"),
    (an_incomplete_batch_does_not_wait, "arriving", "static(max_wait_s=12.0)+padded+cat"),
    (decodes_rest_while_a_prompt_runs, "arriving", PAGED),
    (an_arm_that_raises, "tutorial", PAGED),
]


@cache
def untouched(workload: str, label: str) -> frozenset[str]:
    with tempfile.TemporaryDirectory() as folder:
        return frozenset(judged(Path(folder), workload, label))


@pytest.mark.parametrize(("mutant", "workload", "label"), MUTANTS, ids=[mutant.__name__ for mutant, _, _ in MUTANTS])
def test_a_strategy_made_worse_fails_the_gate(
    tmp_path: Path, monkeypatch: Patch, mutant: Callable[[Patch], None], workload: str, label: str
) -> None:
    assert untouched(workload, label) == frozenset(), "as it is, it passes"
    mutant(monkeypatch)
    assert judged(tmp_path, workload, label)


def test_the_gate_runs_what_the_mutants_are_tried_on() -> None:
    text = (ROOT / "Makefile").read_text()
    for _, workload, label in MUTANTS:
        assert workload in text and (workload in BASE_LABEL or f"--arm {label}" in text)
    assert {path.stem for path in (ROOT / "workloads" / "counts").glob("*.yaml")} == {*BASE_LABEL}
