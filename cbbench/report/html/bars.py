"""Which spans of the slots are drawn one by one, and which short ones stand together in one bar.

A browser draws some thousand bars at once. Beyond that, short spans that start in the same piece of time on the same slot
are laid end to end by kind: seconds, steps and tokens of each kind stay what they were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import floor

from cbbench.results.timeline import Kind, Span

KINDS = list(Kind)


@dataclass(slots=True)
class Bar:
    """One span, or `num_spans` of one slot and kind. `sequence` is None where the slot is empty or several stand together."""

    slot: int
    kind: Kind
    sequence: int | None
    start_s: float
    end_s: float
    first_step: int
    last_step: int
    num_steps: int
    num_tokens: int
    num_spans: int


def bars(spans: list[Span], limit: int, alone: Collection[int] = ()) -> list[Bar]:
    """All spans where there are no more than `limit`; else about as many bars. The sequences in `alone` are never merged,
    unless they alone would be too many."""
    if len(spans) <= limit:
        return [_bar([span], span.start_s) for span in spans]
    if sum(span.sequence in alone for span in spans) > limit:
        alone = ()
    num_slots = 1 + max(span.slot for span in spans)
    start_s, end_s = min(span.start_s for span in spans), max(span.end_s for span in spans)
    piece_s = (end_s - start_s) / max(limit // (2 * num_slots), 1)

    def place(numbered: tuple[int, Span]) -> tuple[int, int, int]:
        """Neighbours with one place are drawn together; a number of its own keeps a span alone."""
        number, span = numbered
        if span.sequence in alone or span.end_s - span.start_s >= piece_s:
            return span.slot, -1, number
        return span.slot, floor((span.start_s - start_s) / piece_s), 0

    by_slot = sorted(spans, key=lambda span: (span.slot, span.first_step))
    groups = ([span for _, span in found] for _, found in groupby(enumerate(by_slot), key=place))
    return [bar for group in groups for bar in _end_to_end(group)]


def _end_to_end(spans: list[Span]) -> Iterator[Bar]:
    at_s = spans[0].start_s
    for kind in KINDS:
        if chosen := [span for span in spans if span.kind is kind]:
            bar = _bar(chosen, at_s)
            at_s = bar.end_s
            yield bar


def _bar(spans: list[Span], at_s: float) -> Bar:
    first, last = spans[0], spans[-1]
    end_s = first.end_s if len(spans) == 1 and at_s == first.start_s else at_s + sum(span.end_s - span.start_s for span in spans)
    return Bar(
        first.slot, first.kind, first.sequence if len(spans) == 1 else None, at_s, end_s, first.first_step, last.last_step,
        sum(span.num_steps for span in spans), sum(span.num_tokens for span in spans), len(spans),
    )  # fmt: skip
