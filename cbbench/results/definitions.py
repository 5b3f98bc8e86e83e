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
        Definition("exact_ties", "requests", "of those, requests whose first difference is a near tie of two logits", "requests"),
        Definition("exact_wrong", "requests", "of those, requests that differ in any other way", "requests"),
        Definition("requests_completed", "requests", "requests that ran to their end", "requests"),
        Definition("requests_failed", "requests", "requests that did not run to their end", "requests"),
        Definition("requests_refused", "requests", "requests that can never run: empty, or too long for the cache or model", "requests"),
        Definition("requests_cancelled", "requests", "requests that were cancelled", "requests"),
        Definition("prompt_tokens", "tokens", "prompt tokens of completed requests", "requests"),
        Definition("output_tokens", "tokens", "output tokens of completed requests", "requests"),
        Definition("output_digest", "hex", "first 16 hex digits of the SHA-256 of all output token ids", "requests"),
    ],
    "Throughput": [
        Definition("output_tok_per_s", "1/s", "output tokens of completed requests / duration", "requests"),
        Definition("output_spread_frac", "share", "half of (fastest - slowest round) / median round, of output tok/s", "requests"),
        Definition("vs_base", "ratio", "output tok/s / that of the base: marked `baseline`, else static, else the first", "requests"),
        Definition("total_tok_per_s", "1/s", "prompt and output tokens of completed requests / duration", "requests"),
        Definition("requests_per_s", "1/s", "completed requests / duration", "requests"),
        Definition("duration_s", "s", "time from the first arrival to the last token, over completed requests", "requests"),
        Definition("steps", "count", "steps of the engine", "steps"),
        Definition("passes", "count", "forward passes of the model in all steps", "steps"),
        Definition("model_s", "s", "time inside forward passes of the model", "steps"),
        Definition("host_s", "s", "time of all steps outside forward passes: scheduling, layout, bookkeeping", "steps"),
        Definition("decode_step_s_p50", "s", "median duration of the steps that only decode", "steps"),
        Definition("decode_host_frac", "share", "host time of the steps that only decode / their duration", "steps"),
        Definition("prefill_roofline_frac", "share", "least possible time of steps with prompts / time taken", "steps, cell"),
        Definition("decode_roofline_frac", "share", "least possible time of steps that only decode / time taken", "steps, cell"),
        Definition("prefill_memory_bound_frac", "share", "part of that prefill time in steps that reading bounds", "steps, cell"),
        Definition("decode_memory_bound_frac", "share", "part of that decode time in steps that reading bounds", "steps, cell"),
        Definition("others_cpu_frac", "share", "CPU time of the machine that other processes took during the round", "cell"),
    ],
    "Latency": [
        Definition("ttft_s_*", "s", "time to first token: from arrival to the first output token", "requests"),
        Definition("tpot_s_*", "s", "time per output token of a request: (last - first token time) / (tokens - 1)", "requests"),
        Definition("itl_s_*", "s", "inter-token latency: time between successive tokens of a request, all requests together", "requests"),
        Definition("e2e_s_*", "s", "end to end: from arrival to the last token", "requests"),
        Definition("normalized_latency_s_*", "s", "end-to-end time / output tokens of the request", "requests"),
        Definition("queue_wait_s_*", "s", "from arrival to the first step that computes a token of the request", "requests"),
        Definition("lateness_s_*", "s", "from arrival to the moment when the engine first saw the request", "requests"),
        Definition("ttft_steps_sum", "steps", "time to first token in steps, all requests together", "steps, requests"),
        Definition("ttft_steps_max", "steps", "the same of the request that waited longest", "steps, requests"),
        Definition("e2e_steps_sum", "steps", "from arrival to the last token counted in steps, over all requests", "steps, requests"),
        Definition("e2e_steps_max", "steps", "the same of the request that took longest", "steps, requests"),
        Definition("itl_steps_max", "steps", "most steps from one token of a request to its next", "steps, requests"),
    ],
    "Slots and padding": [
        Definition("slot_idle_frac", "share", "slots (places in the batch) without an unfinished request / all slots", "steps"),
        Definition("slot_idle_finished_frac", "share", "slots that a finished request still holds (static) / all slots", "steps"),
        Definition("slot_idle_starved_frac", "share", "slots that are empty while requests wait / all slots", "steps"),
        Definition("slot_idle_drain_frac", "share", "slots that are empty while no request waits / all slots", "steps"),
        Definition("idle_slots", "slots", "slots without an unfinished request, added up over all steps", "steps"),
        Definition("decode_idle_frac", "share", "slot_idle_frac over the steps that only decode", "steps"),
        Definition("decode_idle_finished_frac", "share", "slot_idle_finished_frac over the steps that only decode", "steps"),
        Definition("decode_idle_starved_frac", "share", "slot_idle_starved_frac over the steps that only decode", "steps"),
        Definition("decode_idle_drain_frac", "share", "slot_idle_drain_frac over the steps that only decode", "steps"),
        Definition("prefill_padding_frac", "share", "padded positions / positions computed, in passes with prompts", "steps"),
        Definition("decode_padding_frac", "share", "masked key positions / key positions read, in passes that only decode", "steps"),
        Definition("padded_positions", "count", "padded positions (padding and held rows) in all passes", "steps"),
        Definition("preemptions", "count", "how often a running request lost its memory and must be computed again", "requests"),
        Definition("recomputed_tokens", "tokens", "tokens computed again after a preemption", "requests"),
    ],
    "Prefix sharing": [
        Definition("prefix_hit_frac", "share", "prompt tokens found in the cache when the request started / prompt tokens", "requests"),
        Definition("prefix_ideal_frac", "share", "the same for a cache of endless memory, in the same order of requests", "requests"),
        Definition("prefill_tokens_saved", "tokens", "prompt tokens that were found and so not computed", "requests"),
        Definition("evicted_tokens", "tokens", "tokens that could be found again, until their memory was needed", "steps"),
        Definition("kv_shared_frac", "share", "memory that two or more sequences read, each once / (reserved + external)", "steps"),
        Definition("kv_cached_tokens", "tokens", "free, but can be found again; averaged over time", "steps"),
    ],
    "Memory": [
        Definition("kv_utilization", "share", "written KV memory / (reserved + external) KV memory", "steps"),
        Definition("kv_future_frac", "share", "reserved, and written later by the same request / (reserved + external)", "steps, requests"),
        Definition("kv_internal_frac", "share", "reserved, and never written by its request / (reserved + external)", "steps, requests"),
        Definition("kv_external_frac", "share", "free, in no hole large enough for the next request / (reserved + external)", "steps"),
        Definition("kv_final_utilization", "share", "tokens written / tokens reserved, each request at its last step", "steps"),
        Definition("kv_reserved_tokens_peak", "tokens", "largest number of tokens reserved in a step", "steps"),
        Definition("kv_reserved_token_steps", "tokens", "reserved tokens, added up over all steps", "steps"),
        Definition("kv_used_tokens_peak", "tokens", "largest number of written tokens in memory in a step", "steps"),
        Definition("kv_reserved_bytes", "bytes", "KV memory reserved, averaged over time", "steps, cell"),
        Definition("kv_used_bytes", "bytes", "KV memory written, averaged over time", "steps, cell"),
        Definition("kv_peak_bytes", "bytes", "largest KV memory reserved, plus the largest temporary copy", "steps, cell"),
        Definition("kv_copy_bytes", "bytes", "KV memory copied: to give attention the layout that it needs, and to grow", "steps"),
        Definition("kv_copy_tokens", "tokens", "the same in tokens, all layers of a token together; known without a model too", "steps"),
        Definition("peak_memory_bytes", "bytes", "largest memory (CUDA: allocated, else resident) above that before the round", "cell"),
    ],
}
# fmt: on
