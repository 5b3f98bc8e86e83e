"""kv: prefix. What is found is right, counted once, and never more than endless memory would give."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.engine.loop import Engine
from cbbench.errors import CacheError
from cbbench.kvcache._prefix_tree import ORDERS, PrefixTree
from cbbench.kvcache.base import KVSpec
from cbbench.kvcache.prefix import Prefix
from cbbench.model.model import Model
from cbbench.plan import Row
from cbbench.request import UNKNOWN, Request, Sequence
from cbbench.results.metrics import summarize
from cbbench.workload.prompts import HashedPrompt, PromptRecipe, TokenSource
from tests.support.engines import ATTENTIONS, SCHEDULERS, assert_exact, num_preemptions, run, run_virtual, with_reference

SPEC = KVSpec(1, 1, 4, 4)
SIZE = 4


def cache(num_blocks: int, eviction: str = "lru") -> Prefix:
    return Prefix(SPEC, num_blocks * SIZE, 64, Prefix.Options(block_size=SIZE, eviction=eviction))  # type: ignore[arg-type]


def sequence(index: int, prompt: Any, num_new: int = 4) -> Sequence:
    return Sequence(Request(f"r{index}", prompt, num_new), index)


def live(kv: Prefix, who: Sequence) -> int:
    """Admits a sequence, computes its prompt, lets it go; returns the tokens that were found."""
    assert kv.reserve(who, who.num_tokens)
    known = kv.written[who.index]
    kv.advance(Row(who, known, who.num_tokens - known))
    kv.check()
    kv.release(who)
    kv.check()
    return known


def ids(text: str) -> tuple[int, ...]:
    return tuple(ord(letter) for letter in text)


def test_only_what_is_equal_from_the_first_token_on_is_found() -> None:
    kv = cache(32)
    assert live(kv, sequence(0, ids("aaaabbbbccccd"))) == 0
    assert live(kv, sequence(1, ids("aaaabbbbccccd"))) == 12
    assert live(kv, sequence(2, ids("aaaabbbbXcccd"))) == 8, "one other token: its block is another"
    assert live(kv, sequence(3, ids("Zaaabbbbccccd"))) == 0, "equal blocks behind other tokens are others"
    assert live(kv, sequence(4, ids("bbbbcccc!"))) == 0
    assert live(kv, sequence(5, ids("aaa"))) == 0, "a partly filled block is never shared"


@pytest.mark.parametrize("num_tokens", [8, 12])
def test_a_prompt_that_is_known_whole_keeps_a_token_to_compute(num_tokens: int) -> None:
    """Without a query token there is no first output (nano-vllm 144, 211, 233)."""
    kv = cache(8)
    live(kv, sequence(0, ids("aaaabbbbcccc")))
    assert live(kv, sequence(1, ids("aaaabbbbcccc"[:num_tokens]))) == num_tokens - SIZE


def test_blocks_of_equal_hash_are_told_apart_by_their_tokens() -> None:
    """vllm 12621: in Python hash(-1) == hash(-2), so these collide in every table."""
    kv = cache(16)
    assert hash((-1, 5, 5, 5)) == hash((-2, 5, 5, 5))
    tree = PrefixTree("lru")
    first = tree.publish(0, None, (-1, 5, 5, 5))
    assert tree.find([(-2, 5, 5, 5)]) == [] and tree.find([(-1, 5, 5, 5)]) == [first]
    assert live(kv, sequence(0, (-2, 5, 5, 5, 1))) == 0 == live(kv, sequence(1, (-3, 5, 5, 5, 1)))


def test_memory_that_several_read_counts_once_and_stays_while_one_reads_it() -> None:
    kv = cache(8)
    first, second = sequence(0, ids("aaaabbbbc")), sequence(1, ids("aaaabbbbd"))
    assert kv.reserve(first, 9)
    kv.advance(Row(first, 0, 9))
    assert kv.reserve(second, 9) and kv.written[1] == 8
    kv.check()
    said = kv.sharing()
    assert (said.extra_tokens, said.shared_tokens, said.cached_tokens) == (8, 8, 0) and kv.free_tokens() == 4 * SIZE
    assert kv.tables[0][:2].tolist() == kv.tables[1][:2].tolist() and kv.tables[0][2] != kv.tables[1][2]
    kv.release(first)
    kv.check()
    assert kv.sharing().extra_tokens == 0 and kv.sharing().cached_tokens == 0 and kv.free_tokens() == 5 * SIZE
    kv.release(second)
    assert kv.sharing().cached_tokens == 8 and kv.free_tokens() == 8 * SIZE
    with pytest.raises(CacheError, match="freed twice"):
        kv.release(second)


def test_two_that_fill_equal_blocks_side_by_side_end_with_one() -> None:
    kv = cache(8)
    both = [sequence(0, ids("aaaabbbbc")), sequence(1, ids("aaaabbbbc"))]
    assert all(kv.reserve(one, 9) for one in both) and kv.free_tokens() == 2 * SIZE
    for one in both:
        kv.advance(Row(one, 0, 9))
        kv.check()
    assert kv.free_tokens() == 4 * SIZE and kv.sharing().extra_tokens == 8


def test_what_must_stay_is_not_counted_as_room() -> None:
    """Found blocks that nobody reads are room for others, but not for the one that takes them (counted twice: an idle server hangs)."""
    kv = cache(4)
    live(kv, sequence(0, ids("aaaabbbbccccd")))
    wants = sequence(1, ids("aaaabbbbccccddddeeee"))  # 3 known, 2 to come, 4 there
    assert not kv.reserve(wants, wants.num_tokens)
    kv.check()
    assert kv.sharing().cached_tokens == 12 and 1 not in kv.written
    assert live(kv, sequence(2, ids("aaaabbbbccccdddd"))) == 12, "three known and one to come fit"
    assert live(kv, sequence(3, ids("zzzzzzzzzzzzzzzz"))) == 0 and kv.num_evicted == 4


ORDER_OF_GOING = {  # three chains of two blocks: "a" came first and was read three times, "b" once, "c" last and once
    "lru": "bbccaa",
    "fifo": "aabbcc",
    "lfu": "bbccaa",
    "length-aware": "bcabca",
}


@pytest.mark.parametrize("eviction", ORDERS)
def test_each_eviction_takes_what_its_name_says(eviction: str) -> None:
    kv = cache(8, eviction)
    for index, letter in enumerate("abcaa"):
        live(kv, sequence(index, ids(letter * 8)))  # the second block holds the last token: found by those behind it alone
    assert kv.sharing().cached_tokens == 24
    letters = {node.block: chr(node.content[0]) for node in kv.tree.nodes()}  # type: ignore[index]
    assert "".join(letters[kv.tree.evict()] for _ in range(6)) == ORDER_OF_GOING[eviction]
    with pytest.raises(CacheError, match="none can be taken"):
        kv.tree.evict()


def test_output_is_found_too_but_not_one_that_nobody_knows() -> None:
    kv = cache(16)
    for index, tail in enumerate(([7, 8, 9], [UNKNOWN, 8, 9])):
        who = sequence(index, (1 + index, 2, 3, 4, 5))
        assert kv.reserve(who, 8)
        kv.advance(Row(who, 0, 5))
        who.output_ids += tail
        kv.advance(Row(who, 5, 3))
        kv.check()
        kv.release(who)
    assert live(kv, sequence(5, (1, 2, 3, 4, 5, 7, 8, 9, 11))) == 8
    assert live(kv, sequence(6, (2, 2, 3, 4, 5, UNKNOWN, 8, 9, 11))) == 4


def test_prompts_known_by_block_ids_are_shared_by_them_and_make_no_token() -> None:
    def no_token(*_: object) -> Any:
        raise AssertionError("token ids were made")

    source = TokenSource(PromptRecipe(block_tokens=6), torch.arange(300).numpy())
    prompts = [
        HashedPrompt(source, length, f"r{i}", blocks) for i, (length, blocks) in enumerate([(17, [4, 5, 6]), (20, [4, 5, 9]), (9, [4])])
    ]
    by_ids = cache(32)
    expected = [live(by_ids, sequence(i, prompt.ids)) for i, prompt in enumerate(prompts)]
    assert expected == [0, 12, 4]
    for prompt in prompts:
        prompt._ids = None
    lazy, TokenSource.block = TokenSource.block, no_token  # type: ignore[method-assign]
    try:
        kv = cache(32)
        assert [live(kv, sequence(i, prompt)) for i, prompt in enumerate(prompts)] == expected
    finally:
        TokenSource.block = lazy  # type: ignore[method-assign]


def sharing_requests(seed: int, num: int) -> list[Request]:
    """Prompts that begin alike at random depths, some of them with an earlier one's output."""
    rng = random.Random(seed)
    made: list[Request] = []
    for index in range(num):
        start = list(rng.choice(made).prompt_ids) if made and rng.random() < 0.8 else []
        start = start[: rng.randrange(len(start) + 1)] if rng.random() < 0.7 else start
        prompt = [*start, *(rng.randrange(3, 90) for _ in range(rng.choice([1, 2, 5, 11])))]
        made.append(Request(f"r{index}", tuple(prompt[:60]), rng.choice([1, 3, 6, 12]), rng.choice([0.0, 0.0, 3.0, 20.0]), True))
    return made


def assert_lawful(engine: Engine) -> None:
    row = summarize(**records(engine), cell={"bytes_per_token": 8})
    assert row["prefill_tokens_saved"] >= 0 and row["prefix_hit_frac"] <= row["prefix_ideal_frac"]
    for s in engine.sequences:
        ideal = engine.cache.ideal_tokens[s.index]
        assert s.cached_tokens <= ideal < s.num_prompt
        computed = sum(new for step in engine.steps for _, index, _, new in step.rows if index == s.index)
        assert s.num_preemptions or computed + s.cached_tokens == s.request.max_kv_tokens + s.recomputed_tokens
    parts = sum(row[f"kv_{part}"] for part in ("utilization", "future_frac", "internal_frac", "external_frac"))
    assert parts == pytest.approx(1)
    assert not engine.cache.written and engine.cache.free_tokens() == engine.cache.capacity_tokens()


def records(engine: Engine) -> dict[str, Any]:
    record = engine.record()
    return {"steps": record.step_lines(), "requests": record.request_lines()}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(SCHEDULERS), st.sampled_from([*ORDERS]), st.sampled_from([1, 2, 4, 16]), st.integers(5, 20))
def test_any_sharing_workload_without_a_model_is_lawful(seed: int, scheduler: str, eviction: str, block_size: int, blocks: int) -> None:
    """Budgets down to the longest request alone: nearly everything is evicted, and sequences give way."""
    rng = random.Random(seed)
    made = [replace(r, output_ids=tuple(rng.randrange(3, 90) for _ in range(r.max_new_tokens))) for r in sharing_requests(seed, 12)]
    longest = -(-max(r.max_kv_tokens for r in made) // block_size)
    options = {"kv.block_size": block_size, "kv.eviction": eviction, "scheduler.max_num_batched_tokens": 9}
    budget = (longest + blocks * 4 // block_size) * block_size
    engine = run_virtual(made, scheduler, kv="prefix", max_num_seqs=4, budget_tokens=budget, options=options)
    assert_exact(engine)
    assert_lawful(engine)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("attn", ATTENTIONS)
@pytest.mark.parametrize("tight", [False, True])
def test_sharing_workloads_are_exact_on_a_model(model: Model, scheduler: str, attn: str, tight: bool) -> None:
    made = [with_reference(model, replace(request, arrival_s=0.0)) for request in sharing_requests(5, 14)]  # no real waits
    longest = max(r.max_kv_tokens for r in made)
    options = {"kv.block_size": 4, "scheduler.max_num_batched_tokens": 13}
    engine = run(model, made, scheduler, attn, "prefix", max_num_seqs=4, budget_tokens=longest + 8 if tight else 1000, options=options)
    assert_exact(engine)
    assert_lawful(engine)
    assert sum(s.cached_tokens for s in engine.sequences) > 4
    if tight:
        assert engine.steps[-1].evicted_tokens > 0 and (scheduler == "static" or num_preemptions(engine) > 0)


def test_a_hit_changes_no_bit_of_the_logits(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our CPU kernel gives a token the same bits in any batch and chunk, so what is read again is what would have been computed."""
    seen: dict[str, dict[str, torch.Tensor]] = {}
    made = [with_reference(model, replace(request, arrival_s=0.0)) for request in sharing_requests(5, 8)]
    for kv in ("paged", "prefix"):
        found = seen.setdefault(kv, {})
        rows: list[str] = []
        head = model.hf.lm_head.forward

        def watched(hidden: torch.Tensor, found: dict[str, torch.Tensor] = found, rows: list[str] = rows, head: Any = head) -> torch.Tensor:
            logits = head(hidden)
            for name, row in zip(rows, logits.reshape(-1, logits.shape[-1]), strict=True):
                found[name] = row.clone()
            return logits

        forward = model.forward

        def noted(forward_pass: Any, *rest: Any, rows: list[str] = rows, forward: Any = forward) -> Any:
            rows[:] = [f"{row.sequence.request.id} {len(row.sequence.output_ids)}" for row in forward_pass.rows if row.samples]
            return forward(forward_pass, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(model.hf.lm_head, "forward", watched)
            patch.setattr(model, "forward", noted)
            engine = run(model, made, "continuous", "varlen", kv, max_num_seqs=3, budget_tokens=1000, options={"kv.block_size": 4})
        assert kv == "paged" or sum(s.cached_tokens for s in engine.sequences) > 4
    assert seen["paged"].keys() == seen["prefix"].keys() and len(seen["paged"]) == sum(r.max_new_tokens for r in made)
    assert all(torch.equal(seen["paged"][name], row) for name, row in seen["prefix"].items())
