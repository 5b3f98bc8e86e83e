"""How many positions and keys a layout goes over, and in which passes. No tensors: a virtual run counts the same."""

from __future__ import annotations

import pytest

from cbbench.kvcache.base import KVSpec
from cbbench.plan import Plan, Row
from tests.attention.test_attention import every_attention, make
from tests.support.engines import ATTENTIONS
from tests.support.filled_cache import FilledCache


def prompts(*lengths: int) -> Plan:
    filled = FilledCache("cat", {}, KVSpec(1, 1, 1, 4))
    return Plan([filled.row(filled.sequence(n), n) for n in lengths])


@pytest.mark.parametrize(
    ("lengths", "tokens", "padded"), [((47, 312, 128), 487, 936), ((8, 256, 32), 296, 768), ((10, 30, 5, 20), 65, 120)]
)
def test_packed_against_padded_positions(lengths: tuple[int, ...], tokens: int, padded: int) -> None:
    """Worked examples 5 and 3 of the metrics."""
    for attn in ATTENTIONS:
        passes = make(attn).lay_out(prompts(*lengths))
        assert sum(p.num_tokens for p in passes) == tokens
        assert sum(p.num_positions for p in passes) == (padded if attn == "padded" else tokens)
        assert len(passes) == (len(lengths) if attn == "unbatched" else 1)


def decodes(*lengths: int, held: tuple[int, ...] = ()) -> Plan:
    """Rows whose newest token makes them that long, and held ones of that many computed tokens."""
    filled = FilledCache("cat", {}, KVSpec(1, 1, 1, 4))
    plan = Plan()
    for length in (*lengths, *held):
        sequence = filled.sequence(length - 1, 1)
        sequence.num_computed = length - 1
        plan.rows.append(Row(sequence, length - 1, 1) if len(plan.rows) < len(lengths) else Row(sequence, length, 0))
    return plan


@every_attention
def test_keys_attended_and_masked_of_a_decode(attn: str) -> None:
    """10, 4 and 7 keys, and a held row of 12: a rectangle goes over 4 x 12, of which 21 count."""
    passes = make(attn).lay_out(decodes(10, 4, 7, held=(12,)))
    attended, masked = sum(p.keys_attended for p in passes), sum(p.keys_masked for p in passes)
    assert (attended, masked) == ((48, 27) if attn == "padded" else (21, 0))
    assert {p.kind for p in passes} == {"decode"}


def test_a_mixed_step_is_two_rectangles_or_one_packed_pass() -> None:
    plan = decodes(10, 4)
    plan.rows += prompts(6, 2).rows
    first, second = make("padded").lay_out(plan)
    assert (first.width, first.num_positions, first.kind) == (6, 12, "prefill")
    assert (second.width, second.num_positions, second.kind) == (1, 2, "decode")
    for attn in ("serial", "varlen"):
        (one,) = make(attn).lay_out(plan)
        assert one.num_positions == 10 and one.kind == "mixed"


@every_attention
def test_a_plan_of_held_rows_only_has_no_pass_to_compute(attn: str) -> None:
    passes = make(attn).lay_out(decodes(held=(5, 9)))
    assert sum(p.num_tokens for p in passes) == 0 and (attn != "padded" or not passes)


def test_real_tokens_of_a_rectangle_lie_at_the_right() -> None:
    (forward_pass,) = make("padded").lay_out(prompts(2, 4, 1))
    assert forward_pass.token_index is not None and forward_pass.token_index.tolist() == [2, 3, 4, 5, 6, 7, 11]
    (full,) = make("padded").lay_out(prompts(3, 3))
    assert full.token_index is None
