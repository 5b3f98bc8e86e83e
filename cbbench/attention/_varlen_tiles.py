"""The inner loops of the CPU kernel behind `varlen`, in vectors: LINES queries against KEYS keys at a time.

One vector holds the scores of LINES queries and KEYS keys, key by key, so maxima, exponentials and sums go over all of its
lanes at once. Functions take addresses of float32 arrays; an array of keys or values is a start and, for each key, how many
floats behind it that key lies.
"""

from __future__ import annotations

from typing import Any

import numba.types as types
from numba.extending import intrinsic

from cbbench.kernels.vectors import LANES, Vectors, floats, integer

KEYS = 4
LINES = LANES // KEYS
MOST_VECTORS = 4  # of a value that are summed at once
UNSEEN = -2e30  # the score of a key that a query does not see
LOWEST = -1e30  # the peak of a query that has seen none: above UNSEEN, so that such a key weighs nothing from the start
offsets = types.CPointer(types.int64)


@intrinsic  # type: ignore[untyped-decorator]
def score(typing: Any, queries: Any, step: Any, keys: Any, places: Any, vectors: Any, out: Any) -> Any:
    """Dot products of LINES queries, `step` floats apart, and KEYS keys, each `vectors` vectors long; writes one vector."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        queries, step, keys, places, vectors, out = values
        on = Vectors(builder)
        lines = [on.place(queries, builder.mul(step, on.number(line))) for line in range(LINES)]
        rows = [on.place(keys, builder.load(on.place(places, key))) for key in range(KEYS)]

        def turn(index: Any, sums: list[Any]) -> list[Any]:
            offset = builder.mul(index, on.number(LANES))
            loaded = [on.load(row, offset) for row in rows]
            asked = [on.load(line, offset) for line in lines]
            return [on.fma(q, k, sums[key * LINES + line]) for key, k in enumerate(loaded) for line, q in enumerate(asked)]

        sums = on.loop(vectors, [on.constant(0.0)] * LANES, turn)
        size = 1  # lanes that belong together; each round halves the vectors and the lanes that are left to add
        while size < LANES:
            lanes = range(LANES)
            even = [lane - size + LANES if lane & size else lane for lane in lanes]
            odd = [lane + LANES if lane & size else lane + size for lane in lanes]
            pairs = zip(sums[::2], sums[1::2], strict=True)
            sums = [builder.fadd(on.shuffle(a, b, even), on.shuffle(a, b, odd)) for a, b in pairs]
            size *= 2
        on.store(sums[0], out)
        return context.get_dummy_value()

    return types.void(floats, integer, floats, offsets, integer, floats), generate


@intrinsic  # type: ignore[untyped-decorator]
def soften(typing: Any, scores: Any, vectors: Any, peak: Any, total: Any, fade: Any) -> Any:
    """Turns `vectors` vectors of scores into weights. `peak` [LANES], each query's highest score yet, and `total` [LANES], the
    sum of its weights in KEYS parts, are brought up to date; `fade` [LANES] is what earlier sums must be multiplied by."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        scores, vectors, peak, total, fade = values
        on = Vectors(builder)

        def here(index: Any) -> Any:
            return on.place(scores, builder.mul(index, on.number(LANES)))

        before = on.load(peak)
        (highest,) = on.loop(vectors, [before], lambda index, top: [on.call("maxnum", on.load(here(index)), top[0])])
        distance = LINES
        while distance < LANES:  # over the keys of a vector
            highest = on.call("maxnum", highest, on.shuffle(highest, highest, [(lane + distance) % LANES for lane in range(LANES)]))
            distance *= 2
        faded = on.exp(builder.fsub(before, highest))

        def turn(index: Any, sums: list[Any]) -> list[Any]:
            weights = on.exp(builder.fsub(on.load(here(index)), highest))
            on.store(weights, here(index))
            return [builder.fadd(sums[0], weights)]

        (sums,) = on.loop(vectors, [builder.fmul(on.load(total), faded)], turn)
        on.store(highest, peak)
        on.store(sums, total)
        on.store(faded, fade)
        return context.get_dummy_value()

    return types.void(floats, integer, floats, floats, floats), generate


@intrinsic  # type: ignore[untyped-decorator]
def mix(typing: Any, weights: Any, count: Any, values: Any, places: Any, vectors: Any, out: Any, step: Any) -> Any:
    """Adds `count` values, weighted, to LINES sums, `step` floats apart; `vectors` vectors of each, 1 to MOST_VECTORS."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, count, values, places, vectors, out, step = arguments
        on = Vectors(builder)

        def write(num: int) -> None:
            lines = [on.place(out, builder.mul(step, on.number(line))) for line in range(LINES)]

            def turn(index: Any, sums: list[Any]) -> list[Any]:
                value = on.place(values, builder.load(on.place(places, index)))
                loaded = [on.load(value, v * LANES) for v in range(num)]
                mine = on.place(weights, builder.mul(index, on.number(LINES)))
                spread = [on.spread(mine, line) for line in range(LINES)]
                return [on.fma(w, x, sums[line * num + v]) for line, w in enumerate(spread) for v, x in enumerate(loaded)]

            begin = [on.load(line, v * LANES) for line in lines for v in range(num)]
            sums = on.loop(count, begin, turn)
            for line, place in enumerate(lines):
                for v in range(num):
                    on.store(sums[line * num + v], place, v * LANES)

        on.choose(vectors, MOST_VECTORS, write)
        return context.get_dummy_value()

    return types.void(floats, integer, floats, offsets, integer, floats, integer), generate
