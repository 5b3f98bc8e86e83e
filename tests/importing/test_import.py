"""`cbbench workload import`: what it prints, what it writes, what it refuses, and that the result runs exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cbbench.workload.file import digest, read_workload, resolve
from tests.support.commands import Ended, command, read_lines, run_folder, run_json, write_config, write_lines

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:40.0000000,10,5
2023-11-16 18:15:41.0000000,20,3
2023-11-16 18:15:41.5000000,30,0
2023-11-16 18:15:43.0000000,40,7
2023-11-16 18:15:44.0000000,1000,5"""
MOON = [
    {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]},
    {"timestamp": 0, "input_length": 1100, "output_length": 6, "hash_ids": [0, 2, 3]},
    {"timestamp": 3000, "input_length": 512, "output_length": 3, "hash_ids": [0]},
    {"timestamp": 3000, "input_length": 40, "output_length": 5, "hash_ids": [9]},
]
ABOUT = "Azure/AzurePublicDataset, CC-BY 4.0; cite Splitwise (ISCA 2024), DynamoLLM (HPCA 2025) or ModServe (SoCC 2025)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a.csv (azure) and m.jsonl (mooncake) in it; also the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.csv").write_text(AZURE)
    write_lines(tmp_path / "m.jsonl", MOON)
    return tmp_path


def imported(*words: str) -> Ended:
    """Into w.yaml of the working directory."""
    ended = command("workload", "import", *words, "-o", "w.yaml")
    assert ended.code == 0, ended.err
    assert ended.out.endswith("\nw.yaml\n") and read_workload(Path("w.yaml"))
    return ended


def account(ended: Ended) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.strip().partition("  ") for line in ended.out.splitlines()[:-1])}


def source() -> dict[str, Any]:
    return dict(yaml.safe_load(Path("w.yaml").read_text())["source"])


@pytest.mark.usefixtures("folder")
def test_the_account_and_the_files_of_a_small_azure_trace() -> None:
    ended = imported("a.csv", "--max-tokens", "100", "--speedup", "2")
    assert (
        ended.err == ""
        and ended.out
        == f"""\
  format         azure
  about          {ABOUT}
  rows read      5
  kept           3
  dropped        1 no output tokens, 1 too long
  lengths        max_tokens 100, policy drop
  times          speedup 2
  prompt tokens  mean 267.5, p50 30, p90 712, p99 971, max 1,000 -> mean 23.3, p50 20, p90 36, p99 40, max 40
  output tokens  mean 5.0, p50 5, p90 6, p99 7, max 7 -> mean 5.0, p50 5, p90 7, p99 7, max 7
  rate           1 req/s over 4.000 s -> 2 req/s over 1.500 s
  gaps           CV 0.35, a second: dispersion 0.20, at most 1 -> CV 0.33, a second: dispersion 0.17, at most 2
w.yaml
"""
    )
    assert Path("w.jsonl").read_text() == (
        '{"id": "2", "prompt_tokens": 10, "max_new_tokens": 5, "ignore_eos": true}\n'
        '{"id": "3", "prompt_tokens": 20, "max_new_tokens": 3, "arrival_s": 0.5, "ignore_eos": true}\n'
        '{"id": "5", "prompt_tokens": 40, "max_new_tokens": 7, "arrival_s": 1.5, "ignore_eos": true}\n'
    )
    written = yaml.safe_load(Path("w.yaml").read_text())
    said = written.pop("source")
    assert written == {
        "description": "azure: a.csv", "model": "smollm2-135m", "requests": "w.jsonl", "arrivals": "recorded",
        "prompts": {"seed": 0, "namespace": "a"},
    }  # fmt: skip
    assert (said["rows_read"], said["kept"], said["dropped"]) == (5, 3, {"no output tokens": 1, "too long": 1})
    assert said["files"][0]["name"] == "a.csv" and said["original"]["rate_per_s"] == 1.0 and said["replayed"]["rate_per_s"] == 2.0
    requests = resolve(read_workload(Path("w.yaml")), None)
    assert [(r.arrival_s, len(r.prompt_ids), r.max_new_tokens, r.ignore_eos) for r in requests] == [
        (0.0, 10, 5, True), (0.5, 20, 3, True), (1.5, 40, 7, True)
    ]  # fmt: skip


@pytest.mark.usefixtures("folder")
def test_the_account_and_the_files_of_a_small_mooncake_trace() -> None:
    """Of 2,252 tokens 512 of the second and 512 of the third prompt were seen before: 45.5 %; of 142, 32 + 32."""
    ended = imported("m.jsonl", "--block-tokens", "32", "--seed", "5")
    assert (
        ended.out
        == """\
  format             mooncake
  about              kvcache-ai/Mooncake, Apache-2.0; cite Mooncake (FAST 2025)
  rows read          4
  kept               4
  dropped            none
  lengths            block_tokens 32
  prompt tokens      mean 563.0, p50 556, p90 950, p99 1,085, max 1,100 -> mean 35.5, p50 35, p90 60, p99 68, max 69
  output tokens      mean 4.5, p50 4, p90 6, p99 6, max 6
  rate               1.333 req/s over 3.000 s
  gaps               CV 1.41, a second: dispersion 1.00, at most 2
  ideal prefix hits  45.5% of the prompt tokens -> 45.1% of the prompt tokens
w.yaml
"""
    )
    rows = read_lines(Path("w.jsonl"))
    assert [(row["prompt_tokens"], row["blocks"], row.get("arrival_s", 0)) for row in rows] == [
        (38, [0, 1], 0), (69, [0, 2, 3], 0), (32, [0], 3.0), (3, [9], 3.0)
    ]  # fmt: skip
    assert read_workload(Path("w.yaml")).file.prompts.model_dump() == {"seed": 5, "namespace": "m", "block_tokens": 32}


@pytest.mark.usefixtures("folder")
def test_a_format_may_be_named_before_the_file_as_an_option_or_not_at_all() -> None:
    plain = [imported("a.csv").out, Path("w.jsonl").read_text()]
    for words in (["azure", "a.csv"], ["auto", "a.csv"], ["a.csv", "--format", "azure"], ["azure", "a.csv", "--format", "mooncake"]):
        assert [imported(*words).out, Path("w.jsonl").read_text()] == plain, words
    assert account(imported("timed-trace", "m.jsonl", "--option", "block_tokens=512"))["format"] == "timed_trace"


@pytest.mark.usefixtures("folder")
def test_the_same_command_twice_writes_the_same_bytes() -> None:
    words = ("m.jsonl", "--spread-ticks", "--block-tokens", "8", "--rate", "3", "--max-tokens", "20", "--fit", "clip-both")
    first = [imported(*words).out, Path("w.jsonl").read_bytes(), Path("w.yaml").read_bytes()]
    assert [imported(*words).out, Path("w.jsonl").read_bytes(), Path("w.yaml").read_bytes()] == first
    assert imported(*words, "--seed", "1").out != first[0] and Path("w.jsonl").read_bytes() != first[1]
    assert sorted(path.name for path in Path().iterdir()) == ["a.csv", "m.jsonl", "w.jsonl", "w.yaml"], "nothing is left behind"


KEPT = """# mine
description: my own words   # stays
model: other
requests: old.jsonl
measure: {rounds: 2}  # and this
# why these
arms:
  - {scheduler: static, attn: padded, kv: cat}
arrivals:
  poisson: {rate_per_s: 3}

engine:
  max_num_seqs: 3
"""


@pytest.mark.usefixtures("folder")
def test_importing_over_a_workload_keeps_what_is_not_imported_and_all_comments() -> None:
    Path("w.yaml").write_text(KEPT)
    imported("a.csv")
    text = Path("w.yaml").read_text()
    left = KEPT.replace("old.jsonl", "w.jsonl").replace("arrivals:\n  poisson: {rate_per_s: 3}\n", "arrivals: recorded\n")
    assert text.startswith(left) and text[len(left) :].startswith("prompts:\n  seed: 0\n")
    imported("m.jsonl")
    again = Path("w.yaml").read_text()
    assert again.startswith(left) and source()["format"] == "mooncake" and again.count("source:") == again.count("prompts:") == 1


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "arrivals", "times"),
    [
        (["--arrivals", "constant", "--rate", "2"], {"constant": {"rate_per_s": 2.0}}, [0, 0.5, 1, 1.5]),
        (["--arrivals", "offline"], "offline", [0, 0, 0, 0]),
        (["--arrivals", "recorded", "--gap-cap", "1"], "recorded", [0, 1, 2, 3]),
        (["--arrivals", "closed"], "closed", [0, 1, 3, 4]),
        (["--rate", "4"], "recorded", [0, 0.25, 0.75, 1]),
    ],
)
def test_arrivals_may_be_others_than_recorded(words: list[str], arrivals: Any, times: list[float]) -> None:
    imported("a.csv", *words)
    assert yaml.safe_load(Path("w.yaml").read_text())["arrivals"] == arrivals
    assert [request.arrival_s for request in resolve(read_workload(Path("w.yaml")), None)] == times


@pytest.mark.usefixtures("folder")
def test_a_gamma_process_has_the_rate_the_cv_and_the_seed_that_were_asked_for() -> None:
    imported("a.csv", "--arrivals", "gamma", "--rate", "2", "--cv", "3", "--seed", "4")
    assert yaml.safe_load(Path("w.yaml").read_text())["arrivals"] == {"gamma": {"rate_per_s": 2.0, "seed": 4, "cv": 3.0}}


@pytest.mark.usefixtures("folder")
def test_an_imported_workload_of_one_row_and_of_equal_times_has_an_account_too() -> None:
    assert "rate" in account(imported("a.csv", "--max-tokens", "16"))
    assert account(imported("a.csv", "--max-rows", "1"))["kept"] == "1"


def test_the_imported_workload_runs_exactly_and_is_the_same_workload_on_every_model(folder: Path) -> None:
    """Requested and produced lengths are both kept, and equal: end-of-sequence is ignored."""
    imported("m.jsonl", "--block-tokens", "16", "--speedup", "100", "--max-tokens", "600")
    model = write_config(folder)
    digests = set()
    for name, words in (("none", []), (model, ["--verify"])):
        out = folder / f"out{len(digests)}"
        ended = run_json(Path("w.yaml"), out, "--model", name, *words)
        assert ended.code == 0, ended.err
        (metrics,) = ended.rows.values()
        assert metrics["requests_completed"] == 4 and metrics["output_tokens"] == 18
        assert metrics["exact_matched"] == (4 if words else 0) == metrics["exact_checked"]
        served = read_lines(next(run_folder(out / "results").rglob("requests.jsonl")))
        assert [len(row["output_ids"]) for row in served] == [row["max_new_tokens"] for row in served] == [4, 6, 3, 5]
        assert [row["prompt_tokens"] for row in served] == [19, 35, 16, 2]
        digests.add(ended.data[0]["workload"]["digest"])
    assert digests == {digest(resolve(read_workload(Path("w.yaml")), None))}
