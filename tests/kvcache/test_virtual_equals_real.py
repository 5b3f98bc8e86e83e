"""What a run without a model counts is what a real one counts, copies and momentary peaks included, in every pairing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.engines import ATTENTIONS, CACHES, SCHEDULERS, requests, run, run_virtual, tiny

TIMES = {"start_s", "end_s", "model_s"}
TEXT = "5/9@0 30/7@0 1/12@0 17/3@0 40/5@0 3/20@0"


@pytest.mark.parametrize("budget", [None, 96])
@pytest.mark.parametrize("kv", CACHES)
@pytest.mark.parametrize("attn", ATTENTIONS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_count_of_every_step_is_the_same(scheduler: str, attn: str, kv: str, budget: int | None) -> None:
    model = tiny()
    made = requests(model, TEXT, ignore_eos=True)
    options = {"scheduler.max_num_batched_tokens": 9, "kv.block_size": 4, "kv.reserve": "exact"}
    arm: dict[str, Any] = {"max_num_seqs": 3, "budget_tokens": budget, "options": options}
    real = run(model, made, scheduler, attn, kv, **arm, poison=False)
    virtual = run_virtual(made, scheduler, attn, kv, spec=model.spec, **arm)
    for mine, its in itertools.zip_longest(virtual.record().step_lines(), real.record().step_lines()):
        assert {key: value for key, value in mine.items() if key not in TIMES} == {
            key: value for key, value in its.items() if key not in TIMES
        }
    assert virtual.cache.peak_extra_bytes == real.cache.peak_extra_bytes
    copied = sum(step.copied_bytes for step in real.steps)
    copies = kv == "cat" or (kv == "paged" and attn != "varlen") or (kv == "preallocated" and attn == "padded" and scheduler != "static")
    assert not copies or (copied > 0 and real.cache.peak_extra_bytes > 0), "there was something to count"
    assert copied == sum(step.copied_tokens for step in real.steps) * model.spec.bytes_per_token


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_a_row_in_one_block_is_read_in_place_and_only_that(block_size: int) -> None:
    model = tiny()
    made = requests(model, TEXT, ignore_eos=True)
    found = [
        sum(step.copied_bytes for step in engine.steps)
        for engine in (
            run(model, made, "continuous", "serial", "paged", options={"kv.block_size": block_size}),
            run_virtual(made, "continuous", "serial", "paged", options={"kv.block_size": block_size}, spec=model.spec),
        )
    ]
    assert found[0] == found[1] and (found[0] == 0) == (block_size == 64)
