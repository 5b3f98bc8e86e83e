"""One forward pass per sequence, the tutorial's baseline. See it: `cbbench run workloads/tutorial.yaml --attn unbatched,varlen`."""

from __future__ import annotations

import torch

from cbbench.attention._sdpa import attend_one
from cbbench.attention.base import Attention, ForwardPass, LayerCall, packed_pass
from cbbench.kvcache.base import KVView
from cbbench.plan import Plan


class Unbatched(Attention):
    """Runs the whole model once for each sequence of the step.

    Cost: the weights are read once per sequence instead of once per step.
    Use when: you need a baseline without batching, under any scheduler.
    """

    def lay_out(self, plan: Plan) -> list[ForwardPass]:
        return [packed_pass([row]) for row in plan.live]

    def attend(self, call: LayerCall, queries_BWHD: torch.Tensor, forward_pass: ForwardPass, kv: KVView) -> torch.Tensor:
        ((keys, values),) = kv.ragged(call.layer)
        return attend_one(queries_BWHD[0], keys, values, call.scale, call.window)[None]
