"""`cbbench workload make`: lengths, arrivals and shared prefixes as they were asked for, the same for the same seed."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cbbench.request import Request
from cbbench.workload.file import read_workload, resolve
from cbbench.workload.rows import Vocabulary
from tests.support.commands import command, read_lines, run_json, write_workload

NUM = 2000
LENGTHS = ("--prompt-tokens", "100", "--output-tokens", "7")


def make(tmp_path: Path, *words: str | Path, num: int = NUM, name: str = "m") -> tuple[dict[str, Any], list[Request]]:
    """What stands in the workload's YAML, and its requests on a model with 20,000 ordinary ids."""
    path = tmp_path / f"{name}.yaml"
    ended = command("workload", "make", "-o", path, "-n", str(num), *words)
    assert (ended.code, ended.out) == (0, f"{path}\n"), ended.err
    requests = resolve(read_workload(path), Vocabulary(size=20_100, ordinary_ids=np.arange(100, 20_100)))
    assert len(requests) == num == len({request.id for request in requests})
    return yaml.safe_load(path.read_text()), requests


def lengths(requests: list[Request]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.array([len(r.prompt_ids) for r in requests]), np.array([r.max_new_tokens for r in requests])


def test_lengths_follow_the_distributions_and_outputs_are_forced(tmp_path: Path) -> None:
    said, requests = make(tmp_path, "--prompt-tokens", "lognormal:mean=300,cv=1.5", "--output-tokens", "uniform:min=3,max=9", num=20_000)
    prompt, output = lengths(requests)
    assert abs(prompt.mean() / 300 - 1) < 4 * 1.5 / 20_000**0.5 + 0.002, "four standard errors, and the rounding"
    assert prompt.std() / prompt.mean() == pytest.approx(1.5, rel=0.1) and prompt.min() >= 1
    counts = np.bincount(output)[3:]
    assert len(counts) == 7 and abs(counts / 20_000 - 1 / 7).max() < 4 * (6 / 49 / 20_000) ** 0.5, "both ends included"
    assert all(request.ignore_eos for request in requests)
    assert (said["arrivals"], said["model"], said["source"]["made"]["output_tokens"]) == ("offline", "smollm2-135m", "uniform:min=3,max=9")
    prompt, output = lengths(make(tmp_path, *LENGTHS)[1])
    assert (set(prompt), set(output)) == ({100}, {7})


def test_lengths_outside_the_bounds_are_set_to_them(tmp_path: Path) -> None:
    words = ("--prompt-tokens", "lognormal:mean=50,cv=2,min=20,max=60", "--output-tokens", "lognormal:mean=1,cv=0.5")
    prompt, output = lengths(make(tmp_path, *words)[1])
    assert (prompt.min(), prompt.max(), output.min()) == (20, 60, 1)
    assert (prompt == 20).mean() > 0.2 < (prompt == 60).mean() * 2


@pytest.mark.parametrize(
    ("words", "said", "cv"),
    [
        (["offline"], "offline", None),
        (["constant", "--rate", "3"], {"constant": {"rate_per_s": 3}}, 0),
        (["poisson", "--rate", "4", "--seed", "5"], {"poisson": {"rate_per_s": 4, "seed": 5}}, 1),
        (["gamma", "--rate", "0.5", "--cv", "3"], {"gamma": {"rate_per_s": 0.5, "cv": 3, "seed": 0}}, 3),
    ],
)
def test_arrivals_are_a_process_of_that_rate_and_burstiness(tmp_path: Path, words: list[str], said: Any, cv: float | None) -> None:
    made, requests = make(tmp_path, *LENGTHS, "--arrivals", *words)
    times = np.array([request.arrival_s for request in requests])
    assert made["arrivals"] == said
    if cv is None:
        assert not times.any()
    else:
        gaps, rate = np.diff(times), float(words[2])
        assert times[0] == 0 and abs(gaps.mean() * rate - 1) < 4 * cv / NUM**0.5 + 1e-9
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.2, abs=1e-6)


def test_the_same_command_gives_the_same_bytes_and_another_seed_other_lengths(tmp_path: Path) -> None:
    words = ("--prompt-tokens", "uniform:min=40,max=99", "--output-tokens", "lognormal:mean=20,cv=1", "--arrivals", "gamma", "--rate", "2",
             "--cv", "2", "--prefix-share", "0.5", "--prefix-tokens", "32", "--num-prefixes", "3")  # fmt: skip
    files = []
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / folder).mkdir()
        _, requests = make(tmp_path / folder, *words, "--seed", seed, num=50)
        files.append(([path.read_bytes() for path in sorted((tmp_path / folder).iterdir())], requests))
    assert files[0][0] == files[1][0]
    (first, _), (other, _) = (lengths(requests) for _, requests in (files[0], files[2]))
    assert list(first) != list(other)
    assert [r.arrival_s for r in files[0][1]] != [r.arrival_s for r in files[2][1]]
    assert files[0][1][0].prompt_ids[:8] != files[2][1][0].prompt_ids[:8], "another seed, other tokens"


def test_like_draws_pairs_that_exist_in_the_other_workload(tmp_path: Path) -> None:
    rows = [{"id": f"{i}", "prompt_ids": [1] * i, "max_new_tokens": 50 - i} for i in range(20)]
    like = write_workload(tmp_path, lines=rows)
    said, requests = make(tmp_path, "--like", like)
    pairs = {*zip(*lengths(requests), strict=True)}
    assert pairs == {(i, 50 - i) for i in range(1, 20)}, "each is drawn, and no empty prompt"
    assert said["source"]["made"]["like"] == "w.yaml"
    prompt, output = lengths(make(tmp_path, "--like", like, "--output-tokens", "3")[1])
    assert {*prompt} == {*range(1, 20)} and {*output} == {3}, "what is given wins"


def in_common(one: Request, two: Request) -> int:
    """Leading tokens."""
    pairs = enumerate(zip(one.prompt_ids, two.prompt_ids, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one.prompt_ids), len(two.prompt_ids)))


def test_shared_prefixes_are_as_frequent_and_as_long_as_asked_and_others_share_nothing(tmp_path: Path) -> None:
    words = ("--prefix-share", "0.6", "--prefix-tokens", "64", "--num-prefixes", "3", "--output-tokens", "5")
    said, requests = make(tmp_path, *words, "--prompt-tokens", "uniform:min=40,max=200", num=600)
    rows = read_lines(tmp_path / "m.jsonl")
    shares = [row["blocks"][0] if "blocks" in row else None for row in rows]
    assert abs(np.mean([share is not None for share in shares]) - 0.6) < 4 * (0.24 / 600) ** 0.5 and {*shares} == {None, 0, 1, 2}
    assert said["prompts"]["block_tokens"] == 64
    assert [len(request.prompt_ids) for request in requests] == [row["prompt_tokens"] for row in rows]
    by_chance = 0
    for (one, a), (two, b) in combinations(zip(requests, shares, strict=True), 2):
        common = in_common(one, two)
        if a is not None and a == b:
            shortest = min(len(one.prompt_ids), len(two.prompt_ids))
            assert common == min(64, shortest), "exactly the prefix; a shorter prompt is the beginning of it"
        else:
            by_chance += common
            assert common <= 2
    assert by_chance < 100, "of 150,000 pairs, one in 20,000 begins alike by chance"


def test_a_made_workload_runs_without_a_model_and_every_request_ends(tmp_path: Path) -> None:
    drawn = ("--prompt-tokens", "lognormal:mean=40,cv=1", "--output-tokens", "uniform:min=1,max=9")
    words = (*drawn, "--arrivals", "poisson", "--rate", "0.5", "--prefix-share", "1", "--prefix-tokens", "16")
    _, requests = make(tmp_path, *words, num=40)
    ended = run_json(tmp_path / "m.yaml", tmp_path, "--model", "none", "--scheduler", "all")
    prompt, output = lengths(requests)
    assert ended.code == 0, ended.err
    for row in ended.rows.values():
        assert (row["requests_completed"], row["prompt_tokens"], row["output_tokens"]) == (40, prompt.sum(), output.sum())


def test_making_again_keeps_what_was_added_by_hand(tmp_path: Path) -> None:
    make(tmp_path, *LENGTHS, num=5)
    path = tmp_path / "m.yaml"
    path.write_text(f"# mine\n{path.read_text()}engine: {{max_num_seqs: 3}}\n")
    said, requests = make(tmp_path, *LENGTHS, "--arrivals", "constant", "--rate", "2", "--prefix-share", "1", "--prefix-tokens", "9", num=6)
    assert path.read_text().startswith("# mine\n") and said["engine"] == {"max_num_seqs": 3}
    assert [request.arrival_s for request in requests] == [i / 2 for i in range(6)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "make needs --prompt-tokens and --output-tokens, or --like WORKLOAD for what is left out"),
        (LENGTHS[:2], "make needs --prompt-tokens and --output-tokens"),
        ([*LENGTHS, "--prefix-share", "0.5"], "--prefix-share and --prefix-tokens go together"),
        ([*LENGTHS, "--prefix-tokens", "5"], "--prefix-share and --prefix-tokens go together"),
        ([*LENGTHS, "--arrivals", "poisson"], "--arrivals poisson needs --rate (requests a second)"),
        ([*LENGTHS, "--arrivals", "constant", "--rate", "0"], "--rate 0.0: should be more than 0"),
        ([*LENGTHS, "--arrivals", "poisson", "--rate", "nan"], "--rate nan: should be more than 0"),
        ([*LENGTHS, "--rate", "2"], "--arrivals offline has no --rate"),
        ([*LENGTHS, "--arrivals", "gamma", "--rate", "2"], "--arrivals gamma needs --cv"),
        ([*LENGTHS, "--arrivals", "poisson", "--rate", "2", "--cv", "2"], "--arrivals poisson has no --cv"),
        ([*LENGTHS, "--arrivals", "gamma", "--rate", "2", "--cv", "-1"], "--cv -1.0: should be more than 0"),
        ([*LENGTHS[2:], "--prompt-tokens", "0"], "--prompt-tokens 0: tokens: "),
        ([*LENGTHS[2:], "--prompt-tokens", "many"], "--prompt-tokens many: "),
        ([*LENGTHS[2:], "--prompt-tokens", "zipf:a=2"], "--prompt-tokens zipf:a=2: should be N, uniform:min=N,max=N or lognormal:"),
        ([*LENGTHS[2:], "--prompt-tokens", "uniform:5"], "--prompt-tokens uniform:5: should be N, "),
        ([*LENGTHS[2:], "--prompt-tokens", "uniform:min=9,max=5"], "--prompt-tokens uniform:min=9,max=5: min=9 is more than max=5"),
        ([*LENGTHS[2:], "--prompt-tokens", "uniform:min=1,mx=5"], "--prompt-tokens uniform:min=1,mx=5: "),
        ([*LENGTHS[2:], "--prompt-tokens", "uniform:min=1,max=[5"], "--prompt-tokens uniform:min=1,max=[5: should be N, "),
        ([*LENGTHS[2:], "--prompt-tokens", "lognormal:mean=5,cv=0"], "--prompt-tokens lognormal:mean=5,cv=0: cv: "),
        ([*LENGTHS[2:], "--prompt-tokens", "lognormal:mean=9,cv=1,min=50,max=5"],
         "--prompt-tokens lognormal:mean=9,cv=1,min=50,max=5: min=50 is more than max=5"),
        (["--like", "gone.yaml"], "gone.yaml: cannot be read: No such file or directory"),
        ([*LENGTHS, "-o", "m.json"], "-o m.json: should be NAME.yaml"),
        ([*LENGTHS, "-o", "gone/m.yaml"], "-o gone/m.yaml: there is no folder gone"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("workload", "make", "-n", "4", "-o", "m.yaml", *words).mistake.startswith(said)
    assert not list(tmp_path.iterdir())


def test_like_a_workload_of_empty_prompts_is_one_line(tmp_path: Path) -> None:
    like = write_workload(tmp_path, lines=[{"id": "a", "prompt_ids": [], "max_new_tokens": 1}])
    assert str(like) in command("workload", "make", "-n", "4", "-o", tmp_path / "m.yaml", "--like", like).mistake


@pytest.mark.parametrize(
    "words", [["-n", "0"], ["-n", "4", "--prefix-share", "2"], ["-n", "4", "--seed", "-1"], ["-n", "4", "--num-prefixes", "0"], []]
)
def test_a_number_out_of_its_range_is_bad_usage(tmp_path: Path, words: list[str]) -> None:
    ended = command("workload", "make", "-o", tmp_path / "m.yaml", *LENGTHS, *words)
    assert (ended.code, ended.out) == (2, "") and "Traceback" not in ended.err and not list(tmp_path.iterdir())
