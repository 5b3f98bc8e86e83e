"""A mistake on the command line or a model that cannot be served: one line, exit code 2, and nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import command, recorded_workload, run, write_config
from tests.support.engines import ATTENTIONS


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with recorded_workload(tmp_path_factory.mktemp("recorded")) as path:
        yield path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scheduler", "continous"], ["--scheduler", "'continous'", "did you mean continuous?"]),
        (["--kv", "paged,pagedd"], ["--kv", "'pagedd'", "did you mean paged?"]),
        (["--attn", "zzz"], ["--attn", "'zzz'", *ATTENTIONS]),
        (["--arm", "static+padded"], ["--arm static+padded", "scheduler+attn+kv"]),
        (["--arm", "static+padded+cat", "--kv", "cat"], ["--arm", "does not go with"]),
        (["--arm", "static+paded+cat"], ["'paded'", "did you mean padded?"]),
        (["--arm", "static+padded+cat", "--arm", "static+padded+cat"], ["two arms are both static+padded+cat"]),
        (["--set", "kv.blocksize=16"], ["--set kv.blocksize", "kv.block_size"]),
        (["--kv", "cat", "--set", "kv.block_size=16"], ["--set kv.block_size", "none"]),
        (["--set", "block_size=16"], ["--set block_size=16", "kv.OPTION=VALUE"]),
        (["--set", "kv.block_size"], ["--set kv.block_size", "kv.OPTION=VALUE"]),
        (["--set", "kv.block_size=true"], ["--set kv.block_size", "valid integer", "True"]),
        (["--set", "kv.block_size='16'"], ["--set kv.block_size", "valid integer", "'16'"]),
        (["--set", "kv.block_size=0"], ["--set kv.block_size", "greater than or equal to 1", "got 0"]),
        (["--set", "kv.block_size=[1"], ["--set kv.block_size=[1", "not valid YAML"]),
        (["--set", "max_num_seqs=0"], ["--max-num-seqs", "greater than or equal to 1"]),
        (["--memory-budget", "lots"], ["--memory-budget", "512MiB", "'lots'"]),
        (["--scheduler", "chunked", "--set", "scheduler.max_num_batched_tokens=0"], ["--set scheduler.max_num_batched_tokens", "got 0"]),
        (["--attn", "no_such.module:Class"], ["--attn", "no_such.module cannot be imported"]),
        (["--attn", "json:JSONDecoder"], ["--attn", "no class JSONDecoder that extends Attention"]),
        (["--dtype", "bfloat16"], ["continuous+varlen+paged cannot run", "bfloat16", "padded, serial, unbatched"]),
        (["--device", "tpu"], ["--device tpu", "not on this machine", "cpu"]),
        (["--model", "none", "--memory-budget", "1MiB"], ["memory_budget 1MiB", "4096 tokens"]),
        (["--model", "no/such-model"], ["'no/such-model'", "cannot be loaded", "smollm2-135m (embedded)"]),
        (["--model", "random:nowhere.json"], ["random:nowhere.json", "no file", "qwen3-0.6b"]),
        (["--model", "random:qwen3-0.6b@x"], ["seed", "'x'"]),
        (["--model", "nowhere.gguf"], ["nowhere.gguf", "no such file"]),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_the_flag_and_nothing_is_run(recorded: Path, tmp_path: Path, words: list[str], said: list[str]) -> None:
    mistake = run(recorded, tmp_path, *words).mistake
    assert [word for word in said if word not in mistake] == [], mistake
    assert not (tmp_path / "results").exists()


TEXT = "requests: [{id: a, prompt_ids: [1, 2], max_new_tokens: 2}]\n"
UNSERVED = {
    "t5": ({"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 50}, "encoder-decoder"),
    "mamba": ({"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "vocab_size": 50}, "0 of its 2 layers"),
    "bloom": ({"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50}, "0 of its 2 layers"),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNSERVED)
def test_a_model_that_cannot_be_served_is_refused_by_name_with_the_reason(tmp_path: Path, kind: str) -> None:
    config, reason = UNSERVED[kind]
    (tmp_path / "w.yaml").write_text(TEXT)
    mistake = run(tmp_path / "w.yaml", tmp_path, "--model", write_config(tmp_path, kind, model_type=kind, **config)).mistake
    assert kind in mistake.lower() and reason in mistake, mistake
    assert len(mistake) < 400


def test_a_file_that_is_no_model_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(TEXT)
    for text in ("{", "[]", "{}", '{"model_type": "nothing"}', '{"model_type": "llama", "hidden_size": "x"}'):
        (tmp_path / "bad.json").write_text(text)
        assert "bad.json" in run(tmp_path / "w.yaml", tmp_path, "--model", f"random:{tmp_path / 'bad.json'}").mistake, text


def test_bad_usage_ends_with_2() -> None:
    for words in (
        ["run"],
        ["run", "w.yaml", "--format", "xml"],
        ["run", "w.yaml", "--rounds", "0"],
        ["nothing"],
        ["run", "w.yaml", "--no"],
    ):
        ended = command(*words)
        assert (ended.code, ended.out) == (2, ""), words
