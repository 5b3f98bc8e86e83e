"""`cbbench workload describe`: every number on workloads worked out by hand; the text fits a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbbench.workload.file import digest, read_workload, resolve
from tests.recording.test_record_prompts import chatty
from tests.support.commands import Ended, command, write_config, write_workload

SMOLLM2 = {"model_type": "llama", "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576,
           "intermediate_size": 1536, "vocab_size": 49152, "max_position_embeddings": 64}  # fmt: skip
PER_TOKEN = 46_080  # 30 layers x 2 x 3 heads x 64 x 4 bytes
FIRST = list(range(100, 140))
ROWS = [  # prompt, output, positions
    {"id": "a", "prompt_ids": FIRST, "max_new_tokens": 10, "arrival_s": 0, "output_ids": [1] * 10},  # 40, 10, 49
    {"id": "b", "prompt_ids": [*FIRST[:35], *range(200, 225)], "max_new_tokens": 6, "arrival_s": 0.5},  # 60, 6, 65: 32 as in a
    {"id": "c", "prompt_ids": [*FIRST[:20], 7], "max_new_tokens": 1, "arrival_s": 1},  # 21, 1, 21: 16 as in a
    {"id": "d", "prompt_ids": FIRST[:15], "max_new_tokens": 3, "arrival_s": 3},  # 15, 3, 17: no whole block
]
YAML = "requests: w.jsonl\narrivals: recorded\nmodel: none\n"


def describe(*words: str | Path) -> Ended:
    ended = command("workload", "describe", *words)
    assert ended.code == 0, ended.err
    return ended


def of(path: Path, *words: str | Path) -> dict[str, Any]:
    """The one description as JSON."""
    (about,) = describe(path, "--format", "json", *words).data
    return about


def test_json_has_every_number_of_a_workload_worked_out_by_hand(tmp_path: Path) -> None:
    path, model = write_workload(tmp_path, YAML, ROWS), write_config(tmp_path, **SMOLLM2)
    assert of(path, "--model", model, "--max-num-seqs", "2", "--memory-budget", "48 tokens") == {
        "name": "w", "digest": digest(resolve(read_workload(path), None)), "dtype": "float32", "arrivals": "recorded", "num_requests": 4,
        "prompt_tokens": {"mean": 34.0, "p50": 30.5, "p90": 54.0, "p99": 59.4, "max": 60},
        "output_tokens": {"mean": 5.0, "p50": 4.5, "p90": 8.8, "p99": 9.88, "max": 10},
        "span_s": 3.0, "rate_per_s": pytest.approx(4 / 3),
        "gap_cv": pytest.approx(0.5**0.5), "dispersion_1s": pytest.approx(0.5), "max_in_1s": 2,  # gaps .5 .5 2; counts 2 1 0 1
        "prefix_hit_frac": pytest.approx((32 + 16) / 136), "turns_after_another": 0, "recorded_references": 1,
        "kv": [{
            "model": model, "bytes_per_token": PER_TOKEN, "max_positions": 64, "batch": 2,
            "longest_request_bytes": 65 * PER_TOKEN, "longest_batch_bytes": (65 + 49) * PER_TOKEN,
            "all_at_once_bytes": (49 + 65 + 21 + 17) * PER_TOKEN, "fits_positions_frac": 0.75,
            "budget_tokens": 48, "fits_budget_frac": 0.5,
        }],
    }  # fmt: skip


def test_hashed_blocks_are_shared_by_their_ids_up_to_the_shorter_of_two(tmp_path: Path) -> None:
    rows = [
        {"prompt_tokens": 20, "blocks": [1, 2, 3]},  # 8 8 4
        {"prompt_tokens": 24, "blocks": [1, 2, 4]},  # 8 + 8 found
        {"prompt_tokens": 6, "blocks": [1]},  # 6 of 8
        {"prompt_tokens": 24, "blocks": [1, 2, 3]},  # 8 + 8, and 4 of what is 8 now
        {"prompt_tokens": 20, "blocks": [1, 2, 3]},  # all 20
        {"prompt_tokens": 16, "blocks": [5, 2]},  # 2 leads nothing here
        {"prompt_tokens": 8, "blocks": [1], "scope": "other"},  # another 1
        {"prompt_tokens": 30}, {"prompt_tokens": 30},  # without blocks nothing is shared
        {"prompt_ids": [1, 2, 3]},
    ]  # fmt: skip
    lines = [{"id": f"{i}", "max_new_tokens": 1, **row} for i, row in enumerate(rows)]
    path = write_workload(tmp_path, f"{YAML}prompts: {{block_tokens: 8}}\n", lines)
    assert of(path)["prefix_hit_frac"] == pytest.approx((16 + 6 + 20 + 20) / (20 + 24 + 6 + 24 + 20 + 16 + 8 + 60 + 3))


def test_what_does_not_exist_is_null_and_never_zero(tmp_path: Path) -> None:
    gone = dict.fromkeys(("span_s", "rate_per_s", "gap_cv", "dispersion_1s", "max_in_1s"))
    offline = of(write_workload(tmp_path, "requests: w.jsonl\nmodel: none\n", ROWS))
    assert {key: offline[key] for key in gone} == gone and offline["kv"] == []
    closed = of(write_workload(tmp_path, "requests: w.jsonl\nmodel: none\narrivals: closed\n", [*ROWS[:3], ROWS[3] | {"after": "a"}]))
    assert {key: closed[key] for key in gone} == gone and closed["turns_after_another"] == 1, "no times before it has run"
    one = of(write_workload(tmp_path, YAML, [{"id": "a", "prompt_ids": [], "max_new_tokens": 1, "arrival_s": 4}]))
    assert {key: one[key] for key in gone} == gone and one["prefix_hit_frac"] is None
    short = of(write_workload(tmp_path, YAML, ROWS[:2]))
    assert (short["span_s"], short["gap_cv"], short["dispersion_1s"], short["max_in_1s"]) == (0.5, 0, None, None), "shorter than a second"


def test_a_process_and_its_burstiness_are_described(tmp_path: Path) -> None:
    rows = [{"id": f"{i}", "prompt_ids": [1], "max_new_tokens": 1} for i in range(400)]
    about = of(write_workload(tmp_path, "requests: w.jsonl\nmodel: none\narrivals: {constant: {rate_per_s: 8}}\n", rows))
    assert about["arrivals"] == {"constant": {"rate_per_s": 8.0}}
    assert (about["span_s"], about["gap_cv"], about["dispersion_1s"], about["max_in_1s"]) == (399 / 8, pytest.approx(0, abs=1e-9), 0, 8)
    bursty = of(write_workload(tmp_path, "requests: w.jsonl\nmodel: none\narrivals: {gamma: {rate_per_s: 8, cv: 4}}\n", rows))
    assert 2.5 < bursty["gap_cv"] < 5.5 and bursty["dispersion_1s"] > 4


def test_several_workloads_on_several_models_stand_side_by_side(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir(), other.mkdir()
    small, smollm2 = write_config(tmp_path), write_config(tmp_path, "smollm2", **SMOLLM2)
    paths = (write_workload(one, YAML, ROWS), write_workload(other, f"{YAML}dtype: bfloat16\nengine: {{max_num_seqs: 1}}\n", ROWS[:2]))
    words = ("--model", small, "--model", smollm2, "--memory-budget", "2.2MiB", "--format", "json")
    first, second = describe(*paths, *words).data
    assert [(about["num_requests"], about["dtype"]) for about in (first, second)] == [(4, "float32"), (2, "bfloat16")]
    assert [(kv["model"], kv["bytes_per_token"]) for kv in first["kv"]] == [(small, 2 * 2 * 2 * 16 * 4), (smollm2, PER_TOKEN)]
    assert [kv["bytes_per_token"] for kv in second["kv"]] == [2 * 2 * 2 * 16 * 2, PER_TOKEN // 2]
    assert [kv["batch"] for kv in first["kv"] + second["kv"]] == [8, 8, 1, 1]
    assert second["kv"][1]["longest_batch_bytes"] == second["kv"][1]["longest_request_bytes"] == 65 * PER_TOKEN // 2
    budget = int(2.2 * 2**20)
    assert [kv["budget_tokens"] for kv in first["kv"]] == [budget // 512, budget // PER_TOKEN]
    assert [kv["fits_budget_frac"] for kv in first["kv"]] == [1, 0.75], "50 tokens hold all but b"


BUDGETS = {"49 tokens": 49, "1 token": 1, "3 MiB": 3 * 2**20 // PER_TOKEN, "0.1GB": 10**8 // PER_TOKEN, "9b": 0}


@pytest.mark.parametrize(("budget", "tokens"), BUDGETS.items())
def test_a_budget_is_written_as_everywhere(tmp_path: Path, budget: str, tokens: int) -> None:
    (kv,) = of(write_workload(tmp_path, YAML, ROWS), "--model", write_config(tmp_path, **SMOLLM2), "--memory-budget", budget)["kv"]
    assert kv["budget_tokens"] == tokens and kv["fits_budget_frac"] == sum(n <= tokens for n in (49, 65, 21, 17)) / 4


def test_texts_are_counted_as_the_models_tokenizer_reads_them(tmp_path: Path) -> None:
    chatty(tmp_path / "hub")
    rows = [
        {"id": "a", "prompt": "w1 w2 w3", "max_new_tokens": 2},
        {"id": "b", "messages": [{"role": "user", "content": "w5"}], "max_new_tokens": 2},
    ]
    path = write_workload(tmp_path, "requests: w.jsonl\nmodel: hub\n", rows)
    about = of(path)
    assert (about["prompt_tokens"]["max"], about["prompt_tokens"]["mean"], about["kv"][0]["model"]) == (3, 3.0, "hub")


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text for 900 requests with bursts and shared prefixes on a big model."""
    monkeypatch.chdir(tmp_path)
    lengths = ("--prompt-tokens", "lognormal:mean=600,cv=1.5", "--output-tokens", "lognormal:mean=90,cv=1")
    words = (*lengths, "--arrivals", "gamma", "--rate", "5", "--cv", "3", "--prefix-share", "0.5", "--prefix-tokens", "100")
    assert command("workload", "make", "-o", "big.yaml", "-n", "900", *words, "--model", write_config(Path(), **SMOLLM2)).code == 0
    return describe("big.yaml", "--memory-budget", "80GB").out.splitlines()


def test_the_text_says_what_json_says_in_words_and_draws_it(shown: list[str], tmp_path: Path) -> None:
    (about,) = describe("big.yaml", "--memory-budget", "80GB", "--format", "json").data
    text = "\n".join(shown)
    assert shown[0] == f"big ({about['digest']})"
    pairs = {line[2:].partition("  ")[0]: line.partition("  ")[2].partition("  ")[2].strip() for line in shown[1:]}
    assert (pairs["requests"], pairs["arrivals"]) == ("900", "gamma, rate_per_s 5.0, seed 0, cv 3.0")
    assert pairs["rate"].startswith(f"{about['rate_per_s']:.4g} req/s over ") and pairs["gaps"].startswith(f"CV {about['gap_cv']:.2f}, ")
    assert pairs["ideal prefix hits"] == f"{about['prefix_hit_frac']:.1%} of the prompt tokens"
    assert "46,080 bytes a token in float32" in text and f"(of {int(80e9 // PER_TOKEN):,} tokens)" in text
    for title in ("prompt tokens", "output tokens", "arrivals over time (s)"):
        start = shown.index(f"  {title}") + 1
        bins = [line.split() for line in shown[start : start + 10]]
        assert sum(int(line[-1].replace(",", "")) for line in bins) == 900 and all(
            line[1][0] in "▏▎▍▌▋▊▉█" for line in bins if line[-1] != "0"
        )


def test_the_text_fits_80_columns(shown: list[str]) -> None:
    assert [line for line in shown if len(line) > 80] == []


def test_the_text_leaves_out_what_does_not_exist(tmp_path: Path) -> None:
    out = describe(write_workload(tmp_path, "requests: w.jsonl\n", ROWS[:1]), "--model", "none").out
    assert "offline" in out and not any(word in out for word in ("rate", "gaps", "KV", "hits", "█", "None", "nan"))


NO_TOKENIZER = "text.jsonl:1: request 'a' has text but the model has no tokenizer"
MISTAKES: dict[str, tuple[list[str], str]] = {
    "no such workload": (["gone.yaml"], "gone.yaml: cannot be read"),
    "no such model": (["w.yaml", "--model", "random:gone.json"], "model random:gone.json: no file"),
    "no budget": (["w.yaml", "--model", "random:qwen3-0.6b", "--memory-budget", "much"], "--memory-budget: should be an amount of memory"),
    "a budget without a model": (["w.yaml", "--model", "none", "--memory-budget", "much"], "--memory-budget"),
    "text without a tokenizer": (["text.yaml", "--model", "random:qwen3-0.6b"], NO_TOKENIZER),
    "text without a model": (["text.yaml", "--model", "none"], NO_TOKENIZER),
}


@pytest.mark.parametrize("which", MISTAKES)
def test_what_cannot_be_described_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_workload(tmp_path, YAML, ROWS)
    Path("text.yaml").write_text("requests: text.jsonl\n")
    Path("text.jsonl").write_text('{"id": "a", "prompt": "hello", "max_new_tokens": 2}\n')
    words, said = MISTAKES[which]
    assert command("workload", "describe", *words).mistake.startswith(said)


def test_percentiles_are_numpys_linear_ones_to_two_digits(tmp_path: Path) -> None:
    lengths = [1, 2, 4, 8, 16, 33, 65]
    about = of(write_workload(tmp_path, YAML, [{"id": f"{n}", "prompt_tokens": n, "max_new_tokens": n * n} for n in lengths]))
    for key, values in (("prompt_tokens", lengths), ("output_tokens", [n * n for n in lengths])):
        expected = [np.mean(values), *np.percentile(values, [50, 90, 99]), max(values)]
        assert [*about[key].values()] == pytest.approx(expected, abs=0.005)


def test_a_model_that_run_refuses_for_its_states_is_not_given_bytes(tmp_path: Path) -> None:
    (tmp_path / "mla.json").write_text('{"model_type": "deepseek_v3", "num_hidden_layers": 2, "hidden_size": 64}')
    (tmp_path / "w.yaml").write_text("requests: [{id: a, prompt_ids: [1], max_new_tokens: 2}]\nmodel: random:mla.json\n")
    said = command("workload", "describe", tmp_path / "w.yaml").mistake
    assert "cannot be served: it keeps latent states (kv_lora_rank), not keys and values" in said
