"""The attention contract: how the rows of a plan lie in forward passes, and how a layer attends.

Layout belongs here because padding costs every linear layer, not only the attention call. `lay_out` needs no tensors,
so a virtual run counts the same positions that a real one computes.

Letters: B batch and W width of a pass (packed: 1 and T), T packed new tokens, R rows, L longest key length, H query
heads, K kv heads, D head dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from cbbench.kvcache.base import KVSpec, KVView
from cbbench.plan import Plan, Row
from cbbench.strategy import Strategy, StrictOptions


@dataclass(slots=True)
class LayerCall:
    """What a layer of the model says about its attention."""

    layer: int
    scale: float
    window: int | None  # sliding window: a query sees at most this many keys, itself included


@dataclass
class ForwardPass:
    """One call of the model.

    packed (`width` None): all new tokens in one row, in row order; held rows are left out by the layout.
    rectangle (`width` W): a row a sequence, padded on the left, so that every row's last token is in the last column.
    Left padding never reaches a position id: those come from lengths.
    """

    rows: list[Row]
    width: int | None = None
    state: Any = None  # filled by the attention's own `prepare`; nobody else reads it

    @property
    def num_tokens(self) -> int:
        """Real new tokens, T."""
        return sum(row.num_new for row in self.rows)

    @property
    def num_positions(self) -> int:
        """Positions that the linear layers compute, padding and held rows included."""
        return self.num_tokens if self.width is None else len(self.rows) * self.width

    @property
    def kind(self) -> str:
        """`prefill`, `decode`, or `mixed` where one pass has both; a held row counts as neither."""
        kinds = {"decode" if row.is_decode else "prefill" for row in self.rows if not row.is_held}
        return kinds.pop() if len(kinds) == 1 else "mixed"

    @property
    def keys_attended(self) -> int:
        """Key positions that a decode pass goes over: a rectangle goes over its longest row for every row."""
        lengths = [row.stop for row in self.rows]
        return sum(lengths) if self.width is None else len(lengths) * max(lengths)

    @property
    def keys_masked(self) -> int:
        """Of those, the ones behind a row's length, and all of a held row."""
        return self.keys_attended - sum(row.stop for row in self.rows if not row.is_held)

    @cached_property
    def token_index(self) -> np.ndarray | None:
        """Where the T real tokens lie in the flattened rectangle; None if every position is one."""
        if self.num_tokens == self.num_positions:
            return None
        assert self.width is not None
        ends = np.arange(1, len(self.rows) + 1) * self.width
        return np.concatenate([np.arange(end - row.num_new, end) for end, row in zip(ends, self.rows, strict=True)])


def packed_pass(rows: list[Row]) -> ForwardPass:
    """All live rows one behind another."""
    return ForwardPass([row for row in rows if not row.is_held])


class Attention(Strategy, ABC):
    """Lays a plan out in forward passes and attends in each layer of each pass. Stateless between passes."""

    captures = False  # decode steps shall be replayed as CUDA graphs; `copy_state` must then give a state

    def __init__(self, options: StrictOptions) -> None:
        self.options = options

    def cannot_serve(self, spec: KVSpec, device: str) -> str | None:
        """Why this attention cannot serve a model of this shape there; None where it can."""
        return None

    def compile(self, device: str) -> None:
        """Whatever is compiled once; called before any clock runs."""

    @abstractmethod
    def lay_out(self, plan: Plan) -> list[ForwardPass]:
        """The passes of one step; together they hold every live row once."""

    def prepare(self, forward_pass: ForwardPass, kv: KVView, device: torch.device) -> None:
        """What is needed once a pass rather than once a layer (masks, borders), kept in `forward_pass.state`."""

    @abstractmethod
    def attend(self, call: LayerCall, queries_BWHD: torch.Tensor, forward_pass: ForwardPass, kv: KVView) -> torch.Tensor:
        """Attention of the pass's queries over its rows' keys 0 to `kv.lengths[r]`, the new ones included (they have
        been written). A query at position p sees keys 0 to p of its own row, at most `call.window` of them.

        Returns [B, W, H, D]; zeros for padding."""

    def copy_state(self, state: Any, into: Any, longest_tokens: int) -> Any:
        """What a captured CUDA graph reads lies in tensors that stay where they are: `into`, filled with the values of the
        `state` that `prepare` made for a pass of as many rows. With `into` None new ones are made, wide enough for rows of
        `longest_tokens`. Returns the filled state, or None where such a pass cannot be captured."""
        return None

    def reads(self, device: str) -> str:
        """The form in which it reads keys and values there: `ragged`, `padded`, `packed` or `pool` as KVView names them, or `pages`,
        which is `pool` where that has pages that its kernel takes and `packed` elsewhere."""
        return "ragged"

    def backend(self, device: str, dtype: str) -> str:
        """The kernel that runs, for the record."""
        return "sdpa"
