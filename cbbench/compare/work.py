"""What an arm computes, and how two arms of one label differ in it."""

from __future__ import annotations

from typing import Any

from cbbench.plugins import AXES
from cbbench.results.compared_metrics import METRICS_VERSION


def arm_work(info: dict[str, Any], arm: dict[str, Any]) -> dict[str, Any]:
    """Everything that decides what is computed; no name, no path, no machine, no number of rounds."""
    model = info["model"]
    work = {"workload": info["workload"]["digest"], "model": model["digest"], "dtype": model["dtype"]}
    work |= {"prepared": model.get("prepared"), "metrics": METRICS_VERSION}
    return work | {name: arm.get(name) for name in ("scheduler", "attn", "kv", "max_num_seqs", "budget_tokens")}


def work_difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What makes it other work, with both values; for arms of one label, where an option that differs is a changed default."""
    names = [{**side, **{axis: _name(side.get(axis)) for axis in AXES}} for side in (before, after)]
    return difference(*names)


def _name(chosen: Any) -> Any:
    return chosen.get("name") if isinstance(chosen, dict) else chosen


def changed_defaults(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Options that differ although the labels are the same: a label names every option that is not at its default, so the default
    has changed. That is a change of the code, to be judged like any other. One that only one side knows came later."""
    said = []
    for axis in AXES:
        one, other = before.get(axis), after.get(axis)
        if isinstance(one, dict) and isinstance(other, dict):
            said += [f"{axis}.{key} {one[key]!r} -> {other[key]!r}" for key in one if key in other and one[key] != other[key]]
    return f"default changed: {', '.join(said)}" if said else ""


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The fields that differ, with both values."""
    fields = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {before.get(name)!r} -> {after.get(name)!r}" for name in fields)
