"""Captured decode steps: tensors that stay where they are, filled anew for each step. Here a graph is the same run called again;
on a GPU it is a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from cbbench.attention._varlen_cuda import _CudaKernel
from cbbench.attention.base import Attention, ForwardPass, LayerCall, packed_pass
from cbbench.attention.varlen import Varlen
from cbbench.clock import RealClock
from cbbench.engine.executor import ModelExecutor
from cbbench.engine.loop import Engine
from cbbench.errors import UserError
from cbbench.kvcache.base import KVCache, KVView
from cbbench.kvcache.cat import Cat
from cbbench.kvcache.paged import Paged
from cbbench.model.graphs import DecodeGraphs
from cbbench.model.reference import judge
from cbbench.plan import Plan, Row
from cbbench.request import Request, Sequence
from cbbench.schedulers.continuous import Continuous
from cbbench.strategy import StrictOptions
from tests.support.engines import assert_exact, requests, tiny, tiny_as


@dataclass
class Table:
    """State that is tensors alone: entries of every position [R, L], and how many of them a row sees [T]."""

    entries_RL: torch.Tensor
    row_of_T: torch.Tensor
    seen_T: torch.Tensor


class Tabled(Attention):
    """Attention over a table of entries, by masks: nothing of a pass but tensors is read in `attend`."""

    captures = True

    def lay_out(self, plan: Plan) -> list[ForwardPass]:
        return [packed_pass(plan.rows)]

    def prepare(self, forward_pass: ForwardPass, kv: KVView, device: torch.device) -> None:
        rows = forward_pass.rows
        table = kv.entries
        entries = torch.zeros((len(rows), max(kv.lengths)), dtype=torch.long)
        for line, length in enumerate(kv.lengths):
            position = torch.arange(length)
            entries[line, :length] = torch.from_numpy(table.first_RM[line])[position // table.run] + position % table.run
        row_of = torch.tensor([line for line, row in enumerate(rows) for _ in range(row.num_new)])
        seen = torch.tensor([position + 1 for row in rows for position in range(row.start, row.stop)])
        forward_pass.state = Table(entries, row_of, seen)

    def copy_state(self, state: Table, into: Table | None, longest_tokens: int) -> Table:
        if into is None:
            wide = torch.zeros((len(state.entries_RL), longest_tokens), dtype=torch.long)
            into = Table(wide, state.row_of_T.clone(), torch.empty_like(state.seen_T))
        into.entries_RL[:, : state.entries_RL.shape[1]].copy_(state.entries_RL)
        into.seen_T.copy_(state.seen_T)
        return into

    def attend(self, call: LayerCall, queries_BWHD: torch.Tensor, forward_pass: ForwardPass, kv: KVView) -> torch.Tensor:
        state: Table = forward_pass.state
        keys_SKD, values_SKD = kv.pool(call.layer)
        group = queries_BWHD.shape[2] // keys_SKD.shape[1]
        entries_TL = state.entries_RL[state.row_of_T]
        keys, values = (part[entries_TL].repeat_interleave(group, 2) for part in (keys_SKD, values_SKD))
        scores_THL = torch.einsum("thd,tlhd->thl", queries_BWHD[0], keys) * call.scale
        hidden = torch.arange(entries_TL.shape[1])[None] >= state.seen_T[:, None]
        weights = scores_THL.masked_fill(hidden[:, None], float("-inf")).softmax(-1)
        return torch.einsum("thl,tlhd->thd", weights, values.nan_to_num())[None]


class Graphs:
    """Counts captures and replays."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, run: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        self.captured += 1
        result = run()

        def replay() -> None:
            self.replayed += 1
            result.copy_(run())

        return replay, result


def run_captured(cache: KVCache, max_num_seqs: int, text: str, graphs: Graphs) -> Engine:
    model, attention = tiny(), Tabled(StrictOptions())
    made = requests(model, text, ignore_eos=True)
    with model.serving():
        executor = ModelExecutor(model, attention, cache)
        executor.forward = DecodeGraphs(model, attention, cache, max_num_seqs, graphs).forward
        engine = Engine(Continuous(max_num_seqs, Continuous.Options()), cache, executor, RealClock(), check=True)
        engine.run(made)
    return engine


def paged(budget_tokens: int) -> Paged:
    return Paged(tiny().spec, budget_tokens, 64, Paged.Options(block_size=4))


def test_replayed_steps_give_the_tokens_of_generate_while_rows_come_and_go() -> None:
    graphs = Graphs()
    engine = run_captured(paged(256), 3, "5/12@0 17/3@0 9/20@0 30/6@0 2/9@0", graphs)
    assert_exact(engine)
    assert graphs.captured == 3, "one a number of rows"
    kinds = [step.passes[0][0] for step in engine.steps]
    assert graphs.replayed == kinds.count("decode") > 10 and kinds.count("decode") < len(kinds), "prefills go to the model"


def test_what_was_lent_for_capturing_is_given_back_and_too_small_a_cache_captures_what_fits() -> None:
    graphs, cache = Graphs(), paged(24)
    engine = run_captured(cache, 8, "5/8@0 9/6@0 3/4@0", graphs)
    assert graphs.captured == 6, "six blocks of four tokens"
    assert_exact(engine)
    assert cache.free_tokens() == cache.capacity_tokens()


def test_a_cache_that_does_not_write_into_a_pool_cannot_be_captured() -> None:
    model: Any = tiny()
    cache = Cat(model.spec, 256, 64, Cat.Options())
    cache.allocate(model.dtype, model.device)
    with model.serving(), pytest.raises(UserError, match="nothing could be captured; it needs kv paged"):
        DecodeGraphs(model, Tabled(StrictOptions()), cache, 2, Graphs())


def kernel_of(lengths: list[int]) -> _CudaKernel:
    """The state of a decode pass over rows of these lengths, in blocks of 256; its tensors may lie anywhere."""
    cache = Paged(tiny().spec, 256 * 40, 4096, Paged.Options(block_size=256))
    cache.allocate(torch.float32, torch.device("cpu"))
    rows = []
    for index, length in enumerate(lengths):
        sequence = Sequence(Request(str(index), (0,) * length, 600), index)
        assert cache.reserve(sequence, length)
        rows.append(Row(sequence, length - 1, 1))
    return _CudaKernel(packed_pass(rows), cache.view(rows), torch.device("cpu"))


def test_the_cuda_kernels_state_is_widened_once_and_refilled_in_place() -> None:
    wide = kernel_of([1, 1]).copied(None, longest_tokens=1000)
    assert wide is not None and wide.block_table is not None and wide.block_table.shape == (2, 4) and wide.max_k == 1024
    table, lengths, borders = wide.block_table, wide.lengths, wide.cu_seqlens_k
    longer = kernel_of([700, 300])
    assert longer.block_table is not None
    assert longer.copied(wide, longest_tokens=1000) is wide
    assert (wide.block_table is table, wide.lengths is lengths, wide.cu_seqlens_k is borders) == (True, True, True)
    assert table[:, :3].tolist() == longer.block_table.tolist() and len({*table[0, :3].tolist(), *table[1, :2].tolist()}) == 5
    assert lengths.tolist() == [700, 300] and borders.tolist() == [0, 700, 1000]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("backend", ["torch", "flash-attn"])
def test_cuda_graphs_give_the_tokens_of_generate_or_near_ties(backend: Any) -> None:
    attention = Varlen(Varlen.Options(backend=backend, cuda_graphs=True))
    if reason := Varlen.cannot_run("cuda", "bfloat16", attention.options):
        pytest.skip(reason)
    model = tiny_as("bfloat16", "cuda", "llama")
    made = requests(model, "20/32@0 3/32@0 255/8@0 256/8@0 257/8@0", ignore_eos=True)
    cache = Paged(model.spec, 256 * 16, 600, Paged.Options(block_size=256))
    with model.serving():
        executor = ModelExecutor(model, attention, cache, num_graphs=4)
        engine = Engine(Continuous(4, Continuous.Options()), cache, executor, RealClock(), check=True)
        engine.run(made)
    assert {judge(model, s.request, s.output_ids).outcome for s in engine.sequences} <= {"exact", "tie"}
