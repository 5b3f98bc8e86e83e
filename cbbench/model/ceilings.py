"""What this machine can do at most: read bandwidth and matrix rate, measured once and kept with its fingerprint.

The ceiling beside the number: `roofline_frac` of a step is the time that its weights, keys and values and its products
must take at these rates, over the time it took (Williams, Waterman and Patterson, 2009).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from cbbench.atomic import replacing
from cbbench.clock import RealClock
from cbbench.folders import cache_dir

ROUNDS = 20  # some seconds: a machine that is shared, or that has just begun, is often slow for a quarter of one


def _place(fingerprint: dict[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "machines" / f"{name}.json"


def stored(fingerprint: dict[str, Any]) -> dict[str, float] | None:
    """What `cbbench doctor` measured on this machine with this many threads; None where it has not."""
    try:
        rates = json.loads(_place(fingerprint).read_text())
        return {"bytes_per_s": float(rates["bytes_per_s"]), "flop_per_s": float(rates["flop_per_s"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def measure(fingerprint: dict[str, Any], device: str) -> dict[str, float]:
    """The best of many, in turns: reading 512 MiB, and a square product of 2,048, in float32 on a CPU and bfloat16 elsewhere.

    A ceiling is the best ever seen: a rate taken while the machine was busy does not replace a higher one."""
    import torch

    from cbbench.model.fused_layers import product

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    big = torch.ones(1 << 27, dtype=torch.float32, device=device)
    square = torch.randn(2048, 2048, device=device).to(dtype)

    def taken_s(work: Any) -> float:
        clock = RealClock()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        return clock.now()

    packed = product(square, None)  # what the prepared model runs, where it is faster
    rounds = [[taken_s(work) for work in (big.sum, lambda: square @ square, lambda: packed(square))] for _ in range(ROUNDS)]
    reading_s, *products_s = (min(times[1:]) for times in zip(*rounds, strict=True))
    rates = {"bytes_per_s": big.nbytes / reading_s, "flop_per_s": 2 * 2048**3 / min(products_s)}
    rates = {name: max(rate, (stored(fingerprint) or rates)[name]) for name, rate in rates.items()}
    place = _place(fingerprint)
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as half:
        half.write_text(json.dumps(rates))
    return rates
