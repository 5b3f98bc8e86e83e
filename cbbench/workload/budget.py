"""Memory budgets as people write them: `512MiB`, `2GB`, `4096 tokens`."""

from __future__ import annotations

import re

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def budget_tokens(text: str, bytes_per_token: int) -> int:
    """Token slots that the budget holds. Raises ValueError with the forms that are understood."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    if match:
        number, unit = float(match[1]), match[2].lower()
        if unit in ("token", "tokens") and number >= 1:
            return int(number)
        if unit in UNITS and number * UNITS[unit] >= 1:
            return int(number * UNITS[unit]) // bytes_per_token
    raise ValueError(f"should be an amount of memory like 512MiB, 2GB or '4096 tokens', not {text!r}")
