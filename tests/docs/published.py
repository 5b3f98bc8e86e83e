"""Stated figures that follow from lengths and rules alone, computed by this engine under its virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tests.results.test_metrics import CHAPTER, drawn_lengths, use_of_slots
from tests.support.engines import run_virtual
from tests.support.virtual_runs import asked, metrics

STATIC_CHAPTER, LENGTHS = "tutorial, static chapter", "worked example, lengths of the tutorial's continuous chapter"
EXAMPLE, ANYSCALE = "worked example", "lengths as in Anyscale's study"


@dataclass(frozen=True)
class Figure:
    source: str
    what: str
    stated: str
    computed: str


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def figures() -> Iterator[Figure]:
    static = metrics(run_virtual(asked((10, 15), (30, 10), (5, 20), (20, 12)), "static", "padded"))
    yield Figure(STATIC_CHAPTER, "static, one batch of four: prefill padding", "46 %", percent(static["prefill_padding_frac"]))
    yield Figure(STATIC_CHAPTER, "... slots idle", "29 %", percent(static["slot_idle_frac"], 2))
    for scheduler, slots, steps in (("static", 4, 87), ("continuous", 4, 85), ("static", 8, 48)):
        row = metrics(run_virtual(asked(*CHAPTER), scheduler, "padded", max_num_seqs=slots))
        yield Figure(LENGTHS, f"eight requests, {scheduler}, {slots} slots: steps", str(steps), str(row["steps"]))
    for prompts, padding in (((47, 312, 128), "48.0 %"), ((8, 256, 32), "61.5 %")):
        row = metrics(run_virtual(asked(*((prompt, 1) for prompt in prompts)), attn="padded"))
        yield Figure(EXAMPLE, f"prompts {', '.join(map(str, prompts))}: padding", padding, percent(row["prefill_padding_frac"]))
    yield from _memory()
    yield from _anyscale()


def _memory() -> Iterator[Figure]:
    four = asked((470, 11), (20, 11), (190, 11), (5, 6), allowed=31)
    eight = asked(*[(11, 20)] * 8, allowed=40)
    whole = run_virtual(four, kv="preallocated", budget_tokens=2000, options={"kv.max_len": 500})
    yield _used("ends at 480, 30, 200, 10 tokens, regions of 500: used", "36.0 %", whole)
    yield _used("... in blocks of 16: used", "97.8 %", run_virtual(four, options={"kv.block_size": 16}))
    for kv, said in (("preallocated", "60 %"), ("paged", "93.75 %")):
        engine = run_virtual(eight, kv=kv, max_num_seqs=8, options={"kv.block_size": 16})
        yield _used(f"eight requests end at 30 of 50 allowed tokens, {kv}: used", said, engine)


def _used(what: str, said: str, engine: object) -> Figure:
    return Figure(EXAMPLE, what, said, percent(metrics(engine)["kv_final_utilization"], 2))


def _anyscale() -> Iterator[Figure]:
    """The stated value is one draw of 1000 requests; ours are 200 such draws, mean and standard deviation."""
    for cap, batch, said in ((32, 16, "51.2 %"), (128, 12, "48.7 %"), (512, 8, "38.7 %"), (1536, 4, "48.4 %")):
        draws = [use_of_slots(drawn_lengths(seed, cap, 1000), batch) for seed in range(200)]
        computed = f"{percent(float(np.mean(draws)))} ± {100 * float(np.std(draws)):.1f}"
        yield Figure(ANYSCALE, f"static, outputs up to {cap}, batches of {batch}: slots used", said, computed)


def as_markdown() -> str:
    rows = [[f.source, f.what, f.stated, f.computed] for f in figures()]
    headers = ["source", "what", "stated", "computed here"]
    frame = pd.DataFrame(rows, columns=range(4))
    return str(frame.to_markdown(index=False, headers=headers, colalign=("left", "left", "right", "right"), disable_numparse=True))
