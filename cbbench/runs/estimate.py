"""How long a run will take at least: said before it begins, where `cbbench doctor` has measured this machine."""

from __future__ import annotations

from cbbench.machine.fingerprint import fingerprint
from cbbench.model import ceilings
from cbbench.runs.job import Prepared


def least_s(prepared: Prepared) -> float | None:
    """Every step reads all weights once and serves a full batch, and every token is multiplied with them: no arm is faster. None
    where the machine's rates or the model's cost are not known."""
    job, model = prepared.job, prepared.model
    rates = ceilings.stored(fingerprint(job.device, job.num_threads)) if model is not None else None
    if model is None or rates is None or model.cost is None:
        return None
    outputs = sum(request.max_new_tokens for request in prepared.requests)
    prompts = sum(len(request.prompt_ids) for request in prepared.requests)
    flop = 2 * ((prompts + outputs) * model.cost["token_weights"] + outputs * model.cost["sample_weights"])
    each_s = 0.0
    for slots in [arm.max_num_seqs for arm in job.arms] + [peer.max_num_seqs for peer in job.peers]:
        read_s = outputs / slots * model.cost["weight_bytes"] / rates["bytes_per_s"]
        each_s += max(read_s, flop / rates["flop_per_s"])
    return each_s * job.rounds
