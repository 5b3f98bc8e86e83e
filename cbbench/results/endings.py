"""Why requests were refused, failed or cancelled: what the counts of a round do not say."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress

from cbbench.results.store import Cell, Run


def endings(run: Run, cells: list[Cell]) -> dict[tuple[str, str], int]:
    """(state, reason) -> requests, in the round where most of them ended otherwise than finished; empty where all did."""
    found: Counter[tuple[str, str]] = Counter()
    for cell in cells:
        if not any(cell.metrics.get(f"requests_{state}") for state in ("refused", "failed", "cancelled")):
            continue
        here: Counter[tuple[str, str]] = Counter()
        with suppress(OSError, ValueError, KeyError, TypeError):
            for line in (run.path / cell.arm / str(cell.round) / "requests.jsonl").read_text().splitlines():
                request = json.loads(line)
                if request["state"] != "finished":
                    state = request["state"] if request["state"] in ("refused", "cancelled") else "unfinished"
                    here[state, str(request["reason"] or "the run ended before")] += 1
        found = max(found, here, key=lambda counts: counts.total())
    return dict(found.most_common())
