"""The decode step as CUDA graphs: one a number of rows, captured once, then replayed on new inputs.

A decode step of a small model is thousands of launches of kernels that take microseconds; a graph is one launch. What the
captured kernels read (token ids, positions, entries to write, block tables, lengths) lies in tensors that stay where they
are and are filled anew before each replay. Source: NVIDIA, CUDA programming guide, section on graphs; vLLM captures decode
batches in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cbbench.attention.base import Attention, ForwardPass
from cbbench.errors import UserError
from cbbench.kvcache.base import KVCache, KVView
from cbbench.model import attention_interface
from cbbench.model.model import Model
from cbbench.plan import Plan, Row
from cbbench.request import Request, Sequence

Run = Callable[[], torch.Tensor]
Capture = Callable[[Run], tuple[Callable[[], None], torch.Tensor]]
WARMUPS = 3  # kernels choose themselves and take their workspace outside the graph


class CudaGraphs:
    """Captures runs one after another; all have one pool of memory, since only one of them is replayed at a time."""

    def __init__(self) -> None:
        self.pool: Any = None

    def __call__(self, run: Run) -> tuple[Callable[[], None], torch.Tensor]:
        """What replays the run, and where its result then lies."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARMUPS):
                run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            result = run()
        self.pool = graph.pool()
        return graph.replay, result


@dataclass
class Captured:
    """A step of R rows, and the tensors that it reads."""

    ids: torch.Tensor  # [1, R]
    positions: torch.Tensor  # [1, R]
    entries: torch.Tensor  # [R], where keys and values are written
    state: Any  # of the attention, see Attention.copy_state
    replay: Callable[[], None]
    tokens: torch.Tensor  # [1, R], filled by a replay


class DecodeGraphs:
    """Stands in for the model's forward where a pass only decodes; other passes go to the model.

    Captures all numbers of rows up to `max_num_seqs` when it is made, before any clock runs, on sequences of one token that
    it lends from the cache and gives back. Made inside `model.serving()`."""

    def __init__(self, model: Model, attention: Attention, cache: KVCache, max_num_seqs: int, capture: Capture | None = None) -> None:
        self.model = model
        self.attention = attention
        self.cache = cache
        self.capture = capture or CudaGraphs()
        self.captured: dict[int, Captured] = {}
        self.longest_tokens = min(cache.capacity_tokens(), model.max_positions or cache.capacity_tokens())  # of a row
        lent = [Row(Sequence(Request(f"capture {n}", (0,), 1), -n), 0, 1) for n in range(1, max_num_seqs + 1)]
        lent = [row for row in lent if cache.reserve(row.sequence, 1)]
        for num_rows in range(len(lent), 0, -1):
            self._capture(lent[:num_rows])
        for row in lent:
            cache.release(row.sequence)
        if not self.captured:
            raise UserError("cuda_graphs: nothing could be captured; it needs kv paged with a block_size that is a multiple of 256")

    @torch.inference_mode()
    def _capture(self, rows: list[Row]) -> None:
        (forward_pass,) = self.attention.lay_out(Plan(rows))
        kv = self.cache.view(rows)
        self.attention.prepare(forward_pass, kv, self.model.device)
        state = self.attention.copy_state(forward_pass.state, None, self.longest_tokens)
        entries = kv.write_entries
        if state is None or entries is None:
            return
        forward_pass.state = state
        ids = torch.zeros((1, len(rows)), dtype=torch.long, device=self.model.device)
        positions, keep = torch.zeros_like(ids), torch.arange(len(rows), device=self.model.device)
        step = attention_interface.Step(forward_pass, kv, self.attention, None)
        replay, tokens = self.capture(lambda: self.model.greedy(ids, positions, keep, step))
        self.captured[len(rows)] = Captured(ids, positions, entries, state, replay, tokens)

    @torch.inference_mode()
    def forward(self, forward_pass: ForwardPass, kv: KVView, attention: Attention) -> list[int]:
        """As Model.forward."""
        rows = forward_pass.rows
        captured = self.captured.get(len(rows)) if forward_pass.kind == "decode" else None
        if captured is None:
            return self.model.forward(forward_pass, kv, attention)
        assert kv.write_entries is not None
        captured.ids.copy_(torch.from_numpy(np.array([[row.sequence.tokens(row.start, row.stop)[0] for row in rows]])))
        captured.positions.copy_(torch.tensor([[row.start for row in rows]]))
        captured.entries.copy_(kv.write_entries)
        self.attention.copy_state(forward_pass.state, captured.state, self.longest_tokens)
        captured.replay()
        tokens: list[int] = captured.tokens.flatten().tolist()
        return tokens
