"""Prompts given by length are the same tokens for everyone, for ever, and alike exactly as far as their blocks are."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise, takewhile
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.model.model import vocabulary
from cbbench.workload import prompts
from cbbench.workload.prompts import FIRST_TOKENS, WORDS, HashedPrompt, PromptRecipe, TokenSource, block_sizes
from cbbench.workload.rows import RequestRow, Rows, Vocabulary, to_requests
from cbbench.workload.sharing import PrefixTree
from tests.support.commands import ENVIRONMENT
from tests.support.engines import tiny

RECIPE = PromptRecipe(seed=7, namespace="conversation_trace", block_tokens=16)
SOURCE = TokenSource(RECIPE, np.arange(49_000))
law = settings(max_examples=100, deadline=None, derandomize=True)

# A published workload gives lengths and block ids: these numbers may never change.
GOLDEN_BLOCKS = "152 2260 46945 22771 31321 48132 100 15297 6504 45852 45549 18298 43953 29124 4461 31336 25463 25459 47578 9569"
GOLDEN_NAMED = "19125 25956 13116 22607 36247 28421 8047 38812"
GOLDEN_TINY = "102 114 42 56 136 153 237 77"


def prompt(length: int, blocks: list[int] | None = None, name: str = "a", scope: str = "", source: TokenSource = SOURCE) -> HashedPrompt:
    return HashedPrompt(source, length, name, blocks, scope)


def common(one: HashedPrompt, two: HashedPrompt) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))


def test_these_tokens_stay_as_they_are_in_every_version() -> None:
    assert " ".join(map(str, prompt(20, [3, 1 << 40], scope="s").ids)) == GOLDEN_BLOCKS
    assert " ".join(map(str, prompt(8, name="request-1").ids)) == GOLDEN_NAMED
    assert " ".join(map(str, prompt(8, [0], source=TokenSource(PromptRecipe(), np.arange(3, 300))).ids)) == GOLDEN_TINY, (
        "a small vocabulary"
    )


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_another_process_with_another_hash_seed_makes_the_same_tokens(hash_seed: str) -> None:
    code = f"""import json, numpy
from cbbench.workload.prompts import *
source = TokenSource(PromptRecipe(seed=7, namespace={RECIPE.namespace!r}, block_tokens=16), numpy.arange(49_000))
print(json.dumps([HashedPrompt(source, 100, "", range(5, 12), "s").ids, HashedPrompt(source, 9, "a").ids]))"""
    environment = ENVIRONMENT | {"PYTHONHASHSEED": hash_seed}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert json.loads(ended.stdout) == [list(prompt(100, [5, 6, 7, 8, 9, 10, 11], scope="s")), list(prompt(9))]


def rows(count: int) -> list[RequestRow]:
    lengths = [20 + index % 13 for index in range(count)]
    made = [
        RequestRow(id=f"r{i}", prompt_tokens=n, blocks=[0, i % 5 + 1, i + 10][: -(-n // 16)], max_new_tokens=1)
        for i, n in enumerate(lengths)
    ]
    return made + [RequestRow(id=f"plain{i}", prompt_tokens=5 + i, max_new_tokens=1) for i in range(count)]


@law
@given(picked=st.lists(st.integers(0, 59), min_size=1, max_size=20, unique=True))
def test_any_subset_of_the_rows_in_any_order_has_the_tokens_of_the_whole(picked: list[int]) -> None:
    given_rows, vocab = rows(30), Vocabulary(ordinary_ids=np.arange(49_000))
    whole = to_requests(Rows(given_rows, str), vocab, RECIPE)
    some = to_requests(Rows([given_rows[index] for index in picked], str), vocab, RECIPE)
    assert [tuple(r.prompt_ids) for r in some] == [tuple(whole[index].prompt_ids) for index in picked]


@law
@given(short=st.integers(1, 90), more=st.integers(0, 90), seed=st.integers(0, 2**70), scope=st.text(max_size=4), size=st.integers(1, 40))
def test_a_shorter_prompt_is_the_beginning_of_a_longer_one(short: int, more: int, seed: int, scope: str, size: int) -> None:
    source = TokenSource(PromptRecipe(seed=seed, namespace=scope, block_tokens=size), np.arange(100, 50_000))
    blocks = list(range(-(-(short + more) // size)))
    assert prompt(short + more, None, "n", scope, source).ids[:short] == prompt(short, None, "n", scope, source).ids
    long = prompt(short + more, blocks, "n", scope, source)
    assert long.ids[:short] == prompt(short, blocks[: -(-short // size)], "other", scope, source).ids, "the last block cut"
    assert len(long.ids) == len(long) == short + more == sum(size for _, size in long.blocks)


def test_only_ordinary_ids_are_drawn_and_about_equally_often() -> None:
    ordinary = np.setdiff1d(np.arange(1000), [0, 1, 2, 500, 999])
    drawn = np.array(prompt(100_000, source=TokenSource(RECIPE, ordinary)).ids)
    seen, counts = np.unique(drawn, return_counts=True)
    assert seen.tolist() == ordinary.tolist() and counts.min() > 50 and counts.max() < 160, "100 on average"


class FakeTokenizer:
    """Fewer tokens than the model has rows; special ones at the front, in the middle, and added behind."""

    all_special_ids = (1, 2)
    chat_template = None
    added_tokens_decoder: ClassVar = {20: SimpleNamespace(special=True), 21: SimpleNamespace(special=False)}

    def __len__(self) -> int:
        return 40


def fake_config(**ids: Any) -> Any:
    config = SimpleNamespace(vocab_size=64, bos_token_id=1, pad_token_id=None, **ids)
    config.get_text_config = lambda: config
    return config


def test_the_ordinary_ids_of_a_model_are_those_its_tokenizer_spells_less_all_special_ones() -> None:
    found = vocabulary(fake_config(), FakeTokenizer(), frozenset({2, 30})).ordinary_ids
    assert found.tolist() == [i for i in range(40) if i not in (1, 2, 20, 30)], "21 was added and is ordinary"
    assert vocabulary(fake_config(), None, frozenset({2})).ordinary_ids.tolist() == [0, *range(3, 64)]


def test_the_prompts_of_a_model_hold_none_of_its_special_ids() -> None:
    model = tiny()
    (request,) = to_requests(Rows([RequestRow(id="a", prompt_tokens=20_000, max_new_tokens=1)], str), model.vocabulary, PromptRecipe())
    assert set(request.prompt_ids) == set(range(3, 300))


@pytest.mark.parametrize(
    "other",
    [
        prompt(64, [1, 2, 3, 4], scope="t"),
        prompt(64, [5, 6, 7, 8], scope="s"),
        prompt(64, [1 + (1 << 40)] * 4, scope="s"),
        prompt(64, name="1", scope="s"),
        prompt(64, [1, 2, 3, 4], scope="s", source=TokenSource(RECIPE.model_copy(update={"seed": 8}), SOURCE.ordinary_ids)),
        prompt(64, [1, 2, 3, 4], scope="s", source=TokenSource(RECIPE.model_copy(update={"namespace": ""}), SOURCE.ordinary_ids)),
    ],
    ids=["scope", "blocks", "another name of a block", "no blocks", "seed", "namespace"],
)
def test_another_seed_namespace_scope_or_id_gives_other_tokens(other: HashedPrompt) -> None:
    ours = prompt(64, [1, 2, 3, 4], scope="s")
    assert sum(a == b for a, b in zip(ours, other, strict=True)) < 3 and ours.recipe != other.recipe
    assert prompt(64, name="a").ids != prompt(64, name="b").ids


def test_the_names_of_seed_namespace_scope_and_block_cannot_run_into_each_other() -> None:
    parts = [("1", "2"), ("12", ""), ("", "12"), ('1", "2', ""), ("1,2", "")]
    made = {TokenSource(PromptRecipe(namespace=n), WORDS).block(s, block, 4).tobytes() for n, s in parts for block in (3, "3", '"3"')}
    assert len(made) == 15


def test_the_length_costs_no_tokens_and_they_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = TokenSource.block
    monkeypatch.setattr(TokenSource, "block", lambda *given: calls.append(given) or real(*given))
    huge = prompt(10**12, name="huge")
    assert len(huge) == 10**12 and huge and huge.recipe[-1] == 10**12 and huge.blocks == [] and calls == []
    small = prompt(40, [1, 2, 3])
    assert [small[0], small[:5], list(small), small.ids] and len(calls) == 3, "a call a block"


@law
@given(length=st.integers(1, 60), start=st.integers(-70, 70), stop=st.integers(-70, 70), step=st.integers(-3, 3))
def test_it_reads_like_the_tuple_of_its_tokens(length: int, start: int, stop: int, step: int) -> None:
    made, same = prompt(length, list(range(-(-length // 16)))), prompt(length, list(range(-(-length // 16)))).ids
    assert isinstance(same, tuple) and all(type(token) is int for token in same)
    assert made[start:stop] == same[start:stop] and isinstance(made[start:stop], tuple) and made[: step or None] == same[: step or None]
    assert (list(made), list(reversed(made)), made.index(same[-1]), made.count(same[0]), same[0] in made, -1 in made) == (
        list(same), list(reversed(same)), same.index(same[-1]), same.count(same[0]), True, False
    )  # fmt: skip
    if -length <= start < length:
        assert made[start] == same[start]
    else:
        with pytest.raises(IndexError):
            made[start]


@pytest.mark.parametrize("alphabet", [FIRST_TOKENS, 49_000, 151_643])
def test_of_thousands_of_siblings_every_one_differs_in_the_first_token_behind_the_shared_part(alphabet: int) -> None:
    tree, source = PrefixTree(RECIPE), TokenSource(RECIPE, np.arange(alphabet))
    made = [prompt(40, tree.place("", [0, block, block + 100_000]), source=source) for block in range(1, 4001)]
    assert {p.ids[:16] for p in made} == {made[0].ids[:16]} and len({p.ids[16] for p in made}) == 4000
    assert {common(one, two) for one, two in pairwise(made)} == {16} and tree.collisions == 0
    lone = TokenSource(RECIPE, np.arange(alphabet))
    assert len({int(lone.block("", block, 1)[0]) for block in range(1, 4001)}) < 4000, "by luck they would not"


paths_of_a_tree = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=2, max_size=12)


@law
@given(paths_of_a_tree, st.lists(st.integers(1, 16), min_size=12, max_size=12))
def test_prompts_of_any_tree_share_exactly_their_common_leading_blocks(paths: list[list[int]], tails: list[int]) -> None:
    tree, made = PrefixTree(RECIPE), []
    for path, tail in zip(paths, tails, strict=False):
        named = [int("1" + "".join(map(str, path[: depth + 1]))) for depth in range(len(path))]  # a name a path
        made.append((named, prompt(16 * (len(path) - 1) + tail, tree.place("", named))))
    for one, first in made:
        for two, second in made:
            blocks = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))
            assert common(first, second) == min(16 * blocks, len(first), len(second))


@law
@given(whole=st.integers(1, 10), size=st.integers(1, 600), tail=st.integers(1, 10_000))
def test_the_last_block_takes_the_rest(whole: int, size: int, tail: int) -> None:
    assert block_sizes(whole * size + tail, whole + 1, size) == [size] * whole + [tail]


def test_first_code_is_what_decides_the_first_token() -> None:
    for block in range(200):
        code = prompts.first_code(RECIPE, "s", block)
        assert 0 <= code < FIRST_TOKENS and int(SOURCE.block("s", block, 3)[0]) == code * 49_000 // FIRST_TOKENS
