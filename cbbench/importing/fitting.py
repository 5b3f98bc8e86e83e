"""Lengths of a trace made to fit a model: dropped, clipped or scaled, so that shared prefixes stay shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cbbench.importers.base import TraceRow


class Policy(StrEnum):
    """For a request of more than `max_tokens` (prompt and output)."""

    drop = "drop"
    clip_prompt = "clip-prompt"  # the prompt keeps its first tokens, the output its length
    clip_both = "clip-both"  # both in proportion, as Vidur's generator does
    scale = "scale"  # every request by one factor, so that the longest fits


@dataclass(frozen=True)
class Fit:
    """`block_tokens` shrinks each block (512 -> 32), and with it prompts: sharing and hit rate stay what they were."""

    max_tokens: int | None = None
    policy: Policy = Policy.drop
    block_tokens: int | None = None
    output_scale: float | None = None


@dataclass
class Fitted:
    """The rows that stay, changed in place; `block_tokens` as they are now."""

    rows: list[TraceRow]
    block_tokens: int | None
    dropped: Counter[str]
    num_clipped: int = 0
    scale: float | None = None


def fit(rows: list[TraceRow], block_tokens: int | None, wanted: Fit) -> Fitted:
    """Every row has its prompt_tokens and output_tokens."""
    size, output_scale = wanted.block_tokens or block_tokens, wanted.output_scale
    scale = None
    if wanted.policy is Policy.scale and wanted.max_tokens is not None:
        if block_tokens and not wanted.block_tokens:
            size = largest_block(rows, block_tokens, wanted.max_tokens, output_scale)
            scale = size / block_tokens
        else:
            scale = min(1.0, min((_factor(row, wanted.max_tokens, output_scale) for row in rows), default=1.0))
        output_scale = scale if output_scale is None else output_scale
    fitted = Fitted([], size, Counter(), scale=scale)
    for row in rows:
        if block_tokens and size and row.blocks is not None:
            row.prompt_tokens = scaled(row.prompt_tokens or 0, block_tokens, size)
        elif scale is not None:
            _cut(row, max(1, int((row.prompt_tokens or 0) * scale)))
        if output_scale is not None:
            row.output_tokens = max(1, round((row.output_tokens or 0) * output_scale))
        if wanted.max_tokens is not None and _total(row) > wanted.max_tokens:
            if wanted.policy in (Policy.drop, Policy.scale):
                fitted.dropped["too long"] += 1
                continue
            _clip(row, wanted.max_tokens, wanted.policy)
            fitted.num_clipped += 1
        if row.blocks is not None and size:
            row.blocks = row.blocks[: ceil((row.prompt_tokens or 0) / size)]
        fitted.rows.append(row)
    return fitted


def _factor(row: TraceRow, max_tokens: int, output_scale: float | None) -> float:
    if output_scale is None:
        return max_tokens / _total(row)
    room = max_tokens - max(1, round((row.output_tokens or 0) * output_scale))
    return max(1, room) / (row.prompt_tokens or 1)


def _total(row: TraceRow) -> int:
    return (row.prompt_tokens or 0) + (row.output_tokens or 0)


def scaled(prompt_tokens: int, old: int, new: int) -> int:
    """Whole blocks stay whole, a begun one keeps its share."""
    return prompt_tokens // old * new + ceil(prompt_tokens % old * new / old)


def largest_block(rows: Sequence[TraceRow], old: int, max_tokens: int, output_scale: float | None) -> int:
    """The largest block size at which every row fits; 1 where none does."""
    low, high = 1, old
    while low < high:
        size = (low + high + 1) // 2
        factor = size / old if output_scale is None else output_scale
        longest = max((scaled(r.prompt_tokens or 0, old, size) + max(1, round((r.output_tokens or 0) * factor)) for r in rows), default=0)
        low, high = (size, high) if longest <= max_tokens else (low, size - 1)
    return low


def _clip(row: TraceRow, max_tokens: int, policy: Policy) -> None:
    """At least one token of each stays; an output that leaves no room for a prompt is cut too."""
    if policy is Policy.clip_both:
        share = max_tokens / _total(row)
        _cut(row, max(1, int((row.prompt_tokens or 0) * share)))
        row.output_tokens = max(1, min(row.output_tokens or 0, max_tokens - (row.prompt_tokens or 0)))
    else:
        row.output_tokens = min(row.output_tokens or 0, max_tokens - 1)
        _cut(row, max_tokens - row.output_tokens)


def _cut(row: TraceRow, prompt_tokens: int) -> None:
    """The prompt's first tokens; its text no longer spells them."""
    if row.prompt_ids is not None and prompt_tokens < len(row.prompt_ids):
        row.prompt_ids, row.prompt, row.messages = row.prompt_ids[:prompt_tokens], None, None
    row.prompt_tokens = prompt_tokens
