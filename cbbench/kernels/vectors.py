"""Vectors for numba: what its compiler does not find by itself, written in LLVM's own terms.

numba does not keep a tile of accumulators in registers and knows no prefetch. An `@intrinsic` may: it is called like any
function inside `@njit` code and writes its instructions through `Vectors`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numba.types as types
from llvmlite import ir
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

_FEATURES = frozenset(cpu_target.target_context.codegen().magic_tuple()[2].split(","))  # of the CPU that numba compiles for
_ARM = platform.machine() in ("aarch64", "arm64")
LANES = 16 if "+avx512f" in _FEATURES else 8 if "+avx" in _FEATURES else 4  # floats of a vector
REGISTERS = 32 if LANES == 16 or _ARM else 16
HAS_FMA = "+fma" in _FEATURES or _ARM  # without it every product would be a call

integer, floats = types.int64, types.CPointer(types.float32)  # what intrinsics take


@intrinsic  # type: ignore[untyped-decorator]
def address(typing: Any, array: types.Array, index: types.Integer) -> Any:
    """Where an element of a contiguous array lies, counted through all its dimensions."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        return builder.gep(context.make_array(signature.args[0])(context, builder, values[0]).data, [values[1]])

    return types.CPointer(array.dtype)(array, integer), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing: Any, place: types.CPointer) -> Any:
    """Asks for the 64 bytes around an address, to be read soon. Any address will do."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        Vectors(builder).prefetch(values[0])
        return context.get_dummy_value()

    return types.void(place), generate


class Vectors:
    """Instructions on vectors of LANES floats."""

    number, flag = ir.IntType(64), ir.IntType(32)
    vector, whole = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(flag, LANES)

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.build = builder

    def place(self, start: Any, offset: Any) -> Any:
        """`offset` elements behind a pointer."""
        return self.build.gep(start, [self.number(offset) if isinstance(offset, int) else offset])

    def load(self, start: Any, offset: Any = 0) -> Any:
        return self.build.load(self._as_vector(self.place(start, offset)), align=4)

    def store(self, value: Any, start: Any, offset: Any = 0) -> None:
        self.build.store(value, self._as_vector(self.place(start, offset)), align=4)

    def _as_vector(self, pointer: Any) -> Any:
        return self.build.bitcast(pointer, self.vector.as_pointer())

    def spread(self, start: Any, offset: Any = 0) -> Any:
        """One float of memory in every lane."""
        one = self.build.insert_element(self.constant(None), self.build.load(self.place(start, offset)), self.flag(0))
        return self.shuffle(one, one, [0] * LANES)

    def constant(self, value: float | None) -> Any:
        return ir.Constant(self.vector, ir.Undefined if value is None else [value] * LANES)

    def shuffle(self, a: Any, b: Any, lanes: list[int]) -> Any:
        """Lanes of a, counted from 0, and of b, counted from LANES."""
        return self.build.shuffle_vector(a, b, ir.Constant(self.whole, lanes))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, rounded once."""
        return self.call("fma", a, b, c)

    def call(self, name: str, *values: Any) -> Any:
        """An operation of LLVM's that takes and gives vectors: fma, maxnum, floor."""
        kind = ir.FunctionType(self.vector, [self.vector] * len(values))
        return self.build.call(cgutils.get_or_insert_function(self.build.module, kind, f"llvm.{name}.v{LANES}f32"), values)

    def exp(self, x: Any) -> Any:
        """exp(x) for x <= 0, to about 1e-7, and 0 below -87: 2 ** (whole + rest), the whole part put straight into the exponent.

        Coefficients: the Cephes library's expf."""
        build, number = self.build, self.constant
        whole = self.call("floor", self.fma(x, number(1.44269504), number(0.5)))
        rest = self.fma(whole, number(2.12194440e-4), self.fma(whole, number(-0.693359375), x))
        series = number(1.9875691500e-4)
        for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            series = self.fma(series, rest, number(coefficient))
        series = build.fadd(self.fma(build.fmul(series, rest), rest, rest), number(1.0))
        within = build.fcmp_ordered(">", x, number(-87.0))
        biased = build.fptosi(build.select(within, build.fadd(whole, number(127.0)), number(0.0)), self.whole)
        power = build.bitcast(build.shl(biased, self.whole([23] * LANES)), self.vector)
        below = build.fcmp_ordered("<=", x, number(-87.0))  # neither, where x is no number: that must show
        return build.select(below, number(0.0), build.fmul(series, power))

    def silu(self, x: Any) -> Any:
        """x / (1 + exp(-x))."""
        build, one = self.build, self.constant(1.0)
        small = self.exp(build.fneg(self.call("fabs", x)))
        positive = build.fcmp_ordered(">", x, self.constant(0.0))
        return build.fmul(x, build.fdiv(build.select(positive, one, small), build.fadd(one, small)))

    def prefetch(self, place: Any) -> None:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, self.flag, self.flag, self.flag])
        read, soon, data = self.flag(0), self.flag(3), self.flag(1)
        call = cgutils.get_or_insert_function(self.build.module, kind, "llvm.prefetch.p0")
        self.build.call(call, [self.build.bitcast(place, byte), read, soon, data])

    def loop(self, stop: Any, start: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """body(index, values) for 0 <= index < stop, which is at least 1; what it returns is what the next turn gets."""
        build, before = self.build, self.build.block
        turn, after = build.append_basic_block("turn"), build.append_basic_block("after")
        build.branch(turn)
        build.position_at_end(turn)
        index, values = build.phi(self.number), [build.phi(value.type) for value in start]
        results = body(index, values)
        following = build.add(index, self.number(1))
        for phi, first, later in zip([index, *values], [self.number(0), *start], [following, *results], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, build.block)
        build.cbranch(build.icmp_signed("<", following, stop), turn, after)
        build.position_at_end(after)
        return results

    def choose(self, value: Any, most: int, body: Callable[[int], None]) -> None:
        """body(value), written out for 1 to `most`; nothing where it is none of them."""
        build = self.build
        end = build.append_basic_block("end")
        choice = build.switch(value, end)
        for case in range(1, most + 1):
            block = build.append_basic_block(f"case_{case}")
            choice.add_case(self.number(case), block)
            build.position_at_end(block)
            body(case)
            build.branch(end)
        build.position_at_end(end)
