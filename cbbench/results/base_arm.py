"""Which arm the others are held against, where nobody says."""

from __future__ import annotations

from typing import Any

from cbbench.plugins import AXES

CLASSIC = {"scheduler": "static", "attn": "padded", "kv": "preallocated"}  # how batches were served before 2022


def natural_base(arms: list[dict[str, Any]]) -> str | None:
    """The arm marked `baseline: true`, else static batching (in its classic form before others), else the first. No other
    revision and no copy: those are bases of their own twins."""
    own = [arm for arm in arms if not arm.get("base_of")]
    if marked := [arm for arm in own if arm.get("baseline")]:
        return str(marked[0]["label"])
    static = [arm for arm in own if _name(arm, "scheduler") == CLASSIC["scheduler"]]
    if static:
        return str(min(static, key=lambda arm: [_name(arm, axis) != CLASSIC[axis] for axis in AXES])["label"])
    return str(own[0]["label"]) if own else None


def _name(arm: dict[str, Any], axis: str) -> str | None:
    chosen = arm.get(axis)
    return chosen.get("name") if isinstance(chosen, dict) else None
