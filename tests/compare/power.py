"""`make power`: how often the gate cries wolf, and how often it finds what is there, by simulation through the real command.

Writes run folders whose times are made up, calls `cbbench compare RUN --fail-on regressed` on them, and prints the tables of
docs/compare.md. A run folder holds many pairs (an arm and a copy of it), each a trial of its own.

The noise of a round is normal in the logarithm. Of wild rounds there is one in ten: one of its two sides, either, is 1.5 to 3 times
slower. For false alarms the three gated times have noise of their own, for power they share it: the harder case of each.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cbbench.compare.stats import RECOMMENDED_ROUNDS
from cbbench.results.compared_metrics import EXACT, METRICS_VERSION, TIMED
from tests.support.commands import command

GATED = [metric for metric in TIMED if metric.gated]
COUNTS: dict[str, Any] = {metric.key: "ab" if metric.key == "output_digest" else 100 for metric in EXACT}
ARM = {
    "scheduler": {"name": "s"},
    "attn": {"name": "a"},
    "kv": {"name": "k"},
    "max_num_seqs": 8,
    "memory_budget": None,
    "budget_tokens": 64,
}
INFO = {
    "schema_version": 1, "created": "2026-01-01T00:00:00Z", "workload": {"name": "w", "digest": "w1", "arrivals": "offline"},
    "model": {"name": "m", "dtype": "float32", "digest": "d1"}, "machine": {"cpu": "A"}, "versions": {}, "finished": True,
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """What the times are like. `launch`: the whole run is one process, which favours either side by as much as the noise."""

    noise: float
    ratio: float = 1.0
    wild: bool = False
    launch: bool = False
    shared: bool = False  # the noise is the same in all times


def rounds_of(world: World, num_rounds: int, rng: np.random.Generator) -> np.ndarray:
    """How many times as slow, [side, round, metric]; the side in front is the base."""
    slow = rng.normal(0, world.noise, (2, num_rounds, len(GATED)))
    if world.shared:
        slow[:] = slow[..., :1]
    if world.launch:
        slow += rng.normal(0, world.noise, (2, 1, 1))
    if world.wild:
        is_wild, side = rng.random(num_rounds) < 0.1, rng.integers(2, size=num_rounds)
        slow[side, np.arange(num_rounds)] += np.where(is_wild, np.log(rng.uniform(1.5, 3, num_rounds)), 0)[:, None]
    slow[1] += np.log(world.ratio)
    times: np.ndarray = np.exp(slow)
    return times


def write_cell(folder: Path, arm: str, number: int, slow: np.ndarray) -> None:
    """As a run writes it, without records."""
    folder.mkdir(parents=True)
    for name in ("steps", "requests"):
        (folder / f"{name}.jsonl").touch()
    times = {m.key: 1 / float(x) if m.higher_is_better else float(x) for m, x in zip(GATED, slow, strict=True)}
    said = {"arm": arm, "round": number, "metrics_version": METRICS_VERSION, "metrics": COUNTS | times}
    (folder / "cell.json").write_text(json.dumps({**said, **{f"{kind}_{name}": 0 for name in ("steps", "requests") for kind in ("num",)},
                                                  "steps_bytes": 0, "requests_bytes": 0}))  # fmt: skip


def write_run(path: Path, trials: list[np.ndarray], isolated: bool) -> None:
    arms = []
    for i, slow in enumerate(trials):
        for label, times in ((f"t{i}#again", slow[0]), (f"t{i}", slow[1])):
            arms.append({"label": label, **ARM, **({"base_of": f"t{i}"} if "#" in label else {})})
            for number, row in enumerate(times, 1):
                write_cell(path / label / str(number), label, number, row)
    (path / "run.json").write_text(json.dumps({**INFO, "isolated": isolated, "rounds": 1, "arms": arms}))


def verdicts(trials: list[np.ndarray], isolated: bool = True, *words: str) -> dict[str, Any]:
    """What the command says of them, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, trials, isolated)
        ended = command("compare", run, "--fail-on", "regressed", "--format", "json", *words)
    found: dict[str, Any] = ended.data
    assert ended.code == found["gate"]["exit_code"], ended.err
    return found


def shares(world: World, num_rounds: int, num_trials: int, seed: int, isolated: bool = True, *words: str) -> dict[str, float]:
    """The share of trials in which a gate of their own would have failed, could not have judged, or passed."""
    rng = np.random.default_rng(seed)
    gate = verdicts([rounds_of(world, num_rounds, rng) for _ in range(num_trials)], isolated, *words)["gate"]
    hit = {row["arm"] for row in gate["hits"]}
    unknown = {row["arm"] for row in gate["undecided"]} - hit
    counts = {"failed": len(hit), "unknown": len(unknown), "passed": num_trials - len(hit | unknown)}
    return {name: num / num_trials for name, num in counts.items()}


def promises(world: World, num_rounds: int, num_trials: int, seed: int) -> tuple[int, int]:
    """Of "about N rounds would tell": how often it was said, and how often another run of N rounds did tell."""
    rng = np.random.default_rng(seed)
    first = verdicts([rounds_of(world, num_rounds, rng) for _ in range(num_trials)])["verdicts"]
    said = [v["rounds_needed"] for v in first if v["metric"] == "output_tok_per_s" and v["outcome"] == "unresolved" and v["rounds_needed"]]
    if not said:
        return 0, 0
    again = verdicts([rounds_of(world, num, rng) for num in said])["verdicts"]
    return len(said), sum(v["outcome"] != "unresolved" for v in again if v["metric"] == "output_tok_per_s")


def power_lines(num_trials: int, all_rounds: Iterable[int]) -> Iterator[list[str]]:
    for num_rounds, noise, wild in itertools.product(all_rounds, (0.01, 0.03, 0.05), (False, True)):
        same = shares(World(noise, wild=wild), num_rounds, num_trials, 1)
        more = shares(World(noise, 1.1, wild, shared=True), num_rounds, num_trials, 2)
        cells = [same["failed"], same["unknown"], more["failed"], more["unknown"]]
        yield [str(num_rounds), f"{noise:.0%}", "one in ten" if wild else "none", *(f"{share:.1%}" for share in cells)]


def launch_lines(num_trials: int) -> Iterator[list[str]]:
    for noise, words in itertools.product((0.01, 0.03, 0.05), ([], ["--allow", "process"])):
        same = shares(World(noise, launch=True), RECOMMENDED_ROUNDS, num_trials, 3, False, *words)
        yield [f"{noise:.0%}", " ".join(words) or "-", f"{same['failed']:.1%}", f"{same['unknown']:.1%}"]


def promise_lines(num_trials: int) -> Iterator[list[str]]:
    total: Counter[str] = Counter()
    for noise, ratio in itertools.product((0.03, 0.05), (1.0, 1.02, 1.04, 1.06, 1.08, 1.1)):
        said, kept = promises(World(noise, ratio), 10, num_trials, 4)
        total.update(said=said, kept=kept)
        yield [f"{noise:.0%}", f"{ratio - 1:+.0%}", f"{said / num_trials:.0%}", f"{kept / said:.0%}" if said else "-"]
    yield ["all", "", "", f"{total['kept'] / max(total['said'], 1):.0%}"]


def printed(headers: list[str], lines: Iterable[list[str]]) -> None:
    align = ["right"] * len(headers)
    print(pd.DataFrame(list(lines), columns=headers).to_markdown(index=False, colalign=align, disable_numparse=True), "\n", flush=True)


def main() -> None:
    num_trials = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    all_rounds = [int(word) for word in sys.argv[2:]] or [6, 10, 14, 18]
    same, more = "nothing changed", "10 % slower"
    headers = ["rounds", "noise", "wild rounds", f"{same}: exit 1", "exit 3", f"{more}: exit 1", "exit 3 "]
    printed(headers, power_lines(num_trials, all_rounds))
    printed(["noise", "option", f"{same}: exit 1", "exit 3"], launch_lines(num_trials))
    printed(["noise", "true change", "N rounds advised", "N rounds told"], promise_lines(num_trials))


if __name__ == "__main__":
    main()
