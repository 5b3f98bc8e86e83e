"""What every number means: `cbbench list metrics`, and the tables of docs/metrics.md.

Every metric is computed by metrics.py from the records of a run alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Definition:
    """`name` as in summary.csv and --format json; `_*` at its end stands for _mean, _p50, _p90, _p99 and _max."""

    name: str
    unit: str
    meaning: str
    source: str  # the files of a round that it is computed from


# fmt: off
DEFINITIONS: dict[str, list[Definition]] = {
    "Tokens": [
        Definition("exact_checked", "requests", "requests that have reference tokens to compare with", "requests"),
        Definition("exact_matched", "requests", "of those, requests whose tokens equal the reference", "requests"),
        Definition("exact_ties", "requests", "of those, requests whose first difference is a near tie of the two best logits", "requests"),
        Definition("exact_wrong", "requests", "of those, requests that differ in any other way", "requests"),
        Definition("requests_completed", "requests", "requests that ran to their end", "requests"),
        Definition("requests_failed", "requests", "requests that started and never ended", "requests"),
        Definition("requests_refused", "requests", "requests that could never run: too long for the cache or the model", "requests"),
        Definition("requests_cancelled", "requests", "requests that were cancelled", "requests"),
        Definition("prompt_tokens", "tokens", "prompt tokens of completed requests", "requests"),
        Definition("output_tokens", "tokens", "output tokens of completed requests", "requests"),
        Definition("output_digest", "hex", "first 16 digits of SHA-256 over all output token ids", "requests"),
    ],
    "Throughput": [
        Definition("output_tok_per_s", "1/s", "output tokens of completed requests / duration", "requests"),
        Definition("vs_first", "ratio", "output tok/s / output tok/s of the table's first row", "requests"),
        Definition("total_tok_per_s", "1/s", "prompt and output tokens of completed requests / duration", "requests"),
        Definition("requests_per_s", "1/s", "completed requests / duration", "requests"),
        Definition("duration_s", "s", "first arrival to last token, over completed requests", "requests"),
        Definition("steps", "count", "steps of the engine", "steps"),
        Definition("model_s", "s", "time inside forward passes of the model", "steps"),
        Definition("host_s", "s", "time of all steps outside forward passes: scheduling, layout, bookkeeping", "steps"),
        Definition("decode_step_s_p50", "s", "median duration of the steps that only decode", "steps"),
        Definition("decode_host_frac", "share", "share of those steps' time that is host time", "steps"),
        Definition("prefill_roofline_frac", "share", "least time this machine needs for steps with prompts / time taken", "steps, cell"),
        Definition("decode_roofline_frac", "share", "least time this machine needs for steps that only decode / time taken", "steps, cell"),
    ],
    "Latency": [
        Definition("ttft_s_*", "s", "time to first token: arrival to first output token", "requests"),
        Definition("tpot_s_*", "s", "time per output token: (last - first token) / (tokens - 1) of a request", "requests"),
        Definition("itl_s_*", "s", "inter-token latency: every gap between two tokens of a request, all requests together", "requests"),
        Definition("e2e_s_*", "s", "end to end: arrival to last token", "requests"),
        Definition("normalized_latency_s_*", "s", "end to end / output tokens of the request", "requests"),
        Definition("queue_wait_s_*", "s", "arrival to the first step that computes a token of the request", "requests"),
        Definition("lateness_s_*", "s", "arrival to the moment the engine noticed the request", "requests"),
    ],
    "Slots and padding": [
        Definition("slot_idle_frac", "share", "slots (places in the batch) without an unfinished request, over all steps", "steps"),
        Definition("slot_idle_finished_frac", "share", "of the slots, those held by a finished request (static)", "steps"),
        Definition("slot_idle_starved_frac", "share", "of the slots, those empty while requests wait", "steps"),
        Definition("slot_idle_drain_frac", "share", "of the slots, those empty while no request waits", "steps"),
        Definition("decode_idle_frac", "share", "slot_idle_frac over the steps that only decode", "steps"),
        Definition("decode_idle_finished_frac", "share", "slot_idle_finished_frac over the steps that only decode", "steps"),
        Definition("decode_idle_starved_frac", "share", "slot_idle_starved_frac over the steps that only decode", "steps"),
        Definition("decode_idle_drain_frac", "share", "slot_idle_drain_frac over the steps that only decode", "steps"),
        Definition("prefill_padding_frac", "share", "padded positions / positions computed, in passes with prompts", "steps"),
        Definition("decode_padding_frac", "share", "masked key positions / key positions attended to, in passes that only decode", "steps"),
        Definition("padded_positions", "count", "padded positions in all passes", "steps"),
        Definition("preemptions", "count", "how often a running request lost its memory and had to start again", "requests"),
        Definition("recomputed_tokens", "tokens", "tokens computed again after a preemption", "requests"),
    ],
    "Memory": [
        Definition("kv_utilization", "share", "of reserved KV memory, the part written so far", "steps"),
        Definition("kv_future_frac", "share", "of reserved KV memory, the part that its request will write later", "steps, requests"),
        Definition("kv_internal_frac", "share", "of reserved KV memory, the part that its request never writes", "steps, requests"),
        Definition("kv_external_frac", "share", "free KV memory, in no hole large enough for the next waiting request", "steps"),
        Definition("kv_final_utilization", "share", "tokens written / tokens reserved, each request at its end", "steps"),
        Definition("kv_reserved_tokens_peak", "tokens", "most tokens reserved in a step", "steps"),
        Definition("kv_used_tokens_peak", "tokens", "most tokens written in a step", "steps"),
        Definition("kv_reserved_bytes", "bytes", "KV memory reserved, average over time", "steps, cell"),
        Definition("kv_used_bytes", "bytes", "KV memory written, average over time", "steps, cell"),
        Definition("kv_peak_bytes", "bytes", "most KV memory reserved, with the copy that growing makes", "steps, cell"),
        Definition("kv_copy_bytes", "bytes", "KV memory moved: to give attention the form that it asks for, and to grow", "steps"),
        Definition("peak_memory_bytes", "bytes", "most memory (CUDA: allocated, else resident) above the level after loading", "cell"),
    ],
}
# fmt: on
