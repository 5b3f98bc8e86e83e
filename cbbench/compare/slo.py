"""The best arm that keeps a service-level objective, and its goodput: requests a second that kept it."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cbbench.errors import UserError
from cbbench.results.metric_names import find_metric
from cbbench.results.metrics import request_latencies
from cbbench.results.store import Run
from cbbench.results.tables import Grid, number, seconds

MEASURES = ("ttft", "tpot", "e2e", "itl", "queue_wait")
POINTS = ("p50", "p90", "p99", "mean", "max")


@dataclass(frozen=True)
class Slo:
    """`ttft_p90=2s`: the 90th percentile of TTFT over a round's completed requests; for goodput each request's own TTFT."""

    text: str
    measure: str
    point: str
    bound_s: float


@dataclass(frozen=True)
class Scored:
    """One arm, medians over its rounds. `goodput` is None where nothing completed, or where a time
    that a bound is about is not known, as of peers that tell no times of tokens."""

    run: str
    arm: str
    measured: list[float | None]
    keeps: bool
    output_tok_per_s: float | None
    goodput: float | None
    good_frac: float | None


def parse_slos(texts: list[str]) -> list[Slo]:
    found = []
    for text in texts:
        name, _, bound = text.strip().rpartition("=")
        metric = re.fullmatch(rf"({'|'.join(MEASURES)})_s_({'|'.join(POINTS)})", find_metric(name) or "")
        size = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", bound)
        if not metric or not size:
            near = difflib.get_close_matches(text.partition("=")[0], [f"{m}_{p}" for m in MEASURES for p in POINTS], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"--slo {text}: should be like ttft_p90=2s, of {', '.join(MEASURES)} and {', '.join(POINTS)}{hint}")
        found.append(Slo(text, metric[1], metric[2], float(size[1]) / (1000 if size[2] == "ms" else 1)))
    return found


def score(run: Run, slos: list[Slo]) -> list[Scored]:
    """The arms that keep every objective first, the fastest first."""
    scored = []
    for arm in run.info["arms"]:
        cells = [c for c in run.cells if c.arm == arm["label"] and c.metrics and not c.interrupted]
        measured = [_median([c.metrics.get(f"{slo.measure}_s_{slo.point}") for c in cells]) for slo in slos]
        keeps = bool(slos) and all(value is not None and value <= slo.bound_s for value, slo in zip(measured, slos, strict=True))
        good = [_goodput(run.path / c.arm / str(c.round), c.metrics, slos) for c in cells]
        speed = _median([c.metrics.get("output_tok_per_s") for c in cells])
        rates, shares = _median([rate for rate, _ in good]), _median([share for _, share in good])
        scored.append(Scored(run.name, arm["label"], measured, keeps, speed, rates, shares))
    return sorted(scored, key=lambda s: (not s.keeps, -(s.output_tok_per_s or 0.0)))


def _median(values: list[Any]) -> float | None:
    found = [value for value in values if value is not None]
    return float(np.median(found)) if found else None


def _goodput(folder: Path, metrics: dict[str, Any], slos: list[Slo]) -> tuple[float | None, float | None]:
    """Good requests a second, and their share of all requests. Refused, failed and cancelled ones are not good."""
    requests = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    kept = [[_keeps(r, slo) for slo in slos] if r["state"] == "finished" else [False] for r in requests]
    if any(None in found and False not in found for found in kept):
        return None, None
    good = sum(all(found) for found in kept)
    duration_s = metrics.get("duration_s")
    return (good / duration_s if duration_s else None), (good / len(requests) if requests else None)


def _keeps(request: dict[str, Any], slo: Slo) -> bool | None:
    """A request of one token has no TPOT and no gaps, so it breaks no bound on them. None: its times are not known."""
    values = request_latencies(request)[f"{slo.measure}_s"]
    if not values and not (slo.measure in ("tpot", "itl") and request["token_times_s"]):
        return None
    return all(value <= slo.bound_s for value in values)


def as_grid(scored: list[Scored], slos: list[Slo]) -> Grid:
    headers = ["arm", "keeps it", *(slo.text for slo in slos), "output tok/s", "goodput req/s", "good requests"]
    lines = []
    for row in scored:
        measured = ["-" if value is None else seconds(value) for value in row.measured]
        rest = [("-" if value is None else number(value)) for value in (row.output_tok_per_s, row.goodput)]
        share = "-" if row.good_frac is None else f"{row.good_frac:.1%}"
        lines.append([row.arm, "yes" if row.keeps else "no", *measured, *rest, share])
    best = next((row.arm for row in scored if row.keeps), None)
    return Grid("Under the objective", headers, lines, f"best: {best}" if best else "no arm keeps it", 2, turns=False)
