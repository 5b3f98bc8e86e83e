"""What a strategy promises, checked after each of its calls: in every warm-up, and always for one that is not ours.

Nothing here makes a run right. It says which class broke which rule in which step, in place of a KeyError three files away.
"""

from __future__ import annotations

from typing import Any

from cbbench.errors import ContractError
from cbbench.kvcache.base import KVCache
from cbbench.plan import Plan
from cbbench.schedulers.base import Scheduler


def check_plan(plan: Any, scheduler: Scheduler, cache: KVCache, step: int) -> None:
    """Raises ContractError for a plan that cannot be carried out, or that would be of something else than the tables say."""

    def broken(rule: str) -> ContractError:
        return ContractError(f"{type(scheduler).__name__}.plan, step {step}: {rule}")

    if not isinstance(plan, Plan):
        raise broken(f"it returned {type(plan).__name__}, not a Plan")
    running = {sequence.index for sequence in scheduler.running}
    if len(scheduler.running) > scheduler.max_num_seqs:
        raise broken(f"{len(scheduler.running)} sequences run, max_num_seqs is {scheduler.max_num_seqs}")
    if len(running) != len(scheduler.running) or running & {sequence.index for sequence in scheduler.waiting}:
        raise broken("a sequence stands twice in waiting and running")
    reserved = cache.reserved_tokens()
    seen: set[int] = set()
    for row in plan.rows:
        sequence = row.sequence
        if sequence.index in seen:
            raise broken(f"request {sequence.request.id} has two rows")
        seen.add(sequence.index)
        if sequence.index not in running:
            raise broken(f"request {sequence.request.id} has a row and does not run")
        if row.start != sequence.num_computed or row.num_new < 0 or row.stop > sequence.num_tokens:
            known = f"{sequence.num_computed} of its {sequence.num_tokens} tokens are computed"
            raise broken(f"request {sequence.request.id}: a row over positions {row.start} to {row.stop}, but {known}")
        if reserved.get(sequence.index, 0) < row.stop:
            held = reserved.get(sequence.index, 0)
            raise broken(f"request {sequence.request.id}: a row up to position {row.stop}, with room for {held}")
