"""The prepared model computes what the model computes: fused, packed, or left as it is where it would not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from cbbench.model import fused_layers
from cbbench.model.fused_layers import FusedRMSNorm, GatedMLP, PackedLinear, SharedProduct, SharedProjection, fuse
from tests.support.engines import CONFIGS, as_it_comes, requests, tiny

INPUT = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1))


def linear(out: int, bias: bool = False, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(out)
    return nn.Linear(12, out, bias=bias).to(dtype)


class Layer(nn.Module):
    """Projections under the names that decoders use, and one that nobody fuses."""

    def __init__(self, bias: bool = False, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (linear(out, bias, dtype) for out in (8, 4, 6))
        self.gate_proj, self.up_proj, self.o_proj = (linear(out, bias, dtype) for out in (7, 9, 12))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [project(x) for project in (self.q_proj, self.k_proj, self.v_proj, self.gate_proj, self.up_proj, self.o_proj)]


@pytest.mark.parametrize("bias", [False, True])
def test_fused_and_packed_projections_give_what_the_linear_layers_gave(bias: bool) -> None:
    layer = Layer(bias)
    with torch.inference_mode():
        before = layer(INPUT)
        counts = fuse(layer)
        after = layer(INPUT)
    assert (counts["fused"], counts["products"], counts["packed"]) == (5, 2, 3)
    assert all(isinstance(project, SharedProjection) for project in (layer.q_proj, layer.up_proj)) and isinstance(
        layer.o_proj, PackedLinear
    )
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


def test_half_precision_is_fused_and_not_packed() -> None:
    layer = Layer(dtype=torch.bfloat16)
    with torch.inference_mode():
        before = layer(INPUT.bfloat16())
        assert fuse(layer) == {"gated": 0, "fused": 5, "products": 2, "packed": 0, "norms": 0}
        for a, b in zip(before, layer(INPUT.bfloat16()), strict=True):
            torch.testing.assert_close(b, a)


def test_where_our_product_cannot_run_it_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layers, "kernels_take", lambda weight: False)
    layer = Layer()
    assert fuse(layer)["packed"] == 0 and type(layer.o_proj) is nn.Linear
    torch.testing.assert_close(layer(INPUT)[1], Layer()(INPUT)[1])


def test_parts_may_be_asked_for_in_any_order_again_and_for_another_input() -> None:
    parts = [linear(out) for out in (8, 4, 6)]
    shared, other = SharedProduct(parts), INPUT * 2
    with torch.inference_mode():
        for index, x in [(2, INPUT), (0, INPUT), (0, INPUT), (1, other), (1, INPUT), (2, INPUT), (0, other), (2, other), (1, other)]:
            torch.testing.assert_close(shared.part(x, index), parts[index](x), rtol=1e-5, atol=1e-6)


def test_nothing_is_held_when_all_parts_are_taken() -> None:
    shared = SharedProduct([linear(8), linear(4)])
    for index in range(2):
        shared.part(INPUT, index)
    assert shared.input is None and shared.outputs == [None, None]


def test_projections_of_different_inputs_are_not_fused() -> None:
    layer = Layer()
    layer.k_proj = nn.Linear(5, 4)
    assert fuse(layer)["products"] == 1


class PlusOneRMSNorm(nn.Module):
    """Gemma's: 1 + w."""

    def __init__(self, weight: torch.Tensor, plus: float) -> None:
        super().__init__()
        self.weight, self.plus, self.variance_epsilon = nn.Parameter(weight), plus, 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * (self.weight + self.plus)


class MLP(nn.Module):
    """A gated unit under the names that decoders use."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(7), linear(7, bias=True)
        self.down_proj = nn.Linear(7, 12)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        return made


def bounded(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(x).clamp(max=7)


def test_a_gated_unit_is_replaced_only_where_it_computes_the_same() -> None:
    silu = MLP(nn.functional.silu)
    unit = GatedMLP.of(silu)
    assert unit is not None and all(GatedMLP.of(MLP(act)) is None for act in (nn.functional.gelu, torch.relu, bounded))
    assert GatedMLP.of(MLP(nn.functional.silu).bfloat16()) is None and GatedMLP.of(nn.Linear(12, 12)) is None
    with torch.inference_mode():
        torch.testing.assert_close(unit(INPUT), silu(INPUT), rtol=1e-5, atol=1e-6)


class Routed(MLP):
    def forward(self, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x) * experts


def test_a_gated_unit_that_asks_for_more_stays() -> None:
    assert GatedMLP.of(Routed(nn.functional.silu)) is None


def test_a_norm_is_replaced_only_where_it_computes_the_same() -> None:
    weight = torch.rand(12)
    same = FusedRMSNorm.of(PlusOneRMSNorm(weight, 0.0))
    assert same is not None and FusedRMSNorm.of(PlusOneRMSNorm(weight, 1.0)) is None and FusedRMSNorm.of(nn.LayerNorm(12)) is None
    torch.testing.assert_close(same(INPUT), PlusOneRMSNorm(weight, 0.0)(INPUT), rtol=1e-5, atol=1e-6)


def test_the_digest_is_of_the_weights_before_so_recorded_references_stay_valid() -> None:
    assert tiny().digest == as_it_comes().digest
    done = {"gated": 2, "fused": 6, "products": 2, "packed": 5, "norms": 5, "layers": 2}
    assert tiny().prepared == done, "two layers, and the head"
    assert as_it_comes().prepared is None


def test_the_prepared_model_says_the_same_tokens() -> None:
    asked = "5/9@0 17/12@0 30/7@0"
    assert [r.output_ids for r in requests(tiny(), asked)] == [r.output_ids for r in requests(as_it_comes(), asked)]


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_architecture_gives_the_same_logits_prepared_and_not(architecture: str) -> None:
    ids = torch.tensor([[5, 9, 200, 31, 7]])
    with torch.inference_mode():
        prepared, plain = (model.hf(ids, use_cache=False).logits for model in (tiny(architecture), as_it_comes(architecture)))
    torch.testing.assert_close(prepared, plain, rtol=1e-4, atol=1e-4)
