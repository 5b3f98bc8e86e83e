"""The figures the project claims, as ratios within one run: `make speed` (about ten minutes on two cores).

1. mixed: continuous+varlen+paged against Hugging Face `generate` in left-padded static batches of the same size.
2. skewed: continuous against static at equal attention and cache.
3. The host's share of a decode step.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from transformers import GenerationConfig

from cbbench.config import Overrides, build_arms
from cbbench.job import Job, prepare
from cbbench.machine import default_threads
from cbbench.metrics import summarize
from cbbench.model import Model
from cbbench.report import percent, times
from cbbench.request import Request
from cbbench.runner import LocalCells
from cbbench.show import Screen
from cbbench.workload import read_workload

WORKLOADS = Path(__file__).parent.parent / "workloads"
ROUNDS = 2


def prepared(name: str, arms: list[str]) -> LocalCells:
    workload = read_workload(WORKLOADS / f"{name}.yaml")
    built = build_arms(workload, Overrides(arms=arms))
    job = Job(workload, built, workload.file.model, "float32", "cpu", default_threads(), ROUNDS, warmup=1, model_dir=WORKLOADS)
    screen = Screen()
    return LocalCells(prepare(job, screen.say), screen)


@torch.inference_mode()
def hf_static(model: Model, requests: list[Request], batch_size: int) -> float:
    """Useful output tokens a second of `generate`: batches in order, padded on the left, run to the batch's longest."""
    started_s, useful = time.perf_counter(), 0
    for first in range(0, len(requests), batch_size):
        batch = requests[first : first + batch_size]
        longest = max(len(r.prompt_ids) for r in batch)
        ids = torch.tensor([[0] * (longest - len(r.prompt_ids)) + list(r.prompt_ids) for r in batch])
        mask = torch.tensor([[0] * (longest - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in batch])
        eos = None if any(r.ignore_eos for r in batch) else sorted(model.eos_ids)
        most = max(r.max_new_tokens for r in batch)
        config = GenerationConfig(max_new_tokens=most, do_sample=False, pad_token_id=0, eos_token_id=eos)
        model.hf.generate(ids, attention_mask=mask, generation_config=config)
        useful += sum(len(r.output_ids or ()) for r in batch)
    return useful / (time.perf_counter() - started_s)


def measure(runner: LocalCells, index: int) -> tuple[float, float]:
    """Output tokens a second and the host's share of a decode step, of one arm."""
    arm, cell = runner.job.arms[index], {"bytes_per_token": runner.prepared.spec.bytes_per_token}
    record = runner.measure(arm, cell)
    lines = runner.judged(record)
    assert all(line["outcome"] == "exact" for line in lines), f"{arm.label} is not exact"
    row = summarize(record.step_lines(), lines, cell)
    return row["output_tok_per_s"], row["decode_host_frac"]


def main() -> None:
    mixed = prepared("mixed", ["continuous+varlen+paged"])
    assert mixed.model is not None
    for _ in range(ROUNDS):
        hf = hf_static(mixed.model, mixed.prepared.requests, mixed.job.arms[0].max_num_seqs)
        ours, host = measure(mixed, 0)
        print(f"mixed   hf-generate static {hf:6.1f} tok/s   continuous+varlen+paged {ours:6.1f} tok/s   {times(ours / hf)}")
        print(f"        host share of a decode step {percent(host)}")
    skewed = prepared("skewed", ["static+varlen+paged", "continuous+varlen+paged"])
    for _ in range(ROUNDS):
        (static, _), (continuous, _) = measure(skewed, 0), measure(skewed, 1)
        print(f"skewed  static {static:6.1f} tok/s   continuous {continuous:6.1f} tok/s   {times(continuous / static)}")


if __name__ == "__main__":
    main()
