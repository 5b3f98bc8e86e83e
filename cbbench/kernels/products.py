"""x W^T + b in float32 on a CPU: one register tile over weights laid out in panels, for one row of x as for a thousand.

A decode step is small products over all weights, so it is bound by reading them. A panel holds two vectors' width of outputs,
input by input, so a thread reads its share of the weights in one run, and each vector it reads meets ROWS rows of x in
registers. Every output is one chain of fused multiply-adds over the inputs in their order: what a row gets does not depend on
what stands beside it in the batch, bit by bit.

Source: Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008), section 4.2, the inner kernel.
"""

from __future__ import annotations

from typing import Any

import numba
import numba.types as types
import numpy as np
import torch
from numba.extending import intrinsic
from torch import nn

from cbbench.kernels.compiling import check_width, inlined, kernel, rows_of
from cbbench.kernels.vectors import LANES, REGISTERS, Vectors, address, floats, integer

VECTORS = 2  # of outputs in a panel, or one of gates and one of what they gate
PANEL = VECTORS * LANES
ROWS = 8 if REGISTERS == 32 else 6  # their accumulators, a panel's weights and one x fill the registers
AHEAD = 4096  # floats of weights asked for before they are needed: behind the end of a page the CPU does not guess


def in_panels(weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """[outputs, inputs] and [outputs] as [panels, inputs, PANEL] and [panels * PANEL], filled up with zeros."""
    outputs, inputs = weight.shape
    num_panels = -(-outputs // PANEL)
    lines, ends = np.zeros((num_panels * PANEL, inputs), np.float32), np.zeros(num_panels * PANEL, np.float32)
    lines[:outputs] = weight.detach().numpy()
    if bias is not None:
        ends[:outputs] = bias.detach().numpy()
    return np.ascontiguousarray(lines.reshape(num_panels, PANEL, inputs).swapaxes(1, 2)), ends


class Panels:
    """One linear layer: [..., inputs] -> [..., outputs]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.outputs = len(weight)
        self.weight, self.bias = in_panels(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        check_width(x, self.weight.shape[1])
        rows = rows_of(x)
        out = torch.empty(len(rows), len(self.bias))
        product_rows(rows, self.weight, self.bias, out.numpy())
        return out[:, : self.outputs].view(*x.shape[:-1], self.outputs)


class GatedPanels:
    """down(silu(gate(x)) * up(x)), three linear layers as one: [..., inputs] -> [..., outputs].

    A panel holds one vector's width of gates and one of ups, which meet before they leave the registers. Source: Shazeer, GLU
    Variants Improve Transformer (2020)."""

    def __init__(self, gate: nn.Linear, up: nn.Linear, down: nn.Linear) -> None:
        self.outputs = down.out_features
        weight = torch.stack([_by_vector(part.weight.detach()) for part in (gate, up)], 1).flatten(0, 2)
        no_bias = torch.zeros(gate.out_features)
        bias = torch.stack([_by_vector(no_bias if part.bias is None else part.bias.detach()) for part in (gate, up)], 1).flatten()
        self.gate_up, self.gate_up_bias = in_panels(weight, bias)
        self.down, self.down_bias = in_panels(down.weight, down.bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        check_width(x, self.gate_up.shape[1])
        rows = rows_of(x)
        hidden, out = torch.empty(len(rows), len(self.gate_up) * LANES), torch.empty(len(rows), len(self.down_bias))
        gated_rows(rows, self.gate_up, self.gate_up_bias, hidden.numpy(), self.down, self.down_bias, out.numpy())
        return out[:, : self.outputs].view(*x.shape[:-1], self.outputs)


def _by_vector(lines: torch.Tensor) -> torch.Tensor:
    """[outputs, ...] -> [vectors, LANES, ...], filled up with zeros."""
    missing = -len(lines) % LANES
    filled = torch.cat([lines, lines.new_zeros(missing, *lines.shape[1:])])
    return filled.view(-1, LANES, *lines.shape[1:])


@kernel()
def product_rows(x, weight, bias, out):  # type: ignore[no-untyped-def]
    """x [T, at least inputs], weight [panels, inputs, PANEL], bias [panels * PANEL] into out [T, panels * PANEL]."""
    for panel in numba.prange(len(weight)):
        _through(panel, x, weight, bias, out, PANEL)


@kernel()
def gated_rows(x, gate_up, gate_up_bias, hidden, down, down_bias, out):  # type: ignore[no-untyped-def]
    """hidden [T, panels * LANES] lies between the two products."""
    for panel in numba.prange(len(gate_up)):
        _through(panel, x, gate_up, gate_up_bias, hidden, LANES)
    product_rows(hidden, down, down_bias, out)


@inlined()
def _through(panel, x, weight, bias, out, width):  # type: ignore[no-untyped-def]
    """All rows of x through one panel, which leaves `width` floats of each: all, or gated by one another."""
    num_rows, inputs = len(x), weight.shape[1]
    tiles = (num_rows + ROWS - 1) // ROWS
    for tile in range(tiles):  # of even height
        first, last = tile * num_rows // tiles, (tile + 1) * num_rows // tiles
        _tile(
            last - first + (ROWS if width == LANES else 0), inputs, address(x, first * x.shape[1]), x.shape[1],
            address(weight, panel * inputs * PANEL), AHEAD if tile == 0 else 0,  # the other tiles find the panel in the cache
            address(bias, panel * PANEL), address(out, first * out.shape[1] + panel * width), out.shape[1],
        )  # fmt: skip


@intrinsic  # type: ignore[untyped-decorator]
def _tile(typing: Any, height: Any, inputs: Any, x: Any, x_step: Any, weight: Any, ahead: Any, bias: Any, out: Any, out_step: Any) -> Any:
    """`height` rows of x, 1 to ROWS, times one panel; ROWS more for gated ones. `x_step` and `out_step` floats lie from a row to
    the next, and weights `ahead` are asked for."""
    signature = types.void(integer, integer, floats, integer, floats, integer, floats, floats, integer)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        height, inputs, x, x_step, weight, ahead, bias, out, out_step = values
        on = Vectors(builder)

        def rows_of(start: Any, step: Any, rows: int) -> list[Any]:
            return [on.place(start, builder.mul(step, on.number(row))) for row in range(rows)]

        def write(case: int) -> None:
            gated, rows = divmod(case - 1, ROWS)
            lines = rows_of(x, x_step, rows + 1)

            def turn(index: Any, sums: list[Any]) -> list[Any]:
                here = on.place(weight, builder.mul(index, on.number(PANEL)))
                weights = [on.load(here, v * LANES) for v in range(VECTORS)]
                for v in range(VECTORS):
                    on.prefetch(on.place(on.place(here, ahead), v * LANES))
                inputs_here = [on.spread(line, index) for line in lines]
                return [on.fma(x, w, sums[row * VECTORS + v]) for row, x in enumerate(inputs_here) for v, w in enumerate(weights)]

            sums = on.loop(inputs, [on.load(bias, v * LANES) for v in range(VECTORS)] * len(lines), turn)
            for row, line in enumerate(rows_of(out, out_step, len(lines))):
                results = sums[row * VECTORS : (row + 1) * VECTORS]
                if gated:
                    gate, up = results
                    results = [builder.fmul(on.silu(gate), up)]
                for v, result in enumerate(results):
                    on.store(result, line, v * LANES)

        on.choose(height, 2 * ROWS, write)
        return context.get_dummy_value()

    return signature, generate
