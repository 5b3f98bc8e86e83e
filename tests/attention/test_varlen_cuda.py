"""The CUDA side of `varlen`, on a CPU: torch's real varlen_attn over a stand-in of the aten operation below it, and flash-attn's
rules for its arguments as asserts. What is computed from them is plain attention, so wrong pages, borders or lengths show as tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from cbbench.attention import _varlen_cuda
from cbbench.attention.base import ForwardPass
from cbbench.attention.varlen import Varlen
from cbbench.clock import RealClock
from cbbench.engine.executor import ModelExecutor
from cbbench.engine.loop import Engine
from cbbench.kvcache.base import KVSpec, KVView
from cbbench.model.reference import judge
from tests.support import flash
from tests.support.engines import CACHES, SCHEDULERS, assert_exact, requests, strategies, tiny_as

BACKENDS = ["torch", "flash-attn"]
MIXED = "20/9@0 3/30@0 255/3@0 256/4@0 257/3@0 1/12@0"  # on both sides of a page of 256


class OnACpu(Varlen):
    """Takes the CUDA kernels whatever the device."""

    def prepare(self, forward_pass: ForwardPass, kv: KVView, device: torch.device) -> None:
        kernels = {"torch": _varlen_cuda.TorchKernel, "flash-attn": _varlen_cuda.FlashAttnKernel}
        forward_pass.state = kernels[self.options.backend](forward_pass, kv, device)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "flash_attn", flash.flash_attn_module())
    flash.CALLS.clear()
    with flash.aten_on_a_cpu():
        yield


def run(backend: str, scheduler: str, kv: str, dtype: str, budget: int, block_size: int, text: str = MIXED, **changes: Any) -> Engine:
    model = tiny_as(dtype, "cpu", **changes)
    made = requests(model, text, ignore_eos=True)
    options = {"kv.block_size": block_size, "scheduler.max_num_batched_tokens": 100}
    arm = strategies(model.spec, made, scheduler, "varlen", kv, max_num_seqs=4, budget_tokens=budget, options=options)
    attention = OnACpu(Varlen.Options(backend=backend))  # type: ignore[arg-type]
    engine = Engine(arm["scheduler"], arm["kv"], ModelExecutor(model, attention, arm["kv"]), RealClock(), check=True)
    with model.serving():
        engine.run(made)
    if dtype == "float32":
        assert_exact(engine)
    else:
        assert {judge(model, s.request, s.output_ids).outcome for s in engine.sequences} <= {"exact", "tie"}
    return engine


@pytest.mark.parametrize("budget", [1280, 1300])  # a multiple of 256, and none
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kv", "block_size"), [*((kv, 16) for kv in CACHES), ("paged", 256)])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_are_right_over_every_cache(backend: str, scheduler: str, kv: str, dtype: str, budget: int, block_size: int) -> None:
    engine = run(backend, scheduler, kv, dtype, budget, block_size)
    read_in_place = {call["paged"] for call in flash.CALLS}
    assert read_in_place == {kv == "paged" and block_size == 256}, "pages are read in place, anything else from a packed copy"
    assert (engine.steps[-1].copied_bytes == 0) == (kv == "paged" and block_size == 256)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pass_of_decodes_alone_asks_for_no_bound_and_any_other_for_a_causal_one(backend: str) -> None:
    """flash-attn takes its decode path only without."""
    run(backend, "continuous", "paged", "float32", 1280, 256)
    bounds = {(call["max_q"] == 1, call["causal"], call["window"]) for call in flash.CALLS}
    assert {(is_decode, window) for is_decode, _, window in bounds} == {(True, (-1, -1)), (False, (-1, 0))}
    assert not any(causal for is_decode, causal, _ in bounds if is_decode)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kv", "block_size"), [("paged", 256), ("paged", 16), ("preallocated", 16), ("cat", 16)])
def test_a_sliding_window_has_as_many_keys_as_it_says(backend: str, kv: str, block_size: int) -> None:
    run(backend, "chunked", kv, "float32", 1280, block_size, "40/30@0 7/9@0 3/20@0", architecture="mistral", sliding_window=8)
    assert {call["window"] for call in flash.CALLS} == {(7, 0)}


def test_heads_that_the_kernels_do_not_take_are_refused_before_anything_runs() -> None:
    for backend in BACKENDS:
        attention = Varlen(Varlen.Options(backend=backend))  # type: ignore[arg-type]
        for dim, is_served in ((64, True), (80, True), (100, False), (20, False), (256, True), (264, False)):
            reason = attention.cannot_serve(KVSpec(2, 2, dim, 2), "cuda")
            assert (reason is None) == is_served and (is_served or f"not {dim}" in str(reason))
    assert Varlen(Varlen.Options(backend="cpu")).cannot_serve(KVSpec(2, 2, 20, 4), "cpu") is None


def test_an_older_torch_is_refused_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.nn.attention.varlen as real

    assert _varlen_cuda.torch_lacks() is None
    monkeypatch.setattr(real, "varlen_attn", lambda query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None: None)
    assert "has no block_table, enable_gqa, num_splits, seqused_k, window_size in varlen_attn" in str(_varlen_cuda.torch_lacks())


def test_the_stand_in_refuses_what_the_real_kernels_refuse() -> None:
    """Or it would prove nothing."""
    q, k = torch.zeros(2, 4, 16), torch.zeros(5, 2, 16)
    borders, keys = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 5], dtype=torch.int32)
    good: dict[str, Any] = {"q": q, "k": k, "v": k, "cu_q": borders, "cu_k": keys, "max_q": 2, "max_k": 5}
    rest: dict[str, Any] = {"causal": True, "scale": None, "window": (-1, 0), "block_table": None, "used_k": None}
    bad: list[dict[str, Any]] = [
        {}, {"cu_k": None}, {"cu_q": borders.long()}, {"max_k": 4}, {"max_q": 1}, {"k": k.double()},
        {"cu_k": torch.tensor([0, 6], dtype=torch.int32), "max_k": 6},
        {"q": torch.zeros(2, 4, 12), "k": torch.zeros(5, 2, 12), "v": torch.zeros(5, 2, 12)},
        {"k": torch.zeros(2, 16, 2, 16), "v": torch.zeros(2, 16, 2, 16), "block_table": torch.zeros(1, 1, dtype=torch.int32)},
        {"k": torch.zeros(2, 256, 2, 16), "v": torch.zeros(2, 256, 2, 16), "block_table": torch.tensor([[7]], dtype=torch.int32)},
    ]  # fmt: skip
    for changes in bad:
        with nullcontext() if not changes else pytest.raises(AssertionError):
            flash.attention(**{**good, **rest, **changes})
