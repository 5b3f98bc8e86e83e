"""`make perf`: arms and peers side by side, ratios within one run, written to docs/performance.md. Run nothing beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cbbench.clock import RealClock
from cbbench.kernels.products import Panels
from cbbench.machine.device import default_threads
from cbbench.machine.fingerprint import fingerprint, versions
from cbbench.model import attention_interface, ceilings
from cbbench.model.load import load
from cbbench.results import tables
from cbbench.results.store import Run, read_run
from cbbench.runs.config import Overrides, build_arms, build_peers
from cbbench.runs.job import Job
from cbbench.runs.progress import LiveProgress
from cbbench.runs.session import carry_out
from cbbench.workload.file import read_workload
from tests.support.places import ROOT

PAGE = ROOT / "docs" / "performance.md"
ROUNDS = 2
PAGED = "continuous+varlen+paged"
AT_HAND = {  # peers in environments of their own (`make peer-vllm`), and what is asked of the arm against them
    peer: asked for peer, asked in {"vllm": ">= 1.2", "openvino": ">= 0.6"}.items() if (ROOT / f".venv-{peer}").exists()
}  # fmt: skip
PEERS = ",".join(["hf-generate", "hf-continuous", *AT_HAND])
PYTHONS = [f"{peer}={ROOT / f'.venv-{peer}' / 'bin' / 'python'}" for peer in AT_HAND]
RUNS: list[tuple[str, list[str], str | None, list[str]]] = [  # workload, arms, peers, --set
    ("mixed", [PAGED, "static+padded+cat", "static+padded+preallocated"], PEERS, []),
    ("skewed", [PAGED, "static+varlen+paged"], None, []),
    ("skewed", [PAGED, "continuous+serial+paged", "continuous+padded+paged"], None, ["max_num_seqs=16"]),
    ("long-prompt", ["continuous+varlen+paged", "chunked+varlen+paged"], None, []),
]


def measured(name: str, arms: list[str], peers: str | None, sets: list[str], out: Path, prepare: bool = True) -> Run:
    workload = read_workload(ROOT / "workloads" / f"{name}.yaml")
    built = build_arms(workload, Overrides(arms=arms, sets=sets))
    job = Job(workload, built, workload.file.model, "float32", "cpu", default_threads(), ROUNDS, warmup=1, model_dir=ROOT / "workloads")
    job = replace(job, peers=tuple(build_peers(peers, [], PYTHONS if peers else [], built[0].max_num_seqs)), prepare=prepare)
    outcome, path = carry_out(job, out, None, LiveProgress())
    assert outcome.exit_code == 0, f"{path}: exit code {outcome.exit_code}"
    return read_run(path)


class NoAttention:
    """Stands in for a step: queries come back as they are."""

    calls = 0

    def attend(self, call: Any, queries_BWHD: torch.Tensor, *_: Any) -> torch.Tensor:
        return queries_BWHD


def step_s(prepare: bool, num_rows: int = 16) -> float:
    """A decode step of the model with attention left out."""
    hf = load(read_workload(ROOT / "workloads" / "mixed.yaml").file.model, "float32", "cpu", ROOT / "workloads", prepare=prepare).hf
    rows = torch.arange(num_rows)
    times = []
    with attention_interface.serving(hf), torch.inference_mode():
        for _ in range(30):
            clock = RealClock()
            hf(input_ids=rows[None], position_ids=rows[None] + 100, use_cache=False, logits_to_keep=rows, cbbench=NoAttention())
            times.append(clock.now())
    return median(times)


def help_s() -> float:
    """Until `cbbench --help` has answered."""
    times = []
    for _ in range(5):
        clock = RealClock()
        subprocess.run([sys.executable, "-m", "cbbench", "--help"], capture_output=True, check=True)
        times.append(clock.now())
    return min(times)


SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536)]  # outputs, inputs of SmolLM2-135M's products: q/k/v, o, gate/up, down
LAYERS = 30
ROWS = (1, 8, 16, 32, 256, 768)


def linear_layers() -> list[str]:
    """Milliseconds for the products of all layers, by who computes them and the number of rows; one after another in turns, as
    the weights of a model pass by and not as one product repeated would."""
    weights = [torch.randn(outputs, inputs) / inputs**0.5 for _ in range(LAYERS) for outputs, inputs in SHAPES]
    ways: dict[str, list[Callable[[torch.Tensor], Any]]] = {
        "`F.linear`": [partial(torch.nn.functional.linear, weight=weight) for weight in weights],
        "ours (`kernels/products.py`)": [Panels(weight, None) for weight in weights],
    }
    if hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):  # not public: what torch itself calls where it compiles a model
        packed = [torch.ops.mkldnn._reorder_linear_weight(weight, 16) for weight in weights]
        run = torch.ops.mkldnn._linear_pointwise
        ways["oneDNN, packed"] = [lambda x, weight=weight: run(x, weight, None, "none", [], "") for weight in packed]
    lines = ["| products | " + " | ".join(f"{rows} row{'s' * (rows > 1)}" for rows in ROWS) + " |", "|---" * (len(ROWS) + 1) + "|"]
    times: dict[str, list[list[float]]] = {way: [[] for _ in ROWS] for way in ways}
    with torch.inference_mode():
        for place, rows in enumerate(ROWS):
            inputs = [torch.randn(rows, weight.shape[1]) for weight in weights[: len(SHAPES)]] * LAYERS
            for _ in range(15 if rows < 100 else 5):
                for way, products in ways.items():
                    clock = RealClock()
                    for product, x in zip(products, inputs, strict=True):
                        product(x)
                    times[way][place].append(clock.now())
    return lines + [f"| {way} | " + " | ".join(f"{median(some[1:]) * 1e3:.1f}" for some in found) + " |" for way, found in times.items()]


def value(run: Run, arm: str, key: str) -> float:
    found: dict[str, Any] = tables.medians([cell for cell in run.cells if cell.arm == arm])
    return float(found[key])


def ratio(run: Run, key: str, arm: str, base: str) -> float:
    return value(run, arm, key) / value(run, base, key)


def figures(runs: list[Run], plain: Run) -> list[tuple[str, str, float]]:
    """What was asked, and what came out."""
    mixed, skewed, sixteen, long = runs
    speed, gap = "output_tok_per_s", "itl_s_max"
    return [
        (f"mixed: {PAGED} / hf-generate", ">= 4", ratio(mixed, speed, PAGED, "hf-generate")),
        (f"mixed: {PAGED} / hf-continuous", ">= 1.5", ratio(mixed, speed, PAGED, "hf-continuous")),
        *((f"mixed: {PAGED} / {peer}", asked, ratio(mixed, speed, PAGED, peer)) for peer, asked in AT_HAND.items()),
        ("mixed: static+padded+cat / hf-generate", ">= 1", ratio(mixed, speed, "static+padded+cat", "hf-generate")),
        (f"mixed: {PAGED}, prepared / as it comes", "-", value(mixed, PAGED, speed) / value(plain, PAGED, speed)),
        (f"mixed: decode roofline of {PAGED}", ">= 0.3", value(mixed, PAGED, "decode_roofline_frac")),
        (f"mixed: host share of a decode step of {PAGED}", "<= 0.03", value(mixed, PAGED, "decode_host_frac")),
        ("skewed: continuous / static, both varlen+paged", ">= 1.3", ratio(skewed, speed, PAGED, "static+varlen+paged")),
        ("skewed, 16 at once: varlen / serial", ">= 1.15", ratio(sixteen, speed, PAGED, "continuous+serial+paged")),
        ("skewed, 16 at once: varlen / padded", ">= 1.05", ratio(sixteen, speed, PAGED, "continuous+padded+paged")),
        ("long-prompt: longest gap, chunked / continuous", "<= 0.35", ratio(long, gap, "chunked+varlen+paged", PAGED)),
    ]


def peer_versions(run: Run) -> str:
    """Of the peers that are other packages than transformers."""
    said = [json.loads(path.read_text()) for path in sorted(run.path.glob("*/1/cell.json"))]
    return ", ".join(f"{cell['peer']} {cell['peer_version']}" for cell in said if cell.get("peer_version"))


def main() -> None:
    out = Path(sys.argv[1])
    here = fingerprint("cpu", default_threads())
    ceilings.measure(here, "cpu")
    runs = [measured(*asked, out) for asked in RUNS]
    plain = measured("mixed", [PAGED], None, [], out, prepare=False)
    step, products = step_s(prepare=True) / step_s(prepare=False), linear_layers()
    known = ceilings.stored(here) or {}
    found = [("a step of 16 rows without attention, prepared / as it comes", "<= 0.7", step), *figures(runs, plain)]
    found.append(("seconds until `cbbench --help` has answered", "<= 0.5", help_s()))
    lines = [f"| {name} | {asked} | {got:.2f} |" for name, asked, got in found]
    facts = {**here, **{key: f"{number / 1e9:.1f} G" for key, number in known.items()}, **versions()}
    head = [
        "# Side by side", "", f"Written by `make perf` ({ROUNDS} rounds, medians; read ratios, not times).", "",
        ", ".join([*(f"{name} {fact}" for name, fact in facts.items() if fact), peer_versions(runs[0])]), "",
        "| what | asked | got |", "|---|---|---|", *lines, "",
        "## The linear layers alone", "", "Milliseconds for all layers of SmolLM2-135M without its head, in float32.", "", *products, "",
    ]  # fmt: skip
    groups = []
    for run in runs:
        groups += [tables.as_markdown(title, tables.grids(tables.table_rows(group))) for title, group in tables.groups([run]).items()]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join([*head, *groups]) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
