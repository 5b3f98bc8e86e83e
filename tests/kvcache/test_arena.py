"""The preallocated cache: how large its regions are, where they lie, what fits no hole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.errors import CacheError
from cbbench.kvcache._arena import Buddy, FirstFit
from tests.kvcache.test_kvcache import make, sequence


def test_overlapping_regions_are_found() -> None:
    cache = make("preallocated", 64, reserve="exact")
    assert cache.reserve(sequence(0), 9) and cache.reserve(sequence(1), 9)
    cache.regions[1] = (cache.regions[1][0] - 1, cache.regions[1][1])
    with pytest.raises(CacheError, match="overlap"):
        cache.check()


@pytest.mark.parametrize(
    ("reserve", "placement", "size"),
    [
        ("max_len", "first-fit", 32),
        ("pow2", "first-fit", 9 + 8),
        ("exact", "first-fit", 9 + 6 - 1),
        ("exact", "buddy", 16),
        ("pow2", "buddy", 32),
    ],
)
def test_a_region_is_as_large_as_its_option_says(reserve: str, placement: str, size: int) -> None:
    cache = make("preallocated", 64, reserve=reserve, placement=placement)
    assert cache.reserve(sequence(0, 9, 6), 9)
    assert cache.reserved_tokens() == {0: size}


def test_a_region_below_what_a_request_may_need_refuses_it() -> None:
    cache = make("preallocated", 64, reserve="max_len", max_len=16)
    assert cache.refusal(sequence(0, 9, 8)) is None
    assert "17" in (cache.refusal(sequence(0, 9, 9)) or "") and "16" in (cache.refusal(sequence(0, 9, 9)) or "")


def test_free_memory_in_holes_too_small_for_the_next_is_external_fragmentation() -> None:
    cache = make("preallocated", 48, reserve="exact")
    people = [sequence(i, 9, 8) for i in range(3)]
    assert all(cache.reserve(one, 9) for one in people)
    cache.release(people[0])
    cache.release(people[2])
    assert cache.external_tokens(sequence(3, 20, 5)) == 32 == cache.free_tokens(), "24 fit in 32, but in no hole of 16"
    assert cache.external_tokens(sequence(3, 9, 8)) == 0, "this one fits a hole"
    assert cache.external_tokens(sequence(3, 40, 1)) == 0, "this one would not fit if the holes were joined"
    assert not cache.reserve(sequence(3, 20, 5), 20)
    cache.release(people[1])
    assert cache.external_tokens(sequence(3, 20, 5)) == 0 and cache.arena.holes == [(0, 48)]


@pytest.mark.parametrize("kind", [FirstFit, Buddy])
@given(st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_regions_of_an_arena_never_overlap_and_come_back_whole(kind: type[FirstFit] | type[Buddy], data: st.DataObject) -> None:
    capacity = data.draw(st.integers(0, 100))
    arena = kind(capacity)
    whole = sorted(arena.holes)
    held: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 30))):
        if held and data.draw(st.booleans()):
            arena.free(*held.pop(data.draw(st.integers(0, len(held) - 1))))
        else:
            size = arena.round_up(data.draw(st.integers(1, 40)))
            large_enough = [start for start, hole in arena.holes if hole >= size]
            start = arena.place(size)
            assert (start is None) == (not large_enough)
            if start is not None:
                assert kind is not FirstFit or start == min(large_enough), "the lowest hole"
                held.append((start, size))
        covered = sorted(slot for start, size in [*held, *arena.holes] for slot in range(start, start + size))
        assert covered == list(range(capacity))
    for region in held:
        arena.free(*region)
    assert sorted(arena.holes) == whole


def test_buddies_lie_at_multiples_of_their_size() -> None:
    arena = Buddy(64)
    placed = [(arena.place(arena.round_up(n)), arena.round_up(n)) for n in (3, 5, 2, 9, 16, 1)]
    assert all(start is not None and start % size == 0 for start, size in placed)
    assert [size for _, size in placed] == [4, 8, 2, 16, 16, 1]
