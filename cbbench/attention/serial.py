"""Selective batching. See it: `cbbench run workloads/mixed.yaml --attn serial,varlen`."""

from __future__ import annotations

import torch

from cbbench.attention._sdpa import attend_one
from cbbench.attention.base import Attention, ForwardPass, LayerCall, packed_pass
from cbbench.kvcache.base import KVView
from cbbench.plan import Plan


class Serial(Attention):
    """Packs the tokens of all sequences for the linear layers; attention runs for one sequence at a time.

    Source: Yu et al., Orca (OSDI 2022), section 3.2, selective batching.

    Cost: one small attention call per sequence and layer. There is no padding.
    Use when: no varlen kernel exists for the device.
    """

    def lay_out(self, plan: Plan) -> list[ForwardPass]:
        return [packed_pass(plan.rows)]

    def attend(self, call: LayerCall, queries_BWHD: torch.Tensor, forward_pass: ForwardPass, kv: KVView) -> torch.Tensor:
        queries = queries_BWHD[0].split([row.num_new for row in forward_pass.rows])
        ragged = kv.ragged(call.layer)
        rows = [attend_one(q, k, v, call.scale, call.window) for q, (k, v) in zip(queries, ragged, strict=True)]
        return torch.cat(rows)[None]
