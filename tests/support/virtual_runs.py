"""Requests by their lengths, and the metrics of a run. Shared by the tests of metrics."""

from __future__ import annotations

import json
from typing import Any

from cbbench.engine.loop import Engine
from cbbench.request import Request
from cbbench.results.metrics import summarize

SMOLLM2_BYTES = 46_080  # a token


def asked(*lengths: tuple[int, int], allowed: int | None = None, arrival_s: float = 0.0) -> list[Request]:
    """(prompt, output) lengths -> requests that end there; `allowed` new tokens, where it is more than they use."""
    return [
        Request(f"r{i}", tuple(range(1, prompt + 1)), allowed or output, arrival_s, allowed is None, (7,) * output)
        for i, (prompt, output) in enumerate(lengths)
    ]


def metrics(engine: Engine, **cell: Any) -> dict[str, Any]:
    """Through JSON text, as from disk: whatever is no strict JSON fails here."""
    lines = [json.loads(json.dumps(rows, allow_nan=False)) for rows in (engine.record().step_lines(), engine.record().request_lines())]
    row = summarize(*lines, {"bytes_per_token": SMOLLM2_BYTES, **cell})
    json.dumps(row, allow_nan=False)
    return row
