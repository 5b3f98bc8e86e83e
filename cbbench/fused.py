"""The model's layers, made ready once after loading: projections of one input fused, weights packed for the CPU, each
RMSNorm one operation instead of six.

A decode step is small products over all weights. One product for q, k and v and one for gate and up are fewer and larger;
oneDNN's packed layout spares it the re-ordering of each call and lets small products use every core. Everything that runs
the model afterwards, the reference included, sees the same arithmetic. Where packing cannot be had the product is plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # names of projections that get the same input
BATCH_HINT = 16  # rows that oneDNN lays the weights out for

Product = Callable[[torch.Tensor], torch.Tensor]


def fuse(model: nn.Module) -> dict[str, int]:
    """Replaces linear layers in place; returns how many were fused into how many products, and how many were packed.

    Knows modules by the names that Hugging Face decoders share; what has other names stays as it is."""
    counts = {"fused": 0, "products": 0, "packed": 0, "norms": 0}
    for module in list(model.modules()):
        for names in GROUPS:
            parts = [getattr(module, name, None) for name in names]
            if all(type(part) is nn.Linear for part in parts) and len({part.in_features for part in parts}) == 1:  # type: ignore[union-attr]
                shared = SharedProduct(parts)  # type: ignore[arg-type]
                for index, name in enumerate(names):
                    setattr(module, name, Part(shared, index))
                counts["fused"] += len(parts)
                counts["products"] += 1
                counts["packed"] += shared.is_packed
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and can_pack(child.weight):
                setattr(module, name, Packed(child))
                counts["packed"] += 1
            elif (norm := OneNorm.of(child)) is not None:
                setattr(module, name, norm)
                counts["norms"] += 1
    return counts


def can_pack(weight: torch.Tensor) -> bool:
    """oneDNN's packed layout is for float32 on a CPU here; the operators are not public, so they may be missing."""
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return there and weight.dtype is torch.float32 and weight.device.type == "cpu"


def product(weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[Product, bool]:
    """x [..., in] -> x W^T + b [..., out], and whether the weights are packed."""
    if not can_pack(weight):
        return lambda x: nn.functional.linear(x, weight, bias), False
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), BATCH_HINT)
    run = torch.ops.mkldnn._linear_pointwise
    return lambda x: run(x, packed, bias, "none", [], ""), True


class Packed(nn.Module):
    """A linear layer with its weights packed."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.run, _ = product(linear.weight, None if linear.bias is None else linear.bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


class OneNorm(nn.Module):
    """An RMSNorm as one operation (Zhang and Sennrich, 2019)."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.variance_epsilon = eps

    @classmethod
    def of(cls, module: nn.Module) -> OneNorm | None:
        """The same as a module that is called an RMSNorm; None where it computes something else (Gemma's 1 + w)."""
        weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
        if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, torch.Tensor) or not isinstance(eps, float):
            return None
        made = cls(weight.detach(), eps)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(4, *weight.shape, generator=generator).to(weight.device, weight.dtype)
        with torch.inference_mode():
            same = torch.allclose(made(x), module(x), rtol=1e-5 if weight.dtype is torch.float32 else 2e-2, atol=1e-6)
        return made if same else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


class SharedProduct:
    """Several projections of one input as one product, run when the first of them is asked for."""

    def __init__(self, parts: list[nn.Linear]) -> None:
        self.sizes = [part.out_features for part in parts]
        weight = torch.cat([part.weight.detach() for part in parts])
        self.run, self.is_packed = product(weight, _bias(parts))
        self.input: Any = None
        self.outputs: list[torch.Tensor | None] = []

    def part(self, x: torch.Tensor, index: int) -> torch.Tensor:
        """The projection `index` of x. Another x, or the same part again, runs the product anew."""
        if self.input is not x or self.outputs[index] is None:
            self.input = x
            self.outputs = list(self.run(x).split(self.sizes, -1))
        output = self.outputs[index]
        self.outputs[index] = None
        if all(left is None for left in self.outputs):
            self.input = None  # nothing is held from one layer to the next
        assert output is not None
        return output


def _bias(parts: list[nn.Linear]) -> torch.Tensor | None:
    if all(part.bias is None for part in parts):
        return None
    zeros = [part.weight.new_zeros(part.out_features) if part.bias is None else part.bias.detach() for part in parts]
    return torch.cat(zeros)


class Part(nn.Module):
    """One projection of a shared product."""

    def __init__(self, shared: SharedProduct, index: int) -> None:
        super().__init__()
        self.shared = shared
        self.index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared.part(x, self.index)
