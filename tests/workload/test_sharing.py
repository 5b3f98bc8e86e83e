"""Shared beginnings are a checked tree; an id changes only where two siblings would begin alike; ideal hits are worked by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.workload import sharing
from cbbench.workload.prompts import PromptRecipe, TokenSource, first_code
from cbbench.workload.sharing import STRIDE, TAIL, PrefixHits, PrefixTree

RECIPE = PromptRecipe(seed=3, namespace="n", block_tokens=16)
law = settings(max_examples=150, deadline=None, derandomize=True)


def coarse(_: PromptRecipe, scope: str, block: int) -> int:
    """Four first codes: everything collides."""
    return first_code(RECIPE, scope, block) >> 12


@pytest.fixture
def few_codes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sharing, "FIRST_TOKENS", 4)
    monkeypatch.setattr(sharing, "first_code", coarse)
    yield


def same_but_for_names(block: int, placed: int) -> bool:
    return placed >= block and (placed - block) % STRIDE == 0


def test_a_block_behind_two_different_ones_is_refused_with_both_named() -> None:
    tree = PrefixTree(RECIPE)
    tree.place("", [0, 1, 2])
    with pytest.raises(ValueError, match=r"^block 2 stands behind 0, before it stood behind 1$"):
        tree.place("", [0, 2])
    with pytest.raises(ValueError, match=r"^block 1 stands behind nothing, before it stood behind 0$"):
        tree.place("", [1])
    with pytest.raises(ValueError, match=r"^block 0 stands behind 0, before it stood behind nothing$"):
        tree.place("", [0, 0])


def test_the_same_ids_of_another_scope_are_other_blocks() -> None:
    tree = PrefixTree(RECIPE)
    tree.place("a", [0, 1, 2])
    assert [same_but_for_names(*pair) for pair in zip([2, 1], tree.place("b", [2, 1]), strict=True)] == [True, True]


def test_where_it_need_be_no_tree_a_block_keeps_the_name_it_got_first() -> None:
    tree = PrefixTree(RECIPE)
    first = tree.place("", [0, 1, 2], must_be_tree=False)
    assert tree.place("", [2, 0, 1], must_be_tree=False) == [first[2], first[0], first[1]]


def test_what_was_refused_spoils_nothing_for_the_rows_behind_it() -> None:
    tree = PrefixTree(RECIPE)
    first = tree.place("", [0, 1, 2])
    with pytest.raises(ValueError, match="block 2"):
        tree.place("", [0, 2, 5])
    assert tree.place("", [0, 1, 2]) == first


def test_ids_change_only_where_siblings_would_begin_alike() -> None:
    """The first of each first code keeps its id, and everyone else is moved by whole strides."""
    tree, codes = PrefixTree(RECIPE), set()
    moved = 0
    for block in range(1, 3000):
        placed = tree.place("", [block])[0]
        own = first_code(RECIPE, "", block)
        assert same_but_for_names(block, placed) and (placed == block) == (own not in codes), block
        codes.add(first_code(RECIPE, "", placed))
        moved += placed != block
    assert len(codes) == 2999 and tree.collisions == 0 and 150 < moved < 400, "about n**2 / 2 / 2**14"


def test_only_siblings_are_told_apart() -> None:
    """A chain of 3,000 blocks has as many collisions of first codes, and no block of it changes."""
    chain = list(range(3000))
    assert PrefixTree(RECIPE).place("", chain) == chain


@law
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=30))
def test_names_are_one_to_one_and_the_same_every_time(paths: list[list[int]]) -> None:
    one, two = PrefixTree(RECIPE), PrefixTree(RECIPE)
    named: dict[int, int] = {}
    for path in paths:
        ids = [int("1" + "".join(map(str, path[: depth + 1]))) for depth in range(len(path))]
        placed = one.place("s", ids)
        assert placed == two.place("s", ids)
        for block, name in zip(ids, placed, strict=True):
            assert named.setdefault(block, name) == name and same_but_for_names(block, name)
    assert len(set(named.values())) == len(named)


@pytest.mark.usefixtures("few_codes")
def test_more_siblings_than_first_tokens_are_counted_and_keep_their_ids() -> None:
    tree = PrefixTree(RECIPE)
    placed = [tree.place("", [9, block])[1] for block in range(10, 40)]
    assert tree.collisions == 26 and placed[4:] == list(range(14, 40))
    assert {coarse(RECIPE, "", name) for name in placed[:4]} == {0, 1, 2, 3}, "the first four still differ"
    assert [tree.place("", [9, block])[1] for block in range(10, 40)] == placed and tree.collisions == 26, "known by now"


@pytest.mark.usefixtures("few_codes")
def test_a_window_later_in_the_file_has_the_names_of_the_whole_file() -> None:
    """Because rows before it pass through the tree; without them other names come out."""
    rows = [[0, block] for block in range(1, 5)]
    whole = PrefixTree(RECIPE)
    names = [whole.place("", row) for row in rows]
    again = PrefixTree(RECIPE)
    assert [again.place("", row) for row in rows][2:] == names[2:]
    alone = PrefixTree(RECIPE)
    assert [alone.place("", row) for row in rows[2:]] != names[2:]


def test_names_of_unshared_ends_are_no_names_of_blocks_and_fit_a_file() -> None:
    """Ids of a trace are below TAIL, lines are below 2**39 too; thousands of strides fit 63 bits."""
    assert TAIL + TAIL <= STRIDE and TAIL - 1 + 1000 * STRIDE < 2**63
    tree = PrefixTree(RECIPE)
    placed = [tree.place("", [0, TAIL + line])[1] for line in range(1, 9000)]
    assert len(set(placed)) == 8999 and max(placed) < 2**63 and all(name % STRIDE >= TAIL for name in placed)
    source = TokenSource(RECIPE, np.arange(1 << 14))
    assert len({int(source.block("", name, 1)[0]) for name in placed}) == 8999


def hits(*prompts: tuple[str, list[int], list[int]]) -> list[int]:
    """Hit tokens of each prompt, given as scope, ids and sizes."""
    cache, found = PrefixHits(), []
    for scope, ids, sizes in prompts:
        before = cache.hit_tokens
        cache.add(zip(((scope, block) for block in ids), sizes, strict=True))
        found.append(cache.hit_tokens - before)
    return found


@pytest.mark.parametrize(
    ("prompts", "found"),
    [
        ([("", [1, 2], [16, 4]), ("", [1, 2], [16, 4])], [0, 20]),
        ([("", [1, 2], [16, 4]), ("", [1, 3], [16, 4])], [0, 16]),
        ([("", [1, 2], [16, 4]), ("", [9, 2], [16, 4])], [0, 0]),
        ([("", [1, 2, 3], [16, 16, 4]), ("", [1, 9, 3], [16, 16, 4])], [0, 16]),
        ([("a", [1], [16]), ("b", [1], [16]), ("a", [1], [16])], [0, 0, 16]),
        ([("", [1, 2], [16, 4]), ("", [1, 2, 3], [16, 16, 1]), ("", [1, 2, 3], [16, 16, 2])], [0, 20, 33]),
        ([("", [1, 2, 3], [16, 16, 1]), ("", [1, 2], [16, 4])], [0, 20]),
        ([("", [1], [16]), ("", [1], [3]), ("", [1], [16])], [0, 3, 16]),
        ([("", [], []), ("", [1], [1])], [0, 0]),
    ],
    ids=[
        "the same again", "another end", "another beginning", "behind a miss nothing hits", "scopes", "a partial block ends the run",
        "a partial block of a whole one", "a short one forgets nothing", "no blocks",
    ],
)  # fmt: skip
def test_prefix_hits_by_hand(prompts: list[tuple[str, list[int], list[int]]], found: list[int]) -> None:
    assert hits(*prompts) == found


@law
@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(1, 4)), min_size=1, max_size=12))
def test_hits_are_the_longest_common_beginning_with_any_prompt_before(paths: list[tuple[list[int], int]]) -> None:
    """Reckoned a second time from token ids, on prompts of any tree."""
    tree, source = PrefixTree(RECIPE), TokenSource(RECIPE.model_copy(update={"block_tokens": 4}), np.arange(1 << 14))
    prompts, texts = [], []
    for path, tail in paths:
        ids = tree.place("", [int("1" + "".join(map(str, path[: depth + 1]))) for depth in range(len(path))])
        sizes = [4] * (len(ids) - 1) + [tail]
        prompts.append(("", ids, sizes))
        texts.append([int(t) for block, size in zip(ids, sizes, strict=True) for t in source.block("", block, size)])
    longest = [
        max((next((at for at in range(min(len(a), len(b))) if a[at] != b[at]), min(len(a), len(b))) for b in texts[:index]), default=0)
        for index, a in enumerate(texts)
    ]
    assert hits(*prompts) == longest
