"""Which metrics are judged, what is better, and how sure one must be.

Timed metrics differ from round to round: intervals and a margin. Exact ones are counts that the strategies decide: one
round, tolerance zero, the same on any machine, and the first thing that a change of batching breaks.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MARGIN = 0.05
BUSY_FRAC = 0.05  # of the machine taken by others; above it the times of a round are not compared
METRICS_VERSION = 5  # of what the numbers mean; stored ones of another version are computed anew


@dataclass(frozen=True)
class Metric:
    key: str
    title: str
    higher_is_better: bool = False
    exact: bool = False
    gated: bool = True  # whether a plain --fail-on regressed looks at it


TIMED = [
    Metric("output_tok_per_s", "output tok/s", higher_is_better=True),
    Metric("ttft_s_p50", "TTFT p50"),
    Metric("tpot_s_p50", "TPOT p50"),
    Metric("peak_memory_bytes", "RAM peak", gated=False),  # of 13 MiB, A against A is unknown to 70 %; KV bytes are exact
    Metric("ttft_s_p90", "TTFT p90", gated=False),
    Metric("tpot_s_p90", "TPOT p90", gated=False),
    Metric("itl_s_p99", "ITL p99", gated=False),
    Metric("e2e_s_p50", "E2E p50", gated=False),
    Metric("decode_step_s_p50", "decode step p50", gated=False),
    Metric("host_s", "host time", gated=False),
]
EXACT = [
    Metric("output_digest", "output tokens", exact=True),
    Metric("output_tokens", "generated tokens", exact=True, higher_is_better=True),
    Metric("steps", "steps", exact=True),
    Metric("passes", "forward passes", exact=True),
    Metric("ttft_steps_sum", "TTFT steps", exact=True),
    Metric("ttft_steps_max", "TTFT steps max", exact=True),
    Metric("e2e_steps_sum", "E2E steps", exact=True),
    Metric("e2e_steps_max", "E2E steps max", exact=True),
    Metric("itl_steps_max", "ITL steps max", exact=True),
    Metric("idle_slots", "idle slots", exact=True),
    Metric("padded_positions", "padded positions", exact=True),
    Metric("recomputed_tokens", "recomputed tokens", exact=True),
    Metric("preemptions", "preemptions", exact=True),
    Metric("kv_reserved_tokens_peak", "KV tokens peak", exact=True),
    Metric("kv_reserved_token_steps", "KV tokens over steps", exact=True),
    Metric("kv_peak_bytes", "KV bytes peak", exact=True),
    Metric("kv_copy_bytes", "KV bytes copied", exact=True),
    Metric("kv_copy_tokens", "KV tokens copied", exact=True),
]
WRONG = Metric("exact_wrong", "wrong tokens", exact=True)  # never compared: one is too many
METRICS = {metric.key: metric for metric in (*EXACT, *TIMED, WRONG)}
ALIASES = {"throughput": "output_tok_per_s", "ttft": "ttft_s_p50", "tpot": "tpot_s_p50", "memory": "peak_memory_bytes"}
