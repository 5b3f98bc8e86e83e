"""The columns of the tables: a metric's title, how its value is written, and what is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cbbench.results.units import Format, number, percent, seconds, size, steps, times


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    show: Format = number
    legend: str = ""  # said under the table, where the title is no standard term
    higher_is_better: bool | None = None  # None: neither is

    def text(self, value: Any, counts_steps: bool = False) -> str:
        """A dash for what does not exist. `counts_steps`: a clock on which every step takes 1."""
        if value is None:
            return "-"
        return steps(value) if counts_steps and self.show is seconds else self.show(value)

    def heading(self, counts_steps: bool = False) -> str:
        return self.title.replace("tok/s", "tok/step") if counts_steps else self.title


def spread(value: float) -> str:
    return f"± {percent(value)}"


# fmt: off
TABLES: dict[str, list[Column]] = {
    "Throughput": [
        Column("output_tok_per_s", "output tok/s", higher_is_better=True),
        Column("output_spread_frac", "spread", spread, "half the distance between the fastest and the slowest round, of output tok/s"),
        Column("vs_base", "vs base", times, "output tok/s divided by that of the base row"),
        Column("total_tok_per_s", "total tok/s"), Column("duration_s", "duration", seconds),
        Column("steps", "steps", higher_is_better=False),
        Column("decode_step_s_p50", "decode step p50", seconds),
        Column("decode_host_frac", "host share", percent, "share of a decode step's time that is spent outside the model"),
        Column("prefill_roofline_frac", "prefill roofline", percent, "least possible time for prompts / time taken (100 % is the limit)"),
        Column("decode_roofline_frac", "decode roofline", percent, "least possible time for decoding / time taken (100 % is the limit)"),
        Column(
            "decode_memory_bound_frac", "memory-bound", percent,
            "share of that least time in steps where reading memory sets it, not arithmetic (weights in the CPU's cache read faster)",
        ),
    ],
    "Latency": [
        Column("ttft_s_p50", "TTFT p50", seconds, higher_is_better=False), Column("ttft_s_p90", "TTFT p90", seconds),
        Column("tpot_s_p50", "TPOT p50", seconds), Column("tpot_s_p90", "TPOT p90", seconds),
        Column("itl_s_p99", "ITL p99", seconds), Column("itl_s_max", "ITL max", seconds),
        Column("e2e_s_p50", "E2E p50", seconds), Column("e2e_s_p90", "E2E p90", seconds),
        Column("queue_wait_s_p90", "queued p90", seconds, "from arrival to the request's first step"),
        Column("lateness_s_max", "late max", seconds, "from arrival to when the engine first saw the request"),
    ],
    "Memory and waste": [
        Column("kv_utilization", "KV used", percent, "share of reserved + external KV memory that is written", higher_is_better=True),
        Column("kv_future_frac", "future", percent, "reserved, written later by the same request"),
        Column("kv_internal_frac", "internal", percent, "reserved, never written"),
        Column("kv_external_frac", "external", percent, "free, but in no hole large enough for the next waiting request"),
        Column("kv_peak_bytes", "KV peak", size),
        Column("kv_copy_bytes", "KV copied", size, "copied to grow, or to give attention the layout that it needs"),
        Column("peak_memory_bytes", "RAM peak", size, "above the level at the start of the round"),
        Column("prefill_padding_frac", "prefill padding", percent, higher_is_better=False),
        Column("decode_padding_frac", "decode padding", percent),
        Column("slot_idle_frac", "slots idle", percent, "places in the batch without an unfinished request", higher_is_better=False),
        Column("slot_idle_finished_frac", "finished", percent, "slots held by a finished request"),
        Column("slot_idle_starved_frac", "starved", percent, "slots empty while requests wait"),
        Column("slot_idle_drain_frac", "drained", percent, "slots empty while none waits"),
        Column("prefix_hit_frac", "prefix hits", percent, "prompt tokens found in the cache / all prompt tokens", higher_is_better=True),
        Column("prefix_ideal_frac", "ideal hits", percent, "prefix hits of a cache with endless memory"),
        Column("evicted_tokens", "evicted", legend="tokens that could be found again, until their memory was needed"),
        Column("kv_shared_frac", "shared", percent, "share of reserved KV memory that two or more sequences read"),
        Column("preemptions", "preempted"),
        Column("recomputed_tokens", "recomputed", legend="tokens computed again after a preemption"),
    ],
}
# fmt: on
COLUMNS = {column.key: column for columns in TABLES.values() for column in columns}
# What stands first, beside the arm and its requests: at most eight columns, and 80 characters where names are short.
MAIN = ("output_tok_per_s", "output_spread_frac", "vs_base", "ttft_s_p50", "slot_idle_frac", "kv_utilization")
MAIN_WITHOUT_MODEL = ("steps", "vs_base", "ttft_s_p50", "slot_idle_frac", "prefill_padding_frac", "kv_utilization")
HEADLINES = {*MAIN, *MAIN_WITHOUT_MODEL}  # never in a note below a table


def column_of(key: str) -> Column:
    """How any metric is written, those too that stand in no table."""
    if key in COLUMNS:
        return COLUMNS[key]
    is_time = "_s_" in key or key in ("model_s", "host_s")
    shows = {"_frac": percent, "_bytes": size, "utilization": percent}
    return Column(key, key, next((show for end, show in shows.items() if key.endswith(end)), seconds if is_time else number))
