"""What a KV cache may never do, with memory of NaN and without any: the contract, then each cache's own rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench import plugins
from cbbench.errors import CacheError
from cbbench.kvcache.base import KVCache, KVSpec
from cbbench.plan import Row
from cbbench.request import Request, Sequence
from tests.support.engines import CACHES

SPEC = KVSpec(num_layers=2, num_kv_heads=2, head_dim=4, itemsize=4)
ARMS: list[tuple[str, dict[str, Any]]] = [
    ("cat", {}),
    *[(kv, {"block_size": size}) for kv in ("paged", "prefix") for size in (1, 2, 16)],
    *[
        ("preallocated", {"reserve": reserve, "placement": place})
        for reserve in ("max_len", "pow2", "exact")
        for place in ("first-fit", "buddy")
    ],
]
every_cache = pytest.mark.parametrize(
    ("kv", "options"), ARMS, ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values()))
)


def make(kv: str, budget: int, longest: int = 32, **options: Any) -> Any:
    cls: Any = plugins.find("kv", kv)
    return cls(SPEC, budget, longest, cls.Options(**options))


def sequence(index: int, num_prompt: int = 9, max_new_tokens: int = 8) -> Sequence:
    return Sequence(Request(f"r{index}", (3 + index,) * num_prompt, max_new_tokens), index)


def state(cache: KVCache) -> tuple[dict[int, int], dict[int, int], int]:
    return cache.reserved_tokens(), dict(cache.written), cache.free_tokens()


def test_every_cache_is_in_these_tests() -> None:
    assert {kv for kv, _ in ARMS} == set(CACHES)


@every_cache
def test_what_is_reserved_and_what_is_free_is_all_there_is(kv: str, options: dict[str, Any]) -> None:
    cache = make(kv, 128, **options)
    assert cache.free_tokens() == cache.capacity_tokens() == 128
    people = [sequence(i) for i in range(3)]
    for one in people:
        assert cache.reserve(one, 9)
        cache.check()
    assert sorted(cache.reserved_tokens()) == [0, 1, 2] and all(n >= 9 for n in cache.reserved_tokens().values())
    for one in people[::-1]:
        cache.release(one)
        cache.check()
    assert cache.free_tokens() == 128 and not cache.written


@every_cache
def test_asking_again_for_less_is_free(kv: str, options: dict[str, Any]) -> None:
    cache = make(kv, 64, **options)
    one = sequence(0)
    assert cache.reserve(one, 12)
    before = state(cache)
    assert cache.reserve(one, 12) and cache.reserve(one, 5) and cache.reserve(one, 1)
    assert state(cache) == before


@every_cache
@pytest.mark.parametrize("resident", [False, True])
def test_a_no_changes_nothing(kv: str, options: dict[str, Any], resident: bool) -> None:
    cache = make(kv, 32, longest=16, **options)
    one, other = sequence(0), sequence(1)
    if resident:
        assert cache.reserve(other, 9)
    before = state(cache)
    assert not cache.reserve(other if resident else one, 33)
    assert state(cache) == before
    cache.check()


@every_cache
def test_freeing_twice_or_what_was_never_held_raises(kv: str, options: dict[str, Any]) -> None:
    cache = make(kv, 64, **options)
    one = sequence(0)
    with pytest.raises(CacheError, match="sequence 0"):
        cache.release(one)
    assert cache.reserve(one, 9)
    cache.release(one)
    with pytest.raises(CacheError, match="freed twice"):
        cache.release(one)
    cache.check()
    assert cache.free_tokens() == 64


@every_cache
@given(budget=st.integers(0, 70), num_prompt=st.integers(1, 40), max_new_tokens=st.integers(1, 40), longest=st.integers(1, 80))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_refused_is_exactly_what_an_empty_cache_cannot_hold(
    kv: str, options: dict[str, Any], budget: int, num_prompt: int, max_new_tokens: int, longest: int
) -> None:
    cache = make(kv, budget, longest, **options)
    one = sequence(0, num_prompt, max_new_tokens)
    refusal = cache.refusal(one)
    assert cache.reserve(one, one.request.max_kv_tokens) == (refusal is None)
    if refusal is None:
        cache.check()
    else:
        assert sum(word.strip(",").isdigit() for word in refusal.split()) >= 2, "a refusal names what is needed and what there is"


@pytest.mark.parametrize("kv", CACHES)
@pytest.mark.parametrize("block_size", [1, 2, 16])
def test_an_exact_fit_is_held_and_one_more_is_refused(kv: str, block_size: int) -> None:
    cls: Any = plugins.find("kv", kv)
    options = {k: v for k, v in {"block_size": block_size, "reserve": "exact"}.items() if k in cls.Options.model_fields}
    cache = make(kv, 48, **options)
    fits, over = sequence(0, 40, 9), sequence(1, 40, 10)
    assert cache.refusal(fits) is None and cache.refusal(over) is not None
    assert cache.reserve(fits, 48) and cache.free_tokens() == 0
    assert not cache.reserve(sequence(2, 1, 1), 1)
    cache.check()


@every_cache
def test_each_position_is_written_once_a_life_and_inside_its_room(kv: str, options: dict[str, Any]) -> None:
    cache = make(kv, 64, **options)
    one = sequence(0)
    assert cache.reserve(one, 9)
    cache.advance(Row(one, 0, 9))
    for start in (8, 10, 0):
        with pytest.raises(CacheError, match="writes at"):
            cache.advance(Row(one, start, 1))
    cache.check()
    with pytest.raises((CacheError, IndexError), match=r"sequence 0|out of bounds"):
        cache.advance(Row(one, 9, 60))
        cache.check()


@every_cache
@given(st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_order_of_growing_and_leaving_keeps_the_books(kv: str, options: dict[str, Any], data: st.DataObject) -> None:
    cache = make(kv, data.draw(st.integers(20, 100)), **options)
    people: dict[int, Sequence] = {}
    for index in range(data.draw(st.integers(5, 25))):
        if people and data.draw(st.booleans()):
            leaving = people.pop(data.draw(st.sampled_from(sorted(people))))
            cache.release(leaving)
        else:
            one = people.get(data.draw(st.integers(0, index)), sequence(index, data.draw(st.integers(1, 16)), 16))
            wanted = min(one.num_prompt + cache.written.get(one.index, -1) + 1, one.request.max_kv_tokens)
            before = state(cache)
            if cache.refusal(one) is None and cache.reserve(one, wanted):
                people[one.index] = one
                cache.advance(Row(one, cache.written[one.index], wanted - cache.written[one.index]))
            else:
                assert state(cache) == before
        cache.check()
        assert sorted(cache.reserved_tokens()) == sorted(people)
        assert 0 <= cache.external_tokens(sequence(99)) <= cache.free_tokens()
    for one in people.values():
        cache.release(one)
    assert cache.free_tokens() == cache.capacity_tokens()


def test_a_block_with_two_owners_and_a_lost_block_are_found() -> None:
    cache = make("paged", 32, block_size=4)
    assert cache.reserve(sequence(0), 9) and cache.reserve(sequence(1), 9)
    cache.tables[1][0] = cache.tables[0][0]
    with pytest.raises(CacheError, match="two owners"):
        cache.check()


def test_paged_wastes_less_than_a_block_and_takes_one_when_it_is_reached() -> None:
    cache, one = make("paged", 64, block_size=4), sequence(0, 3, 12)
    held = []
    for tokens in range(3, 11):
        assert cache.reserve(one, tokens)
        held.append(cache.reserved_tokens()[0])
    assert held == [4, 4, 8, 8, 8, 8, 12, 12]
    assert make("paged", 63, block_size=4).capacity_tokens() == 60, "what is less than a block is no block"
