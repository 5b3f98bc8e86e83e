"""How much memory each arm gets for keys and values, and whether the machine has it."""

from __future__ import annotations

import psutil

from cbbench.errors import UserError
from cbbench.results.units import size
from cbbench.runs.config import Arm
from cbbench.workload.budget import budget_tokens

TOKEN_UNIT = 64  # a budget that nobody named is in whole units of this and of every cache


def tokens_of(arm: Arm, bytes_per_token: int, longest: int, arms: list[Arm]) -> int:
    """The arm's memory in tokens. Without a budget: a full batch of the longest request in whole units of every cache among `arms`,
    so that all have the same."""
    if arm.memory_budget is None:
        units: list[int] = [TOKEN_UNIT, *(one.kv.cls.unit_tokens(one.kv.options) for one in arms)]  # type: ignore[attr-defined]
        return arm.max_num_seqs * max(-(-longest // unit) * unit for unit in units)
    if not bytes_per_token and "token" not in arm.memory_budget.lower():
        raise UserError(f"memory_budget {arm.memory_budget}: without a model a budget is counted in tokens, like '4096 tokens'")
    return budget_tokens(arm.memory_budget, bytes_per_token)


def check_memory(arms: list[Arm], budgets: dict[str, int], bytes_per_token: int, device: str) -> None:
    """Refuses a budget that is more than all memory of the device, before anything runs."""
    total = device_bytes(device)
    for arm in arms:
        asked = budgets[arm.label] * bytes_per_token
        if asked <= total:
            continue
        what = f"memory_budget {arm.memory_budget}" if arm.memory_budget else f"a full batch of {arm.max_num_seqs} of the longest request"
        needs = f"{budgets[arm.label]:,} tokens x {bytes_per_token:,} bytes = {size(asked)}"
        raise UserError(f"{arm.label}: {what} is {needs}; this machine has {size(total)}. Give a smaller --memory-budget or --max-num-seqs")


def device_bytes(device: str) -> int:
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[1])
    return int(psutil.virtual_memory().total)
