"""Every pairing gives the tokens of plain greedy generation. A new strategy file is tested here without a change."""

from __future__ import annotations

import pytest

from cbbench import plugins
from tests.engines import CONFIGS, assert_exact, num_preemptions, requests, run, step_kinds, tiny

SCHEDULERS, ATTENTIONS, CACHES = (plugins.names(kind) for kind in ("scheduler", "attn", "kv"))
ALL = [(s, a, k) for s in SCHEDULERS for a in ATTENTIONS for k in CACHES]
MIXED = "1/4@0 17/9@0 5/12@0 30/3@0 8/1@0 16/16@0 3/20@0 33/7@0 2/11@0"


@pytest.mark.parametrize(("scheduler", "attn", "kv"), ALL)
@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_pairing_is_exact(architecture: str, scheduler: str, attn: str, kv: str) -> None:
    model = tiny(architecture)
    engine = run(model, requests(model, MIXED), scheduler, attn, kv, options={"scheduler.max_num_batched_tokens": 7, "kv.block_size": 7})
    assert_exact(engine)
    assert len({len(s.output_ids) for s in engine.sequences}) > 3
