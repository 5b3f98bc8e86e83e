"""What `cbbench workload import` and `describe` print: the account of an import, the description of a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cbbench.report.histogram import histogram
from cbbench.report.screen import print_pairs
from cbbench.request import Request
from cbbench.results.tables import size

Pairs = list[tuple[str, str]]


def print_account(account: dict[str, Any]) -> None:
    """What an import read, dropped and changed."""
    print_pairs("", import_pairs(account))


def print_descriptions(described: list[tuple[dict[str, Any], list[Request]]]) -> None:
    """`cbbench workload describe`: facts, and histograms of lengths and arrivals."""
    for about, requests in described:
        print_pairs(f"{about['name']} ({about['digest']})", description_pairs(about))
        for title, values in pictures(requests).items():
            print(f"  {title}")
            for line in histogram(values):
                print(f"    {line}")
        print()


def import_pairs(account: dict[str, Any]) -> Pairs:
    """rows read = kept + dropped; original against replayed."""
    pairs = [("format", account["format"])]
    if "about" in account:
        pairs.append(("about", account["about"]))
    dropped = ", ".join(f"{num:,} {reason}" for reason, num in account["dropped"].items()) or "none"
    pairs += [("rows read", f"{account['rows_read']:,}"), ("kept", f"{account['kept']:,}"), ("dropped", dropped)]
    for key in ("window", "lengths", "times"):
        if said := {name: value for name, value in account.get(key, {}).items() if value}:
            pairs.append((key, ", ".join(f"{name} {_short(value)}" for name, value in said.items())))
    if "siblings_alike" in account:
        pairs.append(("note", f"{account['siblings_alike']:,} blocks share their first token with a sibling: too many siblings"))
    original, replayed = (dict(profile_pairs(account[key])) for key in ("original", "replayed"))
    for name, text in original.items():
        after = replayed.get(name, "none")
        pairs.append((name, text if after == text else f"{text} -> {after}"))
    return pairs


def description_pairs(about: dict[str, Any]) -> Pairs:
    pairs = [("requests", f"{about['num_requests']:,}"), ("arrivals", _arrivals(about["arrivals"])), *profile_pairs(about)]
    if about["turns_after_another"]:
        pairs.append(("turns after another", f"{about['turns_after_another']:,}"))
    pairs.append(("recorded references", f"{about['recorded_references']:,}"))
    for kv in about["kv"]:
        pairs.append((f"KV on {kv['model']}", f"{kv['bytes_per_token']:,} bytes a token in {about['dtype']}"))
        pairs += [("  longest request", size(kv["longest_request_bytes"])), (f"  longest {kv['batch']}", size(kv["longest_batch_bytes"])),
                  ("  all at once", size(kv["all_at_once_bytes"]))]  # fmt: skip
        if kv["fits_positions_frac"] is not None:
            pairs.append(("  fit its positions", f"{kv['fits_positions_frac']:.1%} (of {kv['max_positions']:,})"))
        if "fits_budget_frac" in kv:
            pairs.append(("  fit the budget", f"{kv['fits_budget_frac']:.1%} (of {kv['budget_tokens']:,} tokens)"))
    return pairs


def profile_pairs(profile: dict[str, Any]) -> Pairs:
    pairs = [(name.replace("_", " "), _spread(profile[name])) for name in ("prompt_tokens", "output_tokens")]
    if profile["rate_per_s"] is not None:
        most = profile["max_in_1s"]
        per_second = f", a second: dispersion {profile['dispersion_1s']:.2f}, at most {most}" if most else ""
        pairs.append(("rate", f"{profile['rate_per_s']:.4g} req/s over {profile['span_s']:,.3f} s"))
        pairs.append(("gaps", f"CV {profile['gap_cv']:.2f}{per_second}"))
    if profile["prefix_hit_frac"]:
        pairs.append(("ideal prefix hits", f"{profile['prefix_hit_frac']:.1%} of the prompt tokens"))
    return pairs


def pictures(requests: Sequence[Request]) -> dict[str, list[float]]:
    """What is worth a histogram."""
    found: dict[str, list[float]] = {
        "prompt tokens": [len(r.prompt_ids) for r in requests], "output tokens": [r.max_new_tokens for r in requests],
        "arrivals over time (s)": [r.arrival_s for r in requests if r.after is None],
    }  # fmt: skip
    return {title: values for title, values in found.items() if len(set(values)) > 1}


def _spread(lengths: dict[str, Any]) -> str:
    if lengths["mean"] is None:
        return "none"
    mean = f"{lengths['mean']:,.{1 if lengths['mean'] < 1000 else 0}f}"
    return ", ".join([f"mean {mean}", *(f"{key} {value:,.0f}" for key, value in lengths.items() if key != "mean")])


def _arrivals(described: Any) -> str:
    if isinstance(described, str):
        return described
    ((kind, options),) = described.items()
    return f"{kind}, " + ", ".join(f"{name} {value}" for name, value in options.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
