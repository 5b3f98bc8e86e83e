"""The sentences of an answer that are no race: tokens, waste, other revisions, and what did not run to its end."""

from __future__ import annotations

from collections.abc import Iterator

from cbbench.compare.contenders import Contender, named, ratio
from cbbench.results.endings import endings
from cbbench.results.store import Run
from cbbench.results.units import percent

WASTE = {
    "slot_idle_frac": "slots idle", "prefill_padding_frac": "prefill padding", "decode_padding_frac": "decode padding",
    "kv_utilization": "reserved KV memory not written",
}  # fmt: skip
MIN_WASTE = 0.05  # less is not worth a word


def wrong(entered: list[Contender]) -> Iterator[str]:
    """First of all: no speed makes up for wrong tokens."""
    found = [
        f"{one.name} ({one.most('exact_wrong')} of {one.most('exact_checked')} requests)" for one in entered if one.most("exact_wrong")
    ]
    if found and all(one.is_right for one in entered):
        yield f"Tokens differ from those of plain greedy generation, as rounding depends on the batch in this dtype: {named(found)}."
    elif found:
        yield f"WRONG tokens, not those of plain greedy generation: {named(found)}. Left out of what follows."


def tokens(able: list[Contender], is_everyone: bool) -> Iterator[str]:
    """Whether what was made is right, and of how many that is known."""
    is_everyone = is_everyone and not any(one.most("exact_wrong") for one in able)
    able = [one for one in able if not one.most("exact_wrong")]
    if not able:
        return
    if not able[0].has_times:
        yield "Nothing was computed (no model): there are no tokens to check, and the counts are the same on every machine."
        return
    checked = [one for one in able if one.most("exact_checked")]
    unchecked = [one.name for one in able if not one.most("exact_checked")]
    if not checked:
        yield "The tokens were not checked: the workload has no reference tokens for this model (--verify makes them)."
        return
    who = "All arms make" if is_everyone and len(checked) == len(able) > 1 else f"{named([one.name for one in checked])} make"
    who = f"{checked[0].name} makes" if len(checked) == 1 else who
    least = min(one.least("exact_checked") for one in checked)
    all_requests = max(one.most("requests_completed") for one in checked)
    ties = max(one.most("exact_ties") for one in checked)
    but = f", but for near ties of two logits in {ties}" if ties else ""
    rest = f" {named(unchecked)}: not checked." if unchecked else ""
    yield f"{who} the tokens of plain greedy generation (checked in {least} of {all_requests} requests{but}).{rest}"


def waste(best: Contender | None, base: Contender | None) -> Iterator[str]:
    """Where the baseline loses, beside the best arm; of one arm alone, where it loses."""
    loser = base if base is not None and not base.is_peer else best
    if loser is None or best is None:
        return
    parts = []
    for key, title in WASTE.items():
        lost, least = _wasted(loser, key), _wasted(best, key)
        if max(lost or 0.0, least or 0.0) >= MIN_WASTE and lost is not None:
            beside = "" if best is loser or least is None else f" ({percent(least)})"
            parts.append(f"{title} {percent(lost)}{beside}")
    if parts:
        bracket = "" if best is loser else f" (in brackets: {best.name})"
        yield f"Waste of {loser.name}{bracket}: {', '.join(parts)}."


def _wasted(one: Contender, key: str) -> float | None:
    value = one.middle(key)
    return value if value is None or key != "kv_utilization" else 1 - value


def twins(everyone: list[Contender]) -> Iterator[str]:
    """An arm beside itself: at another revision, or once again."""
    for twin in everyone:
        now = next((one for one in everyone if one.run is twin.run and one.arm["label"] == twin.twin_of), None)
        if now is not None and (found := ratio(now, twin, "output_tok_per_s")) is not None:
            clear = "" if found.is_clear else ": no clear difference"
            yield f"{now.name} has {found.value:.2f} x the throughput of {twin.name} ({found.spread}){clear}."


def incomplete(everyone: list[Contender], most: int) -> Iterator[str]:
    """Arms that failed, and requests that did not end well, each with its reason."""
    for one in everyone:
        if failed := next((cell.failed for cell in one.run.cells if cell.arm == one.arm["label"] and cell.failed), None):
            yield f"{one.name} failed: {failed}."
        elif any(one.most(f"requests_{state}") for state in ("refused", "failed", "cancelled")):
            completed, reasons = one.least("requests_completed"), endings(one.run, one.cells)
            told = "; ".join(f"{num} {state}: {reason}" for (state, reason), num in reasons.items())
            beside = ", so it is left out above" if completed < most else ""
            yield f"{one.name} completed {completed} requests{beside} ({told})."


def versions(runs: list[Run]) -> Iterator[str]:
    """What else than the arms differs between runs."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for part in ("versions", "code"):
            known = run.info.get(part)
            for name, value in (known if isinstance(known, dict) else {}).items():
                if name != "dirty":
                    found.setdefault(name, []).append(str(value)[:12])
    said = [f"{name} {named(list(dict.fromkeys(values)))}" for name, values in found.items() if len({*values}) > 1]
    if said:
        yield f"The runs were made with different versions: {', '.join(said)}."


def unfinished(runs: list[Run]) -> Iterator[str]:
    for run in runs:
        whole = sum(bool(cell.metrics) and not cell.interrupted and not cell.failed for cell in run.cells)
        wanted = len(run.info["arms"]) * int(run.info.get("rounds") or 1)
        if not run.info.get("finished", True):
            yield f"The run is not finished: {whole} of {wanted} rounds (arms x rounds) are whole."
