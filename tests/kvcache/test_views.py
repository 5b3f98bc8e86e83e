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
from tests.support.filled_cache import CACHE_ARMS, FilledCache

SPEC = KVSpec(num_layers=2, num_kv_heads=3, head_dim=4, itemsize=4)
ONE_LAYER = SPEC.bytes_per_token // SPEC.num_layers  # bytes of a token's keys and values in one layer
every_cache = pytest.mark.parametrize(
    ("kv", "options"), CACHE_ARMS, ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values()))
)


def scene(kv: str, options: dict[str, Any]) -> tuple[FilledCache, list[Sequence]]:
    """Four sequences of 9, 16, 1 and 30 tokens, in memory that others have left their keys in."""
    filled = FilledCache(kv, options, SPEC)
    passers_by = filled.fill(7, 20, 3)
    stay = filled.fill(9, 16)
    for one in passers_by:
        filled.cache.release(one)
    stay += filled.fill(1, 30)
    filled.cache.copied_bytes = 0
    return filled, stay


def held_view(filled: FilledCache, sequences: list[Sequence]) -> Any:
    return filled.cache.view([Row(s, s.num_computed, 0) for s in sequences])


def test_every_cache_is_in_these_tests() -> None:
    assert {kv for kv, _ in CACHE_ARMS} == set(CACHES)


@every_cache
def test_ragged_is_each_rows_keys(kv: str, options: dict[str, Any]) -> None:
    filled, people = scene(kv, options)
    view = held_view(filled, people)
    for layer in range(2):
        rows = view.ragged(layer)
        assert len(rows) == 4
        for one, (keys, values) in zip(people, rows, strict=True):
            assert torch.equal(keys, filled.keys[one.index][layer]) and torch.equal(values, filled.values[one.index][layer])


@every_cache
def test_padded_is_each_rows_keys_and_finite_behind_them(kv: str, options: dict[str, Any]) -> None:
    filled, people = scene(kv, options)
    for layer in range(2):
        keys, values = held_view(filled, people).padded(layer)
        assert keys.shape == values.shape == (4, 30, 3, 4)
        assert keys.isfinite().all() and values.isfinite().all(), "0 x NaN is NaN: poison behind a length would show"
        for line, one in enumerate(people):
            assert torch.equal(keys[line, : one.num_computed], filled.keys[one.index][layer])
            assert torch.equal(values[line, : one.num_computed], filled.values[one.index][layer])


@every_cache
def test_packed_is_all_keys_in_row_order_with_borders(kv: str, options: dict[str, Any]) -> None:
    filled, people = scene(kv, options)
    view = held_view(filled, people)
    assert view.cu_seqlens.tolist() == [0, 9, 25, 26, 56] and view.cu_seqlens.dtype == "int32"
    for layer in range(2):
        keys, values = view.packed(layer)
        assert torch.equal(keys, torch.cat([filled.keys[one.index][layer] for one in people]))
        assert torch.equal(values, torch.cat([filled.values[one.index][layer] for one in people]))


@every_cache
def test_the_pool_has_each_position_where_the_table_of_entries_says(kv: str, options: dict[str, Any]) -> None:
    filled, people = scene(kv, options)
    view = held_view(filled, people)
    table, run = view.entries.first_RM, view.entries.run
    assert table.dtype == "int64" and len(table) == 4
    for layer in range(2):
        keys, values = view.pool(layer)
        for line, one in enumerate(people):
            entries = [int(table[line, p // run]) + p % run for p in range(one.num_computed)]
            assert torch.equal(keys[entries], filled.keys[one.index][layer]) and torch.equal(
                values[entries], filled.values[one.index][layer]
            )


@every_cache
def test_only_memory_in_blocks_says_that_it_has_pages(kv: str, options: dict[str, Any]) -> None:
    """An arena of a size that a kernel takes for a page, or a longest row of that length, is none."""
    filled, people = scene(kv, options)
    view = held_view(filled, people)
    if kv not in ("paged", "prefix"):
        assert view.pages is None
        return
    pages = view.pages
    assert pages.block_table_RM.dtype == "int32" and pages.block_size == options["block_size"]
    keys = view.pool(0)[0].unflatten(0, (-1, pages.block_size))
    for line, one in enumerate(people):
        blocks = pages.block_table_RM[line, : -(-one.num_computed // pages.block_size)].tolist()
        assert torch.equal(keys[blocks].flatten(0, 1)[: one.num_computed], filled.keys[one.index][0])


@every_cache
def test_no_form_shows_memory_that_was_never_written(kv: str, options: dict[str, Any]) -> None:
    filled, people = scene(kv, options)
    view = held_view(filled, people)
    parts = [x for pair in view.ragged(0) for x in pair] + [*view.padded(0), *view.packed(0)]
    assert not any(part.isnan().any() for part in parts)
    pool: Any = getattr(filled.cache, "pool", None)
    assert pool is None or pool.keys.isnan().any(), "there was poison to show"


@every_cache
def test_each_row_may_have_any_number_of_new_tokens(kv: str, options: dict[str, Any]) -> None:
    """A pass of a chunk, a decode, a whole prompt and a held row; the others' keys stay as they are."""
    filled, people = scene(kv, options)
    chunked, decoding, held, other = people
    fresh = filled.sequence(6)
    view = filled.write([filled.row(chunked, 3), filled.row(decoding, 1), filled.row(fresh, 6), filled.row(held, 0)])
    assert view.lengths == [12, 17, 6, 1]
    for one, (keys, values) in zip((chunked, decoding, fresh, held), view.ragged(1), strict=True):
        assert torch.equal(keys, filled.keys[one.index][1]) and torch.equal(values, filled.values[one.index][1])
    ((keys, _),) = held_view(filled, [other]).ragged(1)
    assert torch.equal(keys, filled.keys[other.index][1])


# What a form costs: lengths 9, 16, 1, 30 are 56 tokens, 4 x 30 = 120 in a rectangle.


def copies(kv: str, options: dict[str, Any], read: Callable[[Any], object]) -> int:
    """Tokens of one layer that a read copied."""
    filled, people = scene(kv, options)
    read(held_view(filled, people))
    assert filled.cache.copied_bytes % ONE_LAYER == 0
    return filled.cache.copied_bytes // ONE_LAYER


@every_cache
def test_packed_copies_every_token_and_padded_the_whole_rectangle(kv: str, options: dict[str, Any]) -> None:
    assert copies(kv, options, lambda view: view.packed(0)) == 56
    assert copies(kv, options, lambda view: view.padded(1)) == 120


@every_cache
def test_contiguous_ragged_views_cost_nothing_and_scattered_ones_a_gather(kv: str, options: dict[str, Any]) -> None:
    scattered = kv in ("paged", "prefix") and options["block_size"] < 30
    assert copies(kv, options, lambda view: view.ragged(0)) == (56 if scattered else 0)


@every_cache
def test_ragged_views_that_cost_nothing_share_the_caches_memory(kv: str, options: dict[str, Any]) -> None:
    filled, people = scene(kv, options)
    (keys, _), *_ = held_view(filled, people).ragged(0)
    cache: Any = filled.cache
    owners = [pair[0] for pair in cache.tensors[people[0].index]] if kv == "cat" else [cache.pool.keys]
    shares = any(keys.untyped_storage().data_ptr() == owner.untyped_storage().data_ptr() for owner in owners)
    assert shares == (cache.copied_bytes == 0)


def even_rows(*lengths: int, reserve: str = "max_len") -> tuple[FilledCache, Any]:
    """A preallocated cache whose sequences take regions of 64 slots, one behind another."""
    filled = FilledCache("preallocated", {"reserve": reserve}, SPEC)
    people = filled.fill(*lengths)
    return filled, held_view(filled, people)


@pytest.mark.parametrize("lengths", [(9, 16, 1, 30), (64, 64), (1,), (64,) * 16])
def test_regions_in_even_steps_are_a_rectangle_read_in_place(lengths: tuple[int, ...]) -> None:
    filled, view = even_rows(*lengths)
    for layer in range(2):
        keys, values = view.padded(layer)
        assert keys.shape == values.shape == (len(lengths), max(lengths), 3, 4)
        for row, length in enumerate(lengths):
            assert torch.equal(keys[row, :length], filled.keys[row][layer]) and torch.equal(values[row, :length], filled.values[row][layer])
        assert keys.isfinite().all() and values.isfinite().all(), "regions are cleared when taken"
    pool: Any = filled.cache
    assert filled.cache.copied_bytes == 0
    assert keys.untyped_storage().data_ptr() == pool.pool.keys.untyped_storage().data_ptr()


def test_regions_in_uneven_steps_or_another_order_are_gathered() -> None:
    filled, _ = even_rows(9, 16, 1, 30)
    rows = [Row(Sequence(filled.sequence(1).request, index), length, 0) for index, length in ((2, 1), (0, 9), (1, 16))]
    filled.cache.view(rows).padded(0)
    assert filled.cache.copied_bytes == 3 * 16 * ONE_LAYER
    filled, view = even_rows(9, 16, 1, reserve="exact")
    view.padded(0)
    assert filled.cache.copied_bytes == 3 * 16 * ONE_LAYER


def test_a_region_shorter_than_the_longest_row_is_no_part_of_a_rectangle() -> None:
    """Regions of 8, 8 and 8 slots with holes between them, and 31 at the end: even steps, but the holes hold anything."""
    filled = FilledCache("preallocated", {"reserve": "exact"}, SPEC)
    people = [one for _ in range(3) for one in filled.fill(1, 25)]
    for hole in people[1::2]:
        filled.cache.release(hole)
    (long,) = filled.fill(24)
    short = people[::2]
    cache: Any = filled.cache
    assert [cache.regions[one.index][0] for one in [*short, long]] == [0, 40, 80, 8], "the long one took the first hole"
    filled.cache.copied_bytes = 0
    held_view(filled, short).padded(0)
    assert filled.cache.copied_bytes == 0, "all as short as their regions"
    held_view(filled, [short[0], long]).padded(0)
    assert filled.cache.copied_bytes == 2 * 24 * ONE_LAYER


@every_cache
def test_blocks_cost_nothing_where_there_is_a_pool(kv: str, options: dict[str, Any]) -> None:
    assert copies(kv, options, lambda view: view.pool(0)) == (56 if kv == "cat" else 0)


@every_cache
def test_only_growth_by_concatenation_pays_for_writing(kv: str, options: dict[str, Any]) -> None:
    """9 + 16 old tokens are moved in each of two layers when the two sequences get one more each."""
    filled, (a, b, *_) = scene(kv, options)
    filled.write([filled.row(a, 1), filled.row(b, 1)])
    assert filled.cache.copied_bytes == (2 * 25 * ONE_LAYER if kv == "cat" else 0)
    assert filled.cache.peak_extra_bytes == (30 // 5 * 5 - 5) * ONE_LAYER * (kv == "cat"), "at most 25 old tokens stood beside the new copy"


def test_the_bytes_of_a_token_are_those_of_the_metrics_text() -> None:
    assert KVSpec(28, 8, 128, 2).bytes_per_token == 114_688
    assert KVSpec(30, 3, 64, 4).bytes_per_token == 46_080
