"""What every number means: step and request records -> one flat row of metrics.

Works on the JSON lines of a run alone, without torch, so anyone can recompute it. A value that does not exist is None,
never 0. Percentiles are numpy's linear ones, over completed requests.
"""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from typing import Any

import numpy as np

Row = dict[str, Any]
Record = dict[str, Any]
STEP_METRICS = (
    "steps", "passes", "model_s", "host_s", "padded_positions", "idle_slots", "kv_copy_tokens", "kv_reserved_tokens_peak",
    "kv_reserved_token_steps", "kv_used_tokens_peak",
)  # fmt: skip  # counts that would be 0 without step records; fractions are None by themselves


def summarize(steps: list[Record], requests: list[Record], cell: Record) -> Row:
    """All metrics of one arm's round; `cell` is its cell.json (bytes per token, peak memory, exactness is in requests)."""
    completed = [r for r in requests if r["state"] == "finished"]
    row = {
        **counts(requests, completed),
        **throughput(completed),
        **latency(completed),
        **latency_steps(steps, completed),
        **step_time(steps),
        **roofline(steps, requests, cell),
        **padding(steps),
        **slot_idle(steps),
        "preemptions": sum(r["num_preemptions"] or 0 for r in requests),
        "recomputed_tokens": sum(r["recomputed_tokens"] or 0 for r in requests),
        **prefix(steps, requests),
        "kv_copy_bytes": sum(s["copied_bytes"] for s in steps) if cell.get("bytes_per_token") else None,
        "kv_copy_tokens": sum(s["copied_tokens"] for s in steps) if all("copied_tokens" in s for s in steps) else None,
        **kv_memory(steps, requests, cell),
        "peak_memory_bytes": peak_memory(steps, cell),
        "others_cpu_frac": cell.get("others_cpu_frac"),
        "output_digest": output_digest(requests),
    }
    if cell.get("peer"):  # another system keeps no step records
        row |= dict.fromkeys([*STEP_METRICS, "preemptions", "recomputed_tokens"])
    return row


def counts(requests: list[Record], completed: list[Record]) -> Row:
    outcomes = [r.get("outcome") for r in requests]
    row: Row = {f"requests_{state}": sum(r["state"] == state for r in requests) for state in ("refused", "cancelled")}
    row = {"requests_completed": len(completed), "requests_failed": len(requests) - len(completed) - sum(row.values()), **row}
    row |= {"prompt_tokens": sum(r["prompt_tokens"] for r in completed), "output_tokens": sum(len(r["output_ids"]) for r in completed)}
    checked = sum(outcome in ("exact", "tie", "wrong") for outcome in outcomes)
    return row | {"exact_checked": checked, **{f"exact_{name}": outcomes.count(key) for name, key in
                  {"matched": "exact", "ties": "tie", "wrong": "wrong"}.items()}}  # fmt: skip


def output_digest(requests: list[Record]) -> str:
    """SHA-256 over every request's output token ids."""
    outputs = [[r["id"], r["output_ids"]] for r in sorted(requests, key=lambda r: r["index"])]
    return hashlib.sha256(json.dumps(outputs).encode()).hexdigest()[:16]


def throughput(completed: list[Record]) -> Row:
    """Useful tokens over the time from the first arrival to the last token."""
    if not completed:
        return dict.fromkeys(("duration_s", "output_tok_per_s", "total_tok_per_s", "requests_per_s"))
    duration_s = max(end_s for r in completed if (end_s := ended_s(r)) is not None) - min(r["arrival_s"] for r in completed)
    output = sum(len(r["output_ids"]) for r in completed)
    total = output + sum(r["prompt_tokens"] for r in completed)
    amounts = {"output_tok_per_s": output, "total_tok_per_s": total, "requests_per_s": len(completed)}
    return {"duration_s": duration_s, **{name: amount / duration_s if duration_s > 0 else None for name, amount in amounts.items()}}


LATENCIES = ("queue_wait_s", "ttft_s", "itl_s", "tpot_s", "e2e_s", "normalized_latency_s", "lateness_s")


def latency(completed: list[Record]) -> Row:
    return {f"{name}_{key}": value for name, values in pooled_latencies(completed).items() for key, value in distribution(values).items()}


def pooled_latencies(completed: list[Record]) -> dict[str, list[float]]:
    """The population behind each latency, over completed requests."""
    own = [request_latencies(r) for r in completed]
    return {name: [value for found in own for value in found[name]] for name in LATENCIES}


def ended_s(r: Record) -> float | None:
    """When its last token was known, else when a peer that tells no times of tokens gave it back; None: no token came."""
    times = r["token_times_s"]
    ended: float | None = times[-1] if times else r.get("ended_s")
    return ended


def request_latencies(r: Record) -> dict[str, list[float]]:
    """One request's own: a value each, for itl_s one a gap, none where it does not exist. Every time counts from the
    scheduled arrival, not from when the loop looked."""
    times, arrival_s = r["token_times_s"], r["arrival_s"]
    own: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for name, moment_s in (("queue_wait_s", r["first_scheduled_s"]), ("lateness_s", r["submitted_s"])):
        if moment_s is not None:
            own[name] = [moment_s - arrival_s]
    if not times:
        return own if (end_s := ended_s(r)) is None else own | {"e2e_s": [end_s - arrival_s]}
    own |= {"ttft_s": [times[0] - arrival_s], "itl_s": [later - earlier for earlier, later in pairwise(times)]}
    if len(times) >= 2:
        own["tpot_s"] = [(times[-1] - times[0]) / (len(times) - 1)]
    return own | {"e2e_s": [times[-1] - arrival_s], "normalized_latency_s": [(times[-1] - arrival_s) / len(times)]}


def distribution(values: list[float]) -> Row:
    """mean, p50, p90, p99, max; all None for no values."""
    if not values:
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"))
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p90": float(p90), "p99": float(p99), "max": max(values)}


def latency_steps(steps: list[Record], completed: list[Record]) -> Row:
    """Latencies counted in steps, which do not depend on the machine: from the step in progress at the arrival to the one that gave
    the token, both included; between two tokens of a request, how many steps lie from one to the next."""
    ends_s = np.array([s["end_s"] for s in steps])
    own = [np.searchsorted(ends_s, np.asarray(r["token_times_s"])) for r in completed if r["token_times_s"]] if steps else []
    came = [int(np.searchsorted(ends_s, r["arrival_s"], side="right")) for r in completed if r["token_times_s"]]
    first = [int(at[0]) - start + 1 for at, start in zip(own, came, strict=False)]
    last = [int(at[-1]) - start + 1 for at, start in zip(own, came, strict=False)]
    gaps = [int(np.diff(at).max()) for at in own if len(at) > 1]
    row: Row = {"itl_steps_max": max(gaps, default=None)}
    for name, values in (("ttft_steps", first), ("e2e_steps", last)):
        row |= {f"{name}_sum": sum(values) if values else None, f"{name}_max": max(values, default=None)}
    return row


def step_time(steps: list[Record]) -> Row:
    model_s = sum(s["model_s"] for s in steps)
    total_s = sum(s["end_s"] - s["start_s"] for s in steps)
    decodes = [s for s in steps if only_decodes(s)]
    decode_s = sum(s["end_s"] - s["start_s"] for s in decodes)
    return {
        "steps": len(steps), "passes": sum(len(s["passes"]) for s in steps), "model_s": model_s, "host_s": total_s - model_s,
        "decode_step_s_p50": distribution([s["end_s"] - s["start_s"] for s in decodes])["p50"],
        "decode_host_frac": ratio(decode_s - sum(s["model_s"] for s in decodes), decode_s),
    }  # fmt: skip


def roofline(steps: list[Record], requests: list[Record], cell: Record) -> Row:
    """The time that the work must take on this machine over the time it took, for passes with prompts and for decodes.

    A step must read every weight once and its sequences' keys and values, and multiply each token with the weights (the
    head's only where it samples: a decode, or a prompt's end) and each query with its keys: the longer of the two counts.
    What padding adds is not needed, so it shows as distance from the ceiling. Which of the two it was is the share of the
    needed time that belongs to steps where reading is the longer one.
    """
    rates, cost, per_token = cell.get("rates"), cell.get("model_cost"), cell.get("bytes_per_token")
    if not rates or not cost or not per_token:
        return dict.fromkeys(f"{kind}_{what}_frac" for what in ("roofline", "memory_bound") for kind in ("prefill", "decode"))
    needed, took, reading = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    prompts = {r["index"]: r["prompt_tokens"] for r in requests}
    for s in steps:
        tokens = sum(new for _, _, _, new in s["rows"])
        keys = sum(start + new for _, _, start, new in s["rows"] if new)
        products = sum(new * (start + (new + 1) / 2) for _, _, start, new in s["rows"])
        samples = sum(new > 0 and start + new >= prompts[index] for _, index, start, new in s["rows"])  # no chunk within a prompt
        flop = 2 * (tokens * cost["token_weights"] + samples * cost["sample_weights"] + products * cost["attention_products"])
        read = cost["weight_bytes"] + keys * per_token
        decode, read_s, products_s = only_decodes(s), read / rates["bytes_per_s"], flop / rates["flop_per_s"]
        needed[decode] += max(read_s, products_s)
        reading[decode] += read_s if read_s >= products_s else 0.0
        took[decode] += s["end_s"] - s["start_s"]
    return {
        "prefill_roofline_frac": ratio(needed[False], took[False]), "decode_roofline_frac": ratio(needed[True], took[True]),
        "prefill_memory_bound_frac": ratio(reading[False], needed[False]),
        "decode_memory_bound_frac": ratio(reading[True], needed[True]),
    }  # fmt: skip


def padding(steps: list[Record]) -> Row:
    """Padded over computed positions in passes with prompts; masked over attended key positions in decode passes."""
    passes = [p for s in steps for p in s["passes"]]
    prefills = [p for p in passes if p[0] != "decode"]
    decodes = [p for p in passes if p[0] == "decode"]
    return {
        "prefill_padding_frac": ratio(sum(p[2] for p in prefills), sum(p[1] for p in prefills)),
        "decode_padding_frac": ratio(sum(p[4] for p in decodes), sum(p[3] for p in decodes)),
        "padded_positions": sum(p[2] for p in passes),
    }


def slot_idle(steps: list[Record]) -> Row:
    """Places of the batch without a live sequence, and why: finished but held, empty with a queue, empty without."""
    row: Row = {"idle_slots": sum(s["slots"] - s["live"] for s in steps)}
    for name, chosen in (("slot_idle", steps), ("decode_idle", [s for s in steps if only_decodes(s)])):
        slots = sum(s["slots"] for s in chosen)
        empty = {True: 0, False: 0}
        for s in chosen:
            empty[s["waiting"] > 0] += s["slots"] - s["live"] - s["held"]
        row[f"{name}_frac"] = ratio(slots - sum(s["live"] for s in chosen), slots)
        row[f"{name}_finished_frac"] = ratio(sum(s["held"] for s in chosen), slots)
        row[f"{name}_starved_frac"] = ratio(empty[True], slots)
        row[f"{name}_drain_frac"] = ratio(empty[False], slots)
    return row


def prefix(steps: list[Record], requests: list[Record]) -> Row:
    """What was found in the cache and not computed; None for a cache that never looks. A request counts once, when it starts."""
    looked = [r for r in requests if r.get("cached_tokens") is not None]
    if not looked:
        return dict.fromkeys(("prefix_hit_frac", "prefix_ideal_frac", "prefill_tokens_saved", "evicted_tokens"))
    prompts = sum(r["prompt_tokens"] for r in looked)
    saved = sum(r["cached_tokens"] for r in looked)
    return {
        "prefix_hit_frac": ratio(saved, prompts), "prefix_ideal_frac": ratio(sum(r["ideal_cached_tokens"] for r in looked), prompts),
        "prefill_tokens_saved": saved, "evicted_tokens": steps[-1]["evicted_tokens"] if steps else 0,
    }  # fmt: skip


def kv_memory(steps: list[Record], requests: list[Record], cell: Record) -> Row:
    """Reserved memory by what it is for, weighted with the time of each step, and at its peak.

    Token states + future (this sequence will still write it) + internal (it never will) + external (free, but no hole
    fits the next waiting request) sum to 1. Token states of a sequence that is held after its end count as such; an entry that
    several sequences read counts once.
    """
    final = final_lengths(requests)
    used = future = internal = external = shared = cached = time_s = 0.0
    peak_reserved = peak_used = token_steps = 0
    last: dict[int, tuple[int, int]] = {}
    for s in steps:
        weight = s["end_s"] - s["start_s"]
        last |= {index: (reserved, written) for index, reserved, written in s["kv"]}
        used_now, future_now, internal_now = kv_split(s, final)
        used += weight * used_now
        future += weight * future_now
        internal += weight * internal_now
        external += weight * s["external_tokens"]
        shared += weight * s.get("shared_tokens", 0)
        cached += weight * s.get("cached_tokens", 0)
        time_s += weight
        token_steps += used_now + future_now + internal_now
        peak_reserved, peak_used = max(peak_reserved, used_now + future_now + internal_now), max(peak_used, used_now)
    total = used + future + internal + external
    per_token = cell.get("bytes_per_token")
    return {
        "kv_utilization": ratio(used, total), "kv_future_frac": ratio(future, total),
        "kv_internal_frac": ratio(internal, total), "kv_external_frac": ratio(external, total),
        "kv_shared_frac": ratio(shared, total), "kv_cached_tokens": ratio(cached, time_s),
        "kv_final_utilization": ratio(sum(w for _, w in last.values()), sum(r for r, _ in last.values())),
        "kv_reserved_tokens_peak": peak_reserved, "kv_reserved_token_steps": token_steps, "kv_used_tokens_peak": peak_used,
        "kv_reserved_bytes": ratio((used + future + internal) * per_token, time_s) if per_token else None,
        "kv_used_bytes": ratio(used * per_token, time_s) if per_token else None,
        "kv_peak_bytes": peak_reserved * per_token + cell.get("peak_extra_bytes", 0) if per_token else None,
    }  # fmt: skip


def peak_memory(steps: list[Record], cell: Record) -> int | None:
    """None where less was seen than keys and values were written: then memory came from what the process had kept."""
    seen, per_token = cell.get("peak_memory_bytes"), cell.get("bytes_per_token") or 0
    written = max((sum(written for _, _, written in s["kv"]) - s.get("extra_tokens", 0) for s in steps), default=0) * per_token
    return None if seen is None or seen < written else seen


def final_lengths(requests: list[Record]) -> dict[int, int]:
    """Sequence -> positions it has written at its end; the last output token is never computed."""
    return {r["index"]: r["prompt_tokens"] + max(len(r["output_ids"]) - 1, 0) for r in requests}


def kv_split(step: Record, final: dict[int, int]) -> tuple[int, int, int]:
    """Reserved tokens of a step: token states, future, internal. Shared entries are full: they are token states, once."""
    extra = step.get("extra_tokens", 0)
    used = sum(written for _, _, written in step["kv"]) - extra
    future = sum(max(min(reserved, final[index]) - written, 0) for index, reserved, written in step["kv"])
    return used, future, sum(reserved for _, reserved, _ in step["kv"]) - extra - used - future


def only_decodes(step: Record) -> bool:
    return all(p[0] == "decode" for p in step["passes"])


def ratio(part: float, whole: float) -> float | None:
    """None where there is nothing to divide by."""
    return part / whole if whole else None
