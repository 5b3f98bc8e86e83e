"""`make perf-cuda`: on a GPU, every pairing in fp32 and bf16, and tokens a second of SmolLM2 and the Qwen3-0.6B shape against
`generate`. One process, about ten minutes; says so and ends where there is no GPU.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

from cbbench.machine.fingerprint import fingerprint
from cbbench.model import ceilings
from cbbench.results import tables
from cbbench.results.store import Run, read_run
from cbbench.runs.config import Overrides, build_arms, build_peers, why_not
from cbbench.runs.job import Job
from cbbench.runs.progress import LiveProgress
from cbbench.runs.session import carry_out
from cbbench.workload.file import read_workload
from tests.support.places import ROOT

MODELS = (None, "random:qwen3-0.6b")  # None: the workload's own
ATTENTIONS = ("padded", "serial", "unbatched", "varlen")


def run(workload: str, overrides: Overrides, dtype: str, out: Path, model: str | None = None, peers: str | None = None) -> Run:
    read = read_workload(ROOT / "workloads" / f"{workload}.yaml")
    arms = build_arms(read, overrides)
    job = Job(read, arms, model or read.file.model, dtype, "cuda", 1, rounds=1, warmup=1, verify=True, model_dir=ROOT / "workloads")
    _, path = carry_out(replace(job, peers=tuple(build_peers(peers, [], [], arms[0].max_num_seqs))), out, None, LiveProgress())
    return read_run(path)


def exactness(dtype: str, out: Path) -> int:
    """In fp32 all must be exact; in bf16 each first difference is a near tie or it is wrong. Returns how many arms are not."""
    attentions = [name for name in ATTENTIONS if why_not("attn", name, "cuda", dtype) is None]
    found = run("tutorial", Overrides({"scheduler": "all", "attn": ",".join(attentions), "kv": "all"}), dtype, out)
    rows = tables.table_rows([found])
    for row in rows:
        print(f"{dtype:9} {row.arm:35} {row.status}")
    return sum("exact" not in row.status or "WRONG" in row.status or (dtype == "float32" and "tie" in row.status) for row in rows)


def speed(model: str | None, out: Path) -> None:
    backends = [name for name in ("flash-attn", "torch") if why_not_backend(name) is None]
    for backend, graphs in product(backends, ("false", "true")):
        sets = [f"attn.backend={backend}", f"attn.cuda_graphs={graphs}", "kv.block_size=256", "max_num_seqs=32"]
        asked = Overrides(arms=["continuous+varlen+paged", "static+varlen+paged"], sets=sets)
        is_first = (backend, graphs) == (backends[0], "false")
        found = run("mixed", asked, "bfloat16", out, model, "hf-generate,hf-continuous" if is_first else None)
        print(f"\n{model or 'smollm2-135m'}, varlen by {backend}, CUDA graphs {graphs}")
        for grid in tables.grids(tables.table_rows([found]))[:2]:
            print(tables.as_plain(grid))


def why_not_backend(name: str) -> str | None:
    from cbbench.attention.varlen import Varlen

    return Varlen.cannot_run("cuda", "bfloat16", Varlen.Options(backend=name))  # type: ignore[arg-type]


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("perf-cuda needs a CUDA device; this machine has none")
    out = Path(sys.argv[1])
    ceilings.measure(fingerprint("cuda", 1), "cuda")
    num_wrong = sum(exactness(dtype, out) for dtype in ("float32", "bfloat16"))
    for model in MODELS:
        speed(model, out)
    if num_wrong:
        sys.exit(f"{num_wrong} arms are not exact")


if __name__ == "__main__":
    main()
