"""Whatever form an attention asks for, it reads the keys that were written; what a copy moves is counted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cbbench.kvcache.base import KVSpec
from cbbench.plan import Row
from cbbench.request import Sequence
from tests.support.engines import CACHES
from tests.support.lying import CACHE_ARMS, Lying

SPEC = KVSpec(num_layers=2, num_kv_heads=3, head_dim=4, itemsize=4)
ONE_LAYER = SPEC.bytes_per_token // SPEC.num_layers  # bytes of a token's keys and values in one layer
every_cache = pytest.mark.parametrize(
    ("kv", "options"), CACHE_ARMS, ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values()))
)


def scene(kv: str, options: dict[str, Any]) -> tuple[Lying, list[Sequence]]:
    """Four sequences of 9, 16, 1 and 30 tokens, in memory that others have left their keys in."""
    lying = Lying(kv, options, SPEC)
    passers_by = lying.fill(7, 20, 3)
    stay = lying.fill(9, 16)
    for one in passers_by:
        lying.cache.release(one)
    stay += lying.fill(1, 30)
    lying.cache.copied_bytes = 0
    return lying, stay


def held_view(lying: Lying, sequences: list[Sequence]) -> Any:
    return lying.cache.view([Row(s, s.num_computed, 0) for s in sequences])


def test_every_cache_is_in_these_tests() -> None:
    assert {kv for kv, _ in CACHE_ARMS} == set(CACHES)


@every_cache
def test_ragged_is_each_rows_keys(kv: str, options: dict[str, Any]) -> None:
    lying, people = scene(kv, options)
    view = held_view(lying, people)
    for layer in range(2):
        rows = view.ragged(layer)
        assert len(rows) == 4
        for one, (keys, values) in zip(people, rows, strict=True):
            assert torch.equal(keys, lying.keys[one.index][layer]) and torch.equal(values, lying.values[one.index][layer])


@every_cache
def test_padded_is_each_rows_keys_and_finite_behind_them(kv: str, options: dict[str, Any]) -> None:
    lying, people = scene(kv, options)
    for layer in range(2):
        keys, values = held_view(lying, people).padded(layer)
        assert keys.shape == values.shape == (4, 30, 3, 4)
        assert keys.isfinite().all() and values.isfinite().all(), "0 x NaN is NaN: poison behind a length would show"
        for line, one in enumerate(people):
            assert torch.equal(keys[line, : one.num_computed], lying.keys[one.index][layer])
            assert torch.equal(values[line, : one.num_computed], lying.values[one.index][layer])


@every_cache
def test_packed_is_all_keys_in_row_order_with_borders(kv: str, options: dict[str, Any]) -> None:
    lying, people = scene(kv, options)
    view = held_view(lying, people)
    assert view.cu_seqlens.tolist() == [0, 9, 25, 26, 56] and view.cu_seqlens.dtype == "int32"
    for layer in range(2):
        keys, values = view.packed(layer)
        assert torch.equal(keys, torch.cat([lying.keys[one.index][layer] for one in people]))
        assert torch.equal(values, torch.cat([lying.values[one.index][layer] for one in people]))


@every_cache
def test_blocks_have_each_position_where_the_slot_table_says(kv: str, options: dict[str, Any]) -> None:
    lying, people = scene(kv, options)
    view = held_view(lying, people)
    table, size = view.slot_table, view.block_size
    assert table.dtype == "int64" and len(table) == 4
    for layer in range(2):
        keys, values = view.blocks(layer)
        for line, one in enumerate(people):
            slots = [int(table[line, p // size]) + p % size for p in range(one.num_computed)]
            assert torch.equal(keys[slots], lying.keys[one.index][layer]) and torch.equal(values[slots], lying.values[one.index][layer])


@every_cache
def test_no_form_shows_memory_that_was_never_written(kv: str, options: dict[str, Any]) -> None:
    lying, people = scene(kv, options)
    view = held_view(lying, people)
    parts = [x for pair in view.ragged(0) for x in pair] + [*view.padded(0), *view.packed(0)]
    assert not any(part.isnan().any() for part in parts)
    pool: Any = getattr(lying.cache, "pool", None)
    assert pool is None or pool.keys.isnan().any(), "there was poison to show"


@every_cache
def test_each_row_may_have_any_number_of_new_tokens(kv: str, options: dict[str, Any]) -> None:
    """A pass of a chunk, a decode, a whole prompt and a held row; the others' keys stay as they are."""
    lying, people = scene(kv, options)
    chunked, decoding, held, other = people
    fresh = lying.sequence(6)
    view = lying.write([lying.row(chunked, 3), lying.row(decoding, 1), lying.row(fresh, 6), lying.row(held, 0)])
    assert view.lengths == [12, 17, 6, 1]
    for one, (keys, values) in zip((chunked, decoding, fresh, held), view.ragged(1), strict=True):
        assert torch.equal(keys, lying.keys[one.index][1]) and torch.equal(values, lying.values[one.index][1])
    ((keys, _),) = held_view(lying, [other]).ragged(1)
    assert torch.equal(keys, lying.keys[other.index][1])


# What a form costs: lengths 9, 16, 1, 30 are 56 tokens, 4 x 30 = 120 in a rectangle.


def copies(kv: str, options: dict[str, Any], read: Callable[[Any], object]) -> int:
    """Tokens of one layer that a read copied."""
    lying, people = scene(kv, options)
    read(held_view(lying, people))
    assert lying.cache.copied_bytes % ONE_LAYER == 0
    return lying.cache.copied_bytes // ONE_LAYER


@every_cache
def test_packed_copies_every_token_and_padded_the_whole_rectangle(kv: str, options: dict[str, Any]) -> None:
    assert copies(kv, options, lambda view: view.packed(0)) == 56
    assert copies(kv, options, lambda view: view.padded(1)) == 120


@every_cache
def test_contiguous_ragged_views_cost_nothing_and_scattered_ones_a_gather(kv: str, options: dict[str, Any]) -> None:
    scattered = kv == "paged" and options["block_size"] < 30
    assert copies(kv, options, lambda view: view.ragged(0)) == (56 if scattered else 0)


@every_cache
def test_ragged_views_that_cost_nothing_share_the_caches_memory(kv: str, options: dict[str, Any]) -> None:
    lying, people = scene(kv, options)
    (keys, _), *_ = held_view(lying, people).ragged(0)
    cache: Any = lying.cache
    owners = [pair[0] for pair in cache.tensors[people[0].index]] if kv == "cat" else [cache.pool.keys]
    shares = any(keys.untyped_storage().data_ptr() == owner.untyped_storage().data_ptr() for owner in owners)
    assert shares == (cache.copied_bytes == 0)


def even_rows(*lengths: int, reserve: str = "max_len") -> tuple[Lying, Any]:
    """A preallocated cache whose sequences take regions of 64 slots, one behind another."""
    lying = Lying("preallocated", {"reserve": reserve}, SPEC)
    people = lying.fill(*lengths)
    return lying, held_view(lying, people)


@pytest.mark.parametrize("lengths", [(9, 16, 1, 30), (64, 64), (1,), (64,) * 16])
def test_regions_in_even_steps_are_a_rectangle_read_in_place(lengths: tuple[int, ...]) -> None:
    lying, view = even_rows(*lengths)
    for layer in range(2):
        keys, values = view.padded(layer)
        assert keys.shape == values.shape == (len(lengths), max(lengths), 3, 4)
        for row, length in enumerate(lengths):
            assert torch.equal(keys[row, :length], lying.keys[row][layer]) and torch.equal(values[row, :length], lying.values[row][layer])
        assert keys.isfinite().all() and values.isfinite().all(), "regions are cleared when taken"
    pool: Any = lying.cache
    assert lying.cache.copied_bytes == 0
    assert keys.untyped_storage().data_ptr() == pool.pool.keys.untyped_storage().data_ptr()


def test_regions_in_uneven_steps_or_another_order_are_gathered() -> None:
    lying, _ = even_rows(9, 16, 1, 30)
    rows = [Row(Sequence(lying.sequence(1).request, index), length, 0) for index, length in ((2, 1), (0, 9), (1, 16))]
    lying.cache.view(rows).padded(0)
    assert lying.cache.copied_bytes == 3 * 16 * ONE_LAYER
    lying, view = even_rows(9, 16, 1, reserve="exact")
    view.padded(0)
    assert lying.cache.copied_bytes == 3 * 16 * ONE_LAYER


def test_a_region_shorter_than_the_longest_row_is_no_part_of_a_rectangle() -> None:
    """Regions of 8, 8 and 8 slots with holes between them, and 31 at the end: even steps, but the holes hold anything."""
    lying = Lying("preallocated", {"reserve": "exact"}, SPEC)
    people = [one for _ in range(3) for one in lying.fill(1, 25)]
    for hole in people[1::2]:
        lying.cache.release(hole)
    (long,) = lying.fill(24)
    short = people[::2]
    cache: Any = lying.cache
    assert [cache.regions[one.index][0] for one in [*short, long]] == [0, 40, 80, 8], "the long one took the first hole"
    lying.cache.copied_bytes = 0
    held_view(lying, short).padded(0)
    assert lying.cache.copied_bytes == 0, "all as short as their regions"
    held_view(lying, [short[0], long]).padded(0)
    assert lying.cache.copied_bytes == 2 * 24 * ONE_LAYER


@every_cache
def test_blocks_cost_nothing_where_there_is_a_pool(kv: str, options: dict[str, Any]) -> None:
    assert copies(kv, options, lambda view: view.blocks(0)) == (56 if kv == "cat" else 0)


@every_cache
def test_only_growth_by_concatenation_pays_for_writing(kv: str, options: dict[str, Any]) -> None:
    """9 + 16 old tokens are moved in each of two layers when the two sequences get one more each."""
    lying, (a, b, *_) = scene(kv, options)
    lying.write([lying.row(a, 1), lying.row(b, 1)])
    assert lying.cache.copied_bytes == (2 * 25 * ONE_LAYER if kv == "cat" else 0)
    assert lying.cache.peak_extra_bytes == (30 // 5 * 5 - 5) * ONE_LAYER * (kv == "cat"), "at most 25 old tokens stood beside the new copy"


def test_the_bytes_of_a_token_are_those_of_the_metrics_text() -> None:
    assert KVSpec(28, 8, 128, 2).bytes_per_token == 114_688
    assert KVSpec(30, 3, 64, 4).bytes_per_token == 46_080
