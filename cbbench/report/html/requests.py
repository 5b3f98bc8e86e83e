"""Which requests can be followed through the page, and what became of each in every arm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cbbench.results.metrics import ended_s, request_latencies
from cbbench.results.rounds import SavedRound

COLUMNS = ("queued", "TTFT", "TPOT", "E2E", "preempted")
Record = dict[str, Any]


def followed(panels: list[SavedRound], limit: int) -> list[int]:
    """Sequences in order of arrival; of too many, out of each run of neighbours the one that took longest in any arm."""
    took: dict[int, float] = {}
    arrival_s: dict[int, float] = {}
    for recorded in panels:
        for request in recorded.requests:
            index = request["index"]
            arrival_s.setdefault(index, request["arrival_s"])
            took[index] = max(took.get(index, 0.0), (ended_s(request) or request["arrival_s"]) - request["arrival_s"])
    in_order = sorted(took, key=lambda index: (arrival_s[index], index))
    if len(in_order) <= limit:
        return in_order
    return [max(part.tolist(), key=took.__getitem__) for part in np.array_split(np.array(in_order), limit)]


def name(request: Record, longest: int = 48) -> str:
    """`#3 its-id`, cut where it is long."""
    identity = str(request["id"])
    return f"#{request['index']} {identity if len(identity) <= longest else identity[: longest - 1] + '…'}"


def told(request: Record, time: Callable[[float], str]) -> list[str]:
    """COLUMNS of one request, a dash for what does not exist."""
    own = request_latencies(request)
    values = [time(own[key][0]) if own[key] else "-" for key in ("queue_wait_s", "ttft_s", "tpot_s", "e2e_s")]
    preemptions = request["num_preemptions"]
    return [*values, "-" if preemptions is None else str(preemptions)]


def describe(panels: list[SavedRound], chosen: list[int], time: Callable[[float], str]) -> list[Record]:
    """Per followed request its name, its lengths, and `told` of each arm in the order of `panels`."""
    by_index = [{request["index"]: request for request in recorded.requests} for recorded in panels]
    found = []
    for index in chosen:
        known = [requests.get(index) for requests in by_index]
        first = next(request for request in known if request)
        lengths = f"{first['prompt_tokens']} prompt tokens, up to {first['max_new_tokens']} new"
        found.append({"index": index, "name": name(first, 80), "lengths": lengths, "told": [told(r, time) if r else None for r in known]})
    return found
