"""Our own kernels in float32 on a CPU: products, the gated unit, the norm. In every vector width that this CPU has."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from cbbench.kernels.norms import rms_norm
from cbbench.kernels.products import PANEL, ROWS, GatedPanels, Panels
from cbbench.kernels.vectors import LANES
from tests.support.commands import ENVIRONMENT

SIZES = [(1, 1), (7, 3), (PANEL, 16), (PANEL + 1, 40), (3 * PANEL - 1, 129)]  # outputs, inputs
every_size = pytest.mark.parametrize(("outputs", "inputs"), SIZES)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    largest = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * max(1.0, largest))


@every_size
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_the_linear_layer(outputs: int, inputs: int, biased: bool) -> None:
    weight, bias = normal(outputs, inputs, seed=1), normal(outputs, seed=2) if biased else None
    product = Panels(weight, bias)
    for rows in range(2 * ROWS + 2):
        x = normal(rows, inputs, seed=rows)
        assert_close(product(x), nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double()))


@every_size
def test_what_a_row_gets_does_not_depend_on_the_rows_beside_it(outputs: int, inputs: int) -> None:
    product, x = Panels(normal(outputs, inputs), None), normal(3 * ROWS + 1, inputs)
    whole = product(x)
    for rows in range(1, len(x) + 1):
        assert torch.equal(product(x[-rows:]), whole[-rows:])


def test_a_product_takes_any_leading_dimensions_and_strides() -> None:
    weight, x = normal(5, 12), normal(4, 12, 3).transpose(1, 2)
    found = Panels(weight, None)(x)
    assert found.shape == (4, 3, 5)
    assert_close(found, nn.functional.linear(x.double(), weight.double()))


def test_a_number_that_is_none_stays_in_its_own_row() -> None:
    x = normal(ROWS + 1, 12)
    x[2, 3] = torch.nan
    found = Panels(normal(40, 12), None)(x)
    assert found[2].isnan().all() and not found[[0, 1, *range(3, ROWS + 1)]].isnan().any()


@every_size
@pytest.mark.parametrize("biased", [False, True])
def test_the_gated_unit_is_its_three_layers(outputs: int, inputs: int, biased: bool) -> None:
    torch.manual_seed(0)
    gate, up, down = nn.Linear(inputs, outputs, biased), nn.Linear(inputs, outputs, biased), nn.Linear(outputs, inputs, biased)
    unit = GatedPanels(gate, up, down)
    gate, up, down = gate.double(), up.double(), down.double()
    whole = unit(normal(2 * ROWS + 2, inputs) * 30)
    for rows in range(1, 2 * ROWS + 2):
        x = normal(2 * ROWS + 2, inputs)[:rows] * 30  # gates far from zero on both sides
        with torch.inference_mode():
            assert_close(unit(x), down(nn.functional.silu(gate(x.double())) * up(x.double())))
        assert torch.equal(unit(x), whole[:rows])


@pytest.mark.parametrize("width", [1, 15, 64, 577])
def test_the_norm_is_the_formula(width: int) -> None:
    x, weight = normal(2, 5, width) * torch.tensor([1e-4, 1.0, 30.0, 1e4, 0.0])[:, None], normal(width, seed=3)
    wide = x.double()
    assert_close(rms_norm(x, weight, 1e-5), wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double())


NARROWER = {8: ("znver3", "+avx,+avx2,+fma"), 4: ("generic", "")}  # what numba is told to compile for, by lanes


@pytest.mark.skipif(platform.machine() != "x86_64", reason="vectors of another kind")
@pytest.mark.parametrize("lanes", [lanes for lanes in NARROWER if lanes < LANES])
def test_narrower_vectors_compute_the_same(lanes: int) -> None:
    """As on a CPU that has no wider ones: the tests above, and attention's, again."""
    name, features = NARROWER[lanes]
    environment = ENVIRONMENT | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "CBBENCH_CHECK": "0"}  # as users run them
    seen = f"from cbbench.kernels.vectors import LANES; assert LANES == {lanes}; import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"
    tests = [
        "tests/kernels/test_kernels.py",
        "tests/attention/test_attention.py",
        "-k",
        "not narrower and not padded and not serial and not unbatched",
    ]
    done = subprocess.run([sys.executable, "-c", seen, "-q", *tests], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-500:]
