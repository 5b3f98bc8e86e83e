"""Lengths made to fit a model: every policy by hand, and what none of them may break. A prompt's first tokens always stay."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.importers.base import TraceRow
from cbbench.importing.fitting import Fit, Fitted, Policy, fit, largest_block, scaled
from cbbench.workload.prompts import block_sizes
from cbbench.workload.sharing import PrefixHits

law = settings(max_examples=300, deadline=None, derandomize=True)
Lengths = list[tuple[int, int]]


def rows(*lengths: tuple[int, int], size: int | None = None) -> list[TraceRow]:
    """(prompt, output) tokens; with `size` also as many blocks as the prompt needs, all shared."""
    made = [TraceRow(line, prompt, output, id=str(line)) for line, (prompt, output) in enumerate(lengths, 1)]
    for row in made:
        row.blocks = list(range(ceil((row.prompt_tokens or 0) / size))) if size else None
    return made


def lengths(fitted: Fitted) -> Lengths:
    return [(row.prompt_tokens or 0, row.output_tokens or 0) for row in fitted.rows]


def fit_by_hand(given: Lengths, **wanted: Any) -> tuple[Lengths, dict[str, int], int]:
    fitted = fit(rows(*given), None, Fit(**wanted))
    return lengths(fitted), dict(fitted.dropped), fitted.num_clipped


def test_without_a_limit_nothing_changes() -> None:
    for policy in Policy:
        assert fit_by_hand([(10, 5), (10**6, 10**6)], policy=policy) == ([(10, 5), (10**6, 10**6)], {}, 0)


def test_drop_leaves_out_what_is_longer_than_the_limit_and_says_how_many() -> None:
    assert fit_by_hand([(10, 5), (10, 6), (15, 1), (1, 14), (99, 1)], max_tokens=15) == ([(10, 5), (1, 14)], {"too long": 3}, 0)


@pytest.mark.parametrize(
    ("given", "left"),
    [((90, 10), (90, 10)), ((91, 10), (90, 10)), ((5000, 40), (60, 40)), ((5000, 99), (1, 99)), ((5000, 100), (1, 99)),
     ((5, 5000), (1, 99)), ((1, 99), (1, 99)), ((1, 100), (1, 99))],
)  # fmt: skip
def test_clip_prompt_keeps_the_output_unless_it_leaves_no_room(given: tuple[int, int], left: tuple[int, int]) -> None:
    assert fit_by_hand([given], max_tokens=100, policy=Policy.clip_prompt) == ([left], {}, int(given != left))


@pytest.mark.parametrize(
    ("given", "left"),
    [((90, 10), (90, 10)), ((150, 50), (75, 25)), ((100, 300), (25, 75)), ((1000, 1), (99, 1)), ((1, 1000), (1, 99)), ((3, 300), (1, 99)),
     ((100, 1), (99, 1))],
)  # fmt: skip
def test_clip_both_keeps_the_proportion(given: tuple[int, int], left: tuple[int, int]) -> None:
    assert fit_by_hand([given], max_tokens=100, policy=Policy.clip_both) == ([left], {}, int(given != left))


def test_scale_without_blocks_is_one_factor_for_all() -> None:
    fitted = fit(rows((150, 50), (40, 10), (1, 1)), None, Fit(100, Policy.scale))
    assert (lengths(fitted), fitted.scale, fitted.dropped, fitted.num_clipped) == ([(75, 25), (20, 5), (1, 1)], 0.5, {}, 0)
    fitted = fit(rows((30, 10)), None, Fit(100, Policy.scale))
    assert (lengths(fitted), fitted.scale) == ([(30, 10)], 1.0), "nothing is stretched"
    assert fit([], None, Fit(100, Policy.scale)).rows == [] == fit([], 512, Fit(100, Policy.scale)).rows


def test_scale_with_blocks_takes_the_largest_block_at_which_all_fit() -> None:
    fitted = fit(rows((1200, 100), (512, 512), size=512), 512, Fit(300, Policy.scale))
    size = fitted.block_tokens or 0
    assert size == 118 and fitted.scale == size / 512 and not fitted.dropped
    assert lengths(fitted) == [(2 * size + ceil(176 * size / 512), round(100 * size / 512)), (size, size)] == [(277, 23), (118, 118)]
    assert [row.blocks for row in fitted.rows] == [[0, 1, 2], [0]]
    assert fit(rows((100, 10), size=512), 512, Fit(300, Policy.scale)).block_tokens == 512


def test_scale_drops_by_name_what_fits_at_no_size() -> None:
    fitted = fit(rows((5120, 1), (100, 1), size=512), 512, Fit(8, Policy.scale))
    assert (fitted.block_tokens, lengths(fitted), dict(fitted.dropped)) == (1, [(1, 1)], {"too long": 1})


def test_an_output_scale_is_the_outputs_own_factor() -> None:
    given = [(100, 10), (100, 1), (100, 15), (100, 25)]
    assert fit_by_hand(given, output_scale=0.1)[0] == [(100, 1), (100, 1), (100, 2), (100, 2)], "one at least; round half to even"
    assert fit_by_hand([(100, 10)], output_scale=2.5)[0] == [(100, 25)]
    fitted = fit(rows((1024, 100), size=512), 512, Fit(300, Policy.scale, output_scale=0.5))
    assert (fitted.block_tokens, lengths(fitted)) == (125, [(250, 50)]), "blocks shrink until the scaled output has room"


def test_an_output_scale_counts_before_the_factor_of_scale_is_chosen_without_blocks_too() -> None:
    """With blocks it does (above)."""
    fitted = fit(rows((60, 1000)), None, Fit(100, Policy.scale, output_scale=0.01))
    assert lengths(fitted) == [(60, 10)]


def test_the_limit_counts_after_blocks_and_outputs_are_scaled() -> None:
    fitted = fit(rows((5120, 400), (10240, 400), size=512), 512, Fit(400, block_tokens=32, output_scale=0.1))
    assert (lengths(fitted), dict(fitted.dropped)) == ([(320, 40)], {"too long": 1})


@pytest.mark.parametrize(
    ("prompt", "size", "left", "blocks"),
    [(512, 32, 32, 1), (1, 32, 1, 1), (16, 32, 1, 1), (17, 32, 2, 1), (511, 32, 32, 1), (513, 32, 33, 2), (1200, 32, 75, 3),
     (1200, 8, 19, 3), (1024, 1, 2, 2), (1025, 1, 3, 3), (700, 512, 700, 2)],
)  # fmt: skip
def test_smaller_blocks_keep_whole_ones_whole_and_of_a_begun_one_its_share(prompt: int, size: int, left: int, blocks: int) -> None:
    """(full blocks) x new + ceil(tail x new / 512)."""
    fitted = fit(rows((prompt, 7), size=512), 512, Fit(block_tokens=size))
    assert lengths(fitted) == [(left, 7)] and scaled(prompt, 512, size) == left and fitted.block_tokens == size
    assert len(fitted.rows[0].blocks or ()) == blocks


def test_clipping_keeps_the_first_blocks_and_the_first_ids_and_drops_a_text_that_spells_more() -> None:
    (row,) = fit(rows((2000, 50), size=512), 512, Fit(600, Policy.clip_prompt)).rows
    assert (row.prompt_tokens, row.blocks) == (550, [0, 1])
    (row,) = fit(rows((2000, 88), size=512), 512, Fit(600, Policy.clip_prompt)).rows
    assert (row.prompt_tokens, row.blocks) == (512, [0]), "an exact multiple needs no begun block"
    written = TraceRow(1, 6, 4, prompt="a b c", prompt_ids=[1, 2, 3, 4, 5, 6])
    assert fit([written], None, Fit(8, Policy.clip_prompt)).rows == [TraceRow(1, 4, 4, prompt_ids=[1, 2, 3, 4])]
    kept = TraceRow(1, 3, 4, prompt="a b c", prompt_ids=[1, 2, 3])
    assert fit([kept], None, Fit(8, Policy.clip_prompt)).rows[0].prompt == "a b c"


@st.composite
def asked(draw: st.DrawFn) -> tuple[list[TraceRow], int | None, Fit]:
    size = draw(st.sampled_from([None, 4, 16, 512]))
    length = st.one_of(st.integers(1, 40), st.integers(1, 5000), st.sampled_from([512, 1024, 10**6]))
    made = rows(*draw(st.lists(st.tuples(length, length), max_size=8)), size=size)
    for row in made:
        if size is None and (row.prompt_tokens or 0) <= 40 and draw(st.booleans()):
            row.prompt_ids, row.prompt = list(range(row.prompt_tokens or 0)), "text"
    limit = draw(st.one_of(st.none(), st.integers(2, 50), st.integers(2, 6000)))
    shrink = draw(st.sampled_from([None, 1, 3, 4])) if size else None
    return made, size, Fit(limit, draw(st.sampled_from(list(Policy))), shrink, draw(st.sampled_from([None, 0.01, 0.5, 3.0])))


@law
@given(asked())
def test_after_any_policy_every_row_has_a_prompt_and_an_output_and_fits_or_is_counted(case: tuple[list[TraceRow], int | None, Fit]) -> None:
    given_rows, size, wanted = case
    before = {row.id: (list(row.prompt_ids or ()), list(row.blocks or ())) for row in given_rows}
    fitted = fit(given_rows, size, wanted)
    assert len(before) == len(fitted.rows) + fitted.dropped.total() and set(fitted.dropped) <= {"too long"}
    assert 0 <= fitted.num_clipped <= len(fitted.rows)
    for row in fitted.rows:
        prompt, output = row.prompt_tokens or 0, row.output_tokens or 0
        assert prompt >= 1 and output >= 1 and (wanted.max_tokens is None or prompt + output <= wanted.max_tokens)
        ids, blocks = before[row.id]
        assert row.prompt_ids is None or (row.prompt_ids == ids[:prompt] and len(row.prompt_ids) == prompt)
        assert row.prompt is None or row.prompt_ids == ids
        if row.blocks is not None:
            now = fitted.block_tokens or 0
            assert list(row.blocks) == blocks[: len(row.blocks)] and len(row.blocks) == ceil(prompt / now)
            assert 1 <= block_sizes(prompt, len(row.blocks), now)[-1] <= now


def hit_blocks(made: Sequence[TraceRow], size: int) -> list[int]:
    """Whole leading blocks of each row that an endless cache would have held."""
    hits, found = PrefixHits(), []
    for row in made:
        whole = [((row.scope, block), 1) for block in (row.blocks or ())[: (row.prompt_tokens or 0) // size]]
        before = hits.hit_tokens
        hits.add(whole)
        found.append(hits.hit_tokens - before)
    return found


@law
@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 512)), max_size=10), st.integers(1, 512))
def test_smaller_blocks_share_what_the_large_ones_shared(paths: list[tuple[list[int], int]], size: int) -> None:
    made = [TraceRow(line, 512 * (len(path) - 1) + tail, 1, blocks=path) for line, (path, tail) in enumerate(paths)]
    for row in made:
        row.blocks = [int("1" + "".join(map(str, list(row.blocks or ())[: depth + 1]))) for depth in range(len(row.blocks or ()))]
    whole = [(list(row.blocks or ()), (row.prompt_tokens or 0) % 512) for row in made]
    before = hit_blocks(made, 512)
    fitted = fit(made, 512, Fit(block_tokens=size))
    assert [list(row.blocks or ()) for row in fitted.rows] == [blocks for blocks, _ in whole]
    # a begun block may come out whole (511 of 512 -> 32 of 32): then at most it is shared in addition
    added = [after - was for after, was in zip(hit_blocks(fitted.rows, size), before, strict=True)]
    assert all(extra in (0, 1) for extra in added) and (any(tail for _, tail in whole) or not any(added))


@law
@given(st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 4000)), max_size=6), st.integers(2, 5000), st.sampled_from([None, 0.25]))
def test_no_larger_block_would_fit(given_lengths: Lengths, limit: int, output_scale: float | None) -> None:
    def longest(size: int) -> int:
        factor = size / 512 if output_scale is None else output_scale
        return max((scaled(prompt, 512, size) + max(1, round(output * factor)) for prompt, output in given_lengths), default=0)

    size = largest_block(rows(*given_lengths), 512, limit, output_scale)
    assert size == max((s for s in range(1, 513) if longest(s) <= limit), default=1)
