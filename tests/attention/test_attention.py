"""Every attention against a softmax written out, on every cache: grouped heads, windows, chunks over longer caches, held rows."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from typing import Any

import pytest
import torch

from cbbench import plugins
from cbbench.attention.base import Attention, ForwardPass, LayerCall
from cbbench.kvcache.base import KVSpec
from cbbench.plan import Plan, Row
from tests.support.engines import ATTENTIONS
from tests.support.filled_cache import CACHE_ARMS, FilledCache

HEADS = [(4, 2, 8), (6, 3, 16), (3, 3, 40), (8, 1, 64), (4, 2, 80)]  # query heads, kv heads, head dim: whole vectors and not
DIM = 8
every_attention = pytest.mark.parametrize("attn", ATTENTIONS)
every_cache = pytest.mark.parametrize(
    ("kv", "options"), CACHE_ARMS, ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values()))
)


def make(attn: str) -> Attention:
    cls: Any = plugins.find("attn", attn)
    return cls(cls.Options())


def softmax_written_out(
    queries_THD: torch.Tensor,
    keys_LKD: torch.Tensor,
    values_LKD: torch.Tensor,
    start: int,
    scale: float,
    window: int | None,
    tiled: bool = False,
) -> torch.Tensor:
    """Query t stands at position start + t and sees keys 0 to there, at most `window` of them. Query head h reads kv head
    h // group; `tiled` is the known fault h % num_kv_heads."""
    num_heads, num_kv_heads = queries_THD.shape[1], keys_LKD.shape[1]
    out = torch.empty_like(queries_THD, dtype=torch.float64)
    for t, query_HD in enumerate(queries_THD.double()):
        first = 0 if window is None else max(0, start + t + 1 - window)
        for head in range(num_heads):
            kv_head = head % num_kv_heads if tiled else head // (num_heads // num_kv_heads)
            seen = slice(first, start + t + 1)
            weights = (keys_LKD[seen, kv_head].double() @ query_HD[head] * scale).softmax(0)
            out[t, head] = weights @ values_LKD[seen, kv_head].double()
    return out.float()


def attend(
    filled: FilledCache, attn: str, rows: list[Row], num_heads: int, window: int | None = None, scale: float = 0.3
) -> list[tuple[ForwardPass, Any, Any]]:
    """Carries a plan out on layer 1 with random queries; returns pass, queries and output [B, W, H, D] each."""
    attention, done = make(attn), []
    for forward_pass in attention.lay_out(Plan(rows)):
        view = filled.write(forward_pass.rows)
        attention.prepare(forward_pass, view, torch.device("cpu"))
        shape = (1, forward_pass.num_tokens) if forward_pass.width is None else (len(forward_pass.rows), forward_pass.width)
        queries = filled.random(*shape, num_heads, filled.spec.head_dim)
        done.append((forward_pass, queries, attention.attend(LayerCall(1, scale, window), queries, forward_pass, view)))
    return done


def rows_of(forward_pass: ForwardPass, states: torch.Tensor) -> list[torch.Tensor]:
    """The new tokens of each row, [num_new, H, D]."""
    if forward_pass.width is None:
        return list(states[0].split([row.num_new for row in forward_pass.rows]))
    return [line[forward_pass.width - row.num_new :] for line, row in zip(states, forward_pass.rows, strict=True)]


def assert_as_written_out(
    filled: FilledCache, done: list[tuple[ForwardPass, Any, Any]], window: int | None = None, scale: float = 0.3
) -> int:
    """Compares every live row; returns how many there were."""
    count = 0
    for forward_pass, queries, out in done:
        assert out.shape == queries.shape and not out.isnan().any()
        for row, q, got in zip(forward_pass.rows, rows_of(forward_pass, queries), rows_of(forward_pass, out), strict=True):
            if row.num_new:
                keys, values = filled.keys[row.sequence.index][1][: row.stop], filled.values[row.sequence.index][1][: row.stop]
                torch.testing.assert_close(got, softmax_written_out(q, keys, values, row.start, scale, window), rtol=1e-4, atol=1e-5)
                count += 1
    return count


@every_attention
@every_cache
@pytest.mark.parametrize("window", [None, 1, 5, 100])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "dim"), HEADS)
def test_a_mixed_step_is_the_softmax_written_out(
    attn: str, kv: str, options: dict[str, Any], window: int | None, num_heads: int, num_kv_heads: int, dim: int
) -> None:
    """Prompts, a chunk over a longer cache and decodes, in one step."""
    filled = FilledCache(kv, options, KVSpec(2, num_kv_heads, dim, 4))
    chunked, one, two = filled.fill(11, 30, 7)
    chunked.request = type(chunked.request)("long", (3,) * 19, 8)
    one.output_ids, two.output_ids = [5], [5]
    rows = [
        filled.row(one, 1),
        filled.row(chunked, 4),
        filled.row(filled.sequence(13), 13),
        filled.row(two, 1),
        filled.row(filled.sequence(1), 1),
    ]
    assert assert_as_written_out(filled, attend(filled, attn, rows, num_heads, window), window) == 5


@every_attention
@pytest.mark.parametrize("seed", range(6))
def test_random_steps_are_the_softmax_written_out(attn: str, seed: int) -> None:
    """Three steps one after another of random rows, long ones past every tile of the kernels among them."""
    rng = random.Random(seed)
    kv, options = CACHE_ARMS[seed % len(CACHE_ARMS)]
    filled = FilledCache(kv, options, KVSpec(2, 2, [DIM, 64][seed % 2], 4), budget=2048, seed=seed)
    people = [filled.sequence(rng.choice([1, 8, 9, 64, 65, 130, rng.randint(1, 150)])) for _ in range(5)]
    window = rng.choice([None, 3, 64, 65])
    for _ in range(3):
        rows = [
            filled.row(s, min(s.num_tokens - s.num_computed, rng.choice([1, 7, 40, 150]))) for s in people if s.num_computed < s.num_tokens
        ]
        if rows:
            assert assert_as_written_out(filled, attend(filled, attn, rows, 4, window), window) == len(rows)


@every_attention
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 2), (6, 3)])
def test_tiled_kv_heads_would_be_found(attn: str, num_heads: int, num_kv_heads: int) -> None:
    """Hard case 21: h0 h1 h0 h1 instead of h0 h0 h1 h1."""
    filled = FilledCache("paged", {"block_size": 4}, KVSpec(2, num_kv_heads, DIM, 4))
    sequence = filled.sequence(9)
    ((_, queries, out),) = attend(filled, attn, [filled.row(sequence, 9)], num_heads)
    tiled = softmax_written_out(queries[0], filled.keys[0][1], filled.values[0][1], 0, 0.3, None, tiled=True)
    assert (out[0] - tiled).abs().max() > 0.1


@every_attention
def test_scores_in_the_hundreds_give_no_nan(attn: str) -> None:
    """Hard case 14's kind: a softmax that subtracts its maximum survives any score."""
    filled = FilledCache("paged", {"block_size": 4}, KVSpec(2, 2, DIM, 4))
    rows = [filled.row(filled.sequence(n), n) for n in (3, 70, 1)]
    done = attend(filled, attn, rows, 4, scale=200.0)
    for forward_pass, queries, out in done:
        for row, q, got in zip(forward_pass.rows, rows_of(forward_pass, queries), rows_of(forward_pass, out), strict=True):
            keys, values = filled.keys[row.sequence.index][1], filled.values[row.sequence.index][1]
            torch.testing.assert_close(got, softmax_written_out(q, keys, values, 0, 200.0, None), rtol=1e-2, atol=1e-2)


@every_cache
def test_held_rows_and_padding_are_zeros(kv: str, options: dict[str, Any]) -> None:
    filled = FilledCache(kv, options, KVSpec(2, 2, DIM, 4))
    held, one = filled.fill(12, 5)
    one.output_ids = [5]
    ((forward_pass, _, out),) = attend(filled, "padded", [filled.row(held, 0), filled.row(one, 1)], 4)
    assert forward_pass.num_positions == 2 and (out[0] == 0).all() and (out[1] != 0).all()
    ((forward_pass, _, out),) = attend(filled, "padded", [filled.row(filled.sequence(2), 2), filled.row(filled.sequence(9), 9)], 4)
    assert (out[0, :7] == 0).all() and (out[0, 7:] != 0).all() and (out[1] != 0).all()


@pytest.mark.parametrize("attn", [a for a in ATTENTIONS if a != "padded"])
def test_held_rows_are_not_in_a_packed_pass(attn: str) -> None:
    filled = FilledCache("paged", {"block_size": 4}, KVSpec(2, 2, DIM, 4))
    held, one, two = filled.fill(12, 5, 8)
    one.output_ids, two.output_ids = [5], [5]
    done = attend(filled, attn, [filled.row(one, 1), filled.row(held, 0), filled.row(two, 1)], 4)
    assert sum(forward_pass.num_positions for forward_pass, _, _ in done) == 2
    assert assert_as_written_out(filled, done) == 2


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "dim"), HEADS)
@pytest.mark.parametrize("window", [None, 5, 33])
def test_varlen_gives_a_query_the_same_bits_alone_in_a_batch_and_in_any_chunk(
    num_heads: int, num_kv_heads: int, dim: int, window: int | None
) -> None:
    """The reduction's order depends on nothing but the query's own keys."""
    spec = KVSpec(2, num_kv_heads, dim, 4)
    filled = FilledCache("paged", {"block_size": 4}, spec, budget=2048)
    one, two, three = filled.sequence(50), filled.sequence(9), filled.sequence(70)
    ((_, queries, together),) = attend(filled, "varlen", [filled.row(s, s.num_tokens) for s in (one, two, three)], num_heads, window)
    mine, whole = queries[0, 59:], together[0, 59:]
    attention, done = make("varlen"), []
    for start, stop in itertools.pairwise([0, 1, 12, 13, 40, 69, 70]):
        (forward_pass,) = attention.lay_out(Plan([Row(three, start, stop - start)]))
        attention.prepare(forward_pass, filled.cache.view(forward_pass.rows), torch.device("cpu"))
        asked = mine[None, start:stop].contiguous()
        done.append(attention.attend(LayerCall(1, 0.3, window), asked, forward_pass, filled.cache.view(forward_pass.rows)))
    assert torch.equal(torch.cat(done, 1)[0], whole)


RUNS = """
import torch
from tests.support.engines import ATTENTIONS, requests, run, tiny
model = tiny()
for attn in ATTENTIONS:
    run(model, requests(model, "9/3@0 5/3@0"), attn=attn)
    assert torch.get_num_threads() == 1, f"{attn}: {torch.get_num_threads()} threads"
"""


def test_no_attention_changes_torchs_number_of_threads() -> None:
    """Or the arms after it would be measured on another machine, so to speak."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_NUM_THREADS"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", RUNS], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]
