"""One kernel over all sequences of a pass. See it: `cbbench run workloads/mixed.yaml --attn serial,varlen`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import torch
from pydantic import Field

from cbbench.attention.base import Attention, ForwardPass, LayerCall, packed_pass
from cbbench.kernels.availability import missing
from cbbench.kvcache.base import KVSpec, KVView
from cbbench.plan import Plan
from cbbench.strategy import StrictOptions


class Varlen(Attention):
    """Packs all tokens of a step; attention is one kernel call over all sequences, prefills and decodes together.

    On a CPU this is our own compiled kernel, which follows the block table (attention/_varlen_cpu.py). On CUDA it is
    flash-attn's varlen call if that is installed, else torch.nn.attention.varlen. The saved record names the kernel.
    Source: Dao, FlashAttention-2 (2023), section 3; Kwon et al., vLLM (SOSP 2023), section 4.3.

    Cost: needs a kernel for the device and dtype.
    Use when: lengths differ, which is the normal case.
    """

    class Options(StrictOptions):
        backend: Literal["auto", "cpu", "flash-attn", "torch"] = Field("auto", description="the kernel; auto takes the best installed one")
        cuda_graphs: bool = Field(False, description="replay decode steps as CUDA graphs; needs paged, block_size a multiple of 256")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.captures = options.cuda_graphs

    @classmethod
    def cannot_run(cls, device: str, dtype: str, options: StrictOptions) -> str | None:
        assert isinstance(options, cls.Options)
        backend = _choose(options.backend, device)
        if backend is None:
            return f"varlen has no kernel on {device}: it has one for cpu and two for cuda; serial runs anywhere"
        if options.cuda_graphs and device != "cuda":
            return f"varlen's cuda_graphs needs cuda, not {device}"
        if backend == "cpu":
            if device != "cpu":
                return f"varlen's cpu kernel cannot read memory on {device}"
            if dtype != "float32":
                return f"varlen's cpu kernel computes in float32, not {dtype}; padded, serial and unbatched do"
            why = missing()
            return why and f"varlen's cpu kernel cannot run: {why}; padded, serial and unbatched do"
        if device != "cuda":
            return f"varlen's {backend} kernel needs cuda, not {device}"
        if dtype not in ("float16", "bfloat16"):
            return f"varlen's {backend} kernel takes float16 and bfloat16, not {dtype}; padded, serial and unbatched do"
        if backend == "flash-attn" and find_spec("flash_attn") is None:
            return "flash-attn is not installed: pip install cbbench[flash]"
        from cbbench.attention._varlen_cuda import OLDEST_CAPABILITY, torch_lacks

        if torch.cuda.is_available() and torch.cuda.get_device_capability() < OLDEST_CAPABILITY:
            found = ".".join(map(str, torch.cuda.get_device_capability()))
            return f"varlen's {backend} kernel needs a GPU of compute capability 8.0, this one has {found}; padded, serial and unbatched do"
        return torch_lacks() if backend == "torch" else None

    def cannot_serve(self, spec: KVSpec, device: str) -> str | None:
        from cbbench.attention._varlen_cuda import HEAD_DIM_MULTIPLE, LARGEST_HEAD_DIM

        backend = _choose(self.options.backend, device)
        if backend == "cpu" or (spec.head_dim % HEAD_DIM_MULTIPLE == 0 and spec.head_dim <= LARGEST_HEAD_DIM):
            return None
        return f"varlen's {backend} kernel takes heads of a multiple of {HEAD_DIM_MULTIPLE} up to {LARGEST_HEAD_DIM}, not {spec.head_dim}"

    def backend(self, device: str, dtype: str) -> str:
        return (_choose(self.options.backend, device) or "none") + (" in CUDA graphs" if self.options.cuda_graphs else "")

    def reads(self, device: str) -> str:
        return "pool" if _choose(self.options.backend, device) == "cpu" else "pages"

    def compile(self, device: str) -> None:
        if _choose(self.options.backend, device) == "cpu":
            from cbbench.attention._varlen_cpu import compile_kernel

            compile_kernel()

    def lay_out(self, plan: Plan) -> list[ForwardPass]:
        return [packed_pass(plan.rows)]

    def prepare(self, forward_pass: ForwardPass, kv: KVView, device: torch.device) -> None:
        forward_pass.state = _kernel(_choose(self.options.backend, device.type))(forward_pass, kv, device)

    def copy_state(self, state: Any, into: Any, longest_tokens: int) -> Any:
        return state.copied(into, longest_tokens)

    def attend(self, call: LayerCall, queries_BWHD: torch.Tensor, forward_pass: ForwardPass, kv: KVView) -> torch.Tensor:
        out: torch.Tensor = forward_pass.state.attend(call, queries_BWHD[0], kv)
        return out[None]


def _choose(backend: str, device: str) -> str | None:
    if backend != "auto":
        return backend
    if device == "cuda":
        return "flash-attn" if find_spec("flash_attn") else "torch"
    return "cpu" if device == "cpu" else None


def _kernel(backend: str | None) -> Any:
    if backend == "cpu":
        from cbbench.attention._varlen_cpu import CpuKernel

        return CpuKernel
    from cbbench.attention import _varlen_cuda

    return {"flash-attn": _varlen_cuda.FlashAttnKernel, "torch": _varlen_cuda.TorchKernel}[str(backend)]
