"""The model's layers, made ready once after loading: projections of one input fused, a gated unit made one operation, each
RMSNorm one instead of six, and in float32 on a CPU all of them run by our own kernels.

A decode step is small products over all weights. One product for q, k and v and one for gate and up are fewer and larger.
Everything that runs the model afterwards, the reference included, sees the same arithmetic. A module is replaced only where
what replaces it computes the same; where our kernels cannot run torch's do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cbbench.kernels.availability import missing

QKV = ("q_proj", "k_proj", "v_proj")
GROUPS = (QKV, ("gate_proj", "up_proj"))  # names of projections that get the same input

Product = Callable[[torch.Tensor], torch.Tensor]


def fuse(model: nn.Module) -> dict[str, int]:
    """Replaces modules in place and returns what it did: gated units, projections fused into how many products, products
    whose weights were packed, norms.

    Knows modules by the names that Hugging Face decoders share; what has other names stays as it is."""
    model.requires_grad_(False)  # what our kernels compute has no gradients
    counts = {"gated": 0, "fused": 0, "products": 0, "packed": 0, "norms": 0}
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if (unit := GatedMLP.of(child)) is not None:
                setattr(module, name, unit)
                counts["gated"] += 1
    for module in list(model.modules()):
        for names in GROUPS:
            parts = [getattr(module, name, None) for name in names]
            if all(type(part) is nn.Linear for part in parts) and len({part.in_features for part in parts}) == 1:  # type: ignore[union-attr]
                shared = SharedProduct(parts)  # type: ignore[arg-type]
                for index, name in enumerate(names):
                    setattr(module, name, SharedProjection(shared, index))
                counts["fused"] += len(parts)
                counts["products"] += 1
                counts["packed"] += shared.is_packed
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and kernels_take(child.weight):
                setattr(module, name, PackedLinear(child))
                counts["packed"] += 1
            elif (norm := FusedRMSNorm.of(child)) is not None:
                setattr(module, name, norm)
                counts["norms"] += 1
    return counts


def kernels_take(tensor: torch.Tensor) -> bool:
    """Our kernels are for float32 on a CPU; other types and devices have torch's."""
    return tensor.dtype is torch.float32 and tensor.device.type == "cpu" and missing() is None


def product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """x [..., in] -> x W^T + b [..., out]."""
    if kernels_take(weight):
        from cbbench.kernels.products import Panels

        return Panels(weight, bias)
    return lambda x: nn.functional.linear(x, weight, bias)


class PackedLinear(nn.Module):
    """A linear layer with its weights packed."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        from cbbench.kernels.products import Panels

        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.run = Panels(linear.weight, linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


def computes_the_same(made: nn.Module, module: nn.Module, width: int, like: torch.Tensor) -> bool:
    """Tried on rows of very different size, so that a bound on what passes through shows."""
    rows = torch.randn(4, width, generator=torch.Generator().manual_seed(0)) * torch.tensor([[0.1], [1.0], [10.0], [100.0]])
    x = rows.to(like.device, like.dtype)
    with torch.inference_mode():
        try:
            expected = module(x)
        except Exception:  # foreign code, which may ask for more than x
            return False
        found = made(x)
    return same_values(found, expected)


def same_values(found: Any, expected: Any) -> bool:
    """Whether each row differs by no more than rounding."""
    if not isinstance(expected, torch.Tensor) or found.shape != expected.shape:
        return False
    near = 1e-5 if found.dtype is torch.float32 else 2e-2
    return bool(((found - expected).abs().amax(-1) <= near * expected.abs().amax(-1)).all())


class GatedMLP(nn.Module):
    """The three projections of a layer and the gate between them, as one."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        from cbbench.kernels.products import GatedPanels

        self.run = GatedPanels(module.gate_proj, module.up_proj, module.down_proj)

    @classmethod
    def of(cls, module: nn.Module) -> GatedMLP | None:
        """The same as a module of that form; None for another, or with another gate than SiLU."""
        gate, up, down = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
        if not all(type(part) is nn.Linear and kernels_take(part.weight) for part in (gate, up, down)):
            return None
        if gate.weight.shape != up.weight.shape or gate.out_features != down.in_features:  # type: ignore[union-attr]
            return None
        made = cls(module)
        return made if computes_the_same(made, module, gate.in_features, gate.weight) else None  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


class FusedRMSNorm(nn.Module):
    """An RMSNorm as one operation (Zhang and Sennrich, 2019)."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.variance_epsilon = eps
        self.ours: Any = None
        if kernels_take(weight):
            from cbbench.kernels.norms import rms_norm

            self.ours = rms_norm

    @classmethod
    def of(cls, module: nn.Module) -> FusedRMSNorm | None:
        """The same as a module that is called an RMSNorm; None where it computes something else (Gemma's 1 + w)."""
        weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
        if not type(module).__name__.endswith("RMSNorm") or not isinstance(weight, torch.Tensor) or not isinstance(eps, float):
            return None
        made = cls(weight.detach(), eps)
        return made if computes_the_same(made, module, len(weight), weight) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ours is not None and kernels_take(x):
            return self.ours(x, self.weight, self.variance_epsilon)  # type: ignore[no-any-return]
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


class SharedProduct:
    """Several projections of one input as one product, run when the first of them is asked for."""

    def __init__(self, parts: list[nn.Linear]) -> None:
        self.sizes = [part.out_features for part in parts]
        weight = torch.cat([part.weight.detach() for part in parts])
        self.is_packed = kernels_take(weight)
        self.run = product(weight, _bias(parts))
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


class SharedProjection(nn.Module):
    """One projection of a shared product."""

    def __init__(self, shared: SharedProduct, index: int) -> None:
        super().__init__()
        self.shared = shared
        self.index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared.part(x, self.index)
