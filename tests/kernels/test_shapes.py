"""Native code checks its shapes where it is entered: nothing is read beside what it was given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cbbench.attention._varlen_cpu import CpuKernel
from cbbench.attention.base import LayerCall, packed_pass
from cbbench.kernels import compiling
from cbbench.kernels.norms import rms_norm
from cbbench.kernels.products import GatedPanels, Panels
from cbbench.kvcache.base import KVSpec
from tests.support.filled_cache import FilledCache

SPEC = KVSpec(num_layers=1, num_kv_heads=2, head_dim=8, itemsize=4)


def test_rows_of_another_width_type_or_place_are_refused_by_every_kernel() -> None:
    panels, gated = Panels(torch.randn(12, 8), None), GatedPanels(nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8))
    for call in (panels, gated, lambda x: rms_norm(x, torch.ones(8), 1e-6)):
        call(torch.randn(3, 8))  # type: ignore[operator]
        for bad in (
            torch.randn(3, 7),
            torch.randn(3, 9),
            torch.randn(3, 8).double(),
            torch.randn(3, 8).bfloat16(),
            torch.randn(3, 8).to("meta"),
        ):
            with pytest.raises(ValueError, match="a kernel for float32 rows of 8 on a CPU was given"):
                call(bad)  # type: ignore[operator]


def kernel(kv: str, **options: Any) -> tuple[CpuKernel, Any, int]:
    filled = FilledCache(kv, options, SPEC)
    people = filled.fill(9, 20)
    rows = [filled.row(one, 1) for one in people]
    view = filled.write(rows)
    return CpuKernel(packed_pass(rows), view, torch.device("cpu")), view, len(rows)


CALL = LayerCall(0, 0.3, None)


@pytest.mark.parametrize(("kv", "options"), [("paged", {"block_size": 4}), ("preallocated", {"reserve": "exact"}), ("cat", {})])
def test_attention_refuses_what_does_not_fit(kv: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made, view, num_rows = kernel(kv, **options)
    assert made.attend(CALL, torch.randn(num_rows, 4, 8), view).shape == (num_rows, 4, 8)
    for queries in (torch.randn(num_rows + 1, 4, 8), torch.randn(num_rows, 3, 8), torch.randn(num_rows, 4, 16)):
        with pytest.raises(ValueError, match="varlen's cpu kernel was given queries"):
            made.attend(CALL, queries, view)
    keys, values = view.pool(0)
    for bad_keys, bad_values in (
        (keys[: made.num_entries - 1], values[: made.num_entries - 1]),
        (keys, values[:-1]),
        (keys[..., :4], values[..., :4]),
    ):
        monkeypatch.setattr(view, "pool", lambda layer, both=(bad_keys, bad_values): both)
        with pytest.raises(ValueError, match="varlen's cpu kernel"):
            made.attend(CALL, torch.randn(num_rows, 4, 8), view)
    monkeypatch.setattr(view, "pool", lambda layer: (keys.repeat(1, 1, 2)[..., ::2], values.repeat(1, 1, 2)[..., ::2]))
    with pytest.raises(ValueError, match="without gaps"):
        made.attend(CALL, torch.randn(num_rows, 4, 8), view)


def test_tests_run_with_every_index_checked() -> None:
    assert compiling.CHECKED and compiling.kernel.keywords["boundscheck"] and compiling.inlined.keywords["boundscheck"]
