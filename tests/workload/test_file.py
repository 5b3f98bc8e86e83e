"""A workload's YAML is read whole or refused with one line that has the place and the name of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from cbbench.runs.config import Overrides, build_arms
from cbbench.workload.file import read_workload, resolve
from tests.support.commands import Write, refusal, write_workload


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(yaml text, jsonl lines as text or as rows) -> the .yaml's path."""
    return lambda *given, **named: write_workload(tmp_path, *given, **named)


def arms_of(path: Path) -> list[str]:
    return [arm.label for arm in build_arms(read_workload(path), Overrides())]


def test_a_workload_of_one_line_is_enough(write: Write) -> None:
    (request,) = resolve(read_workload(write()), None)
    assert (request.id, request.prompt_ids, request.max_new_tokens) == ("a", (1, 2, 3), 4)
    assert (request.arrival_s, request.ignore_eos, request.output_ids) == (0.0, False, None)


def test_requests_may_stand_in_the_yaml(write: Write) -> None:
    path = write("requests:\n  - {id: x, prompt_ids: [5], max_new_tokens: 1}\n  - {id: y, prompt_ids: [6], max_new_tokens: 2}\n")
    assert [r.id for r in resolve(read_workload(path), None)] == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("requests: w.jsonl\nmodle: x\n", "2:1", ["unknown key 'modle'", "did you mean model?"]),
        ("requests: w.jsonl\nengine:\n  scheduller: static\n", "3:3", ["'engine.scheduller'", "did you mean scheduler?"]),
        ("requests: w.jsonl\nmeasure: {round: 2}\n", "2:11", ["'measure.round'", "did you mean rounds?"]),
        ("requests: w.jsonl\nmeasure: {rounds: 0}\n", "2:11", ["measure.rounds", "greater than or equal to 1", "got 0"]),
        ("requests: w.jsonl\nmeasure:\n  rounds: 1.5\n", "3:3", ["measure.rounds", "integer", "1.5"]),
        ("requests: w.jsonl\ndtype: float64\n", "2:1", ["dtype", "'float32', 'bfloat16' or 'float16'", "'float64'"]),
        ("requests: w.jsonl\nengine: {max_num_seqs: true}\n", "2:10", ["max_num_seqs", "integer", "True"]),
        ("requests: w.jsonl\nengine: {memory_budget: lots}\n", "2:10", ["memory_budget", "512MiB", "'lots'"]),

        ("requests: w.jsonl\nmodel: a\nmodel: b\n", "3:1", ["'model'", "given twice"]),
        ("requests: w.jsonl\nengine:\n  kv: {name: cat, name: paged}\n", "3:19", ["'name'", "given twice"]),
        ("requests: [\n", "2:1", ["not valid YAML"]),
        ("requests: w.jsonl\n\tmodel: x\n", "2:1", ["not valid YAML"]),
        ("requests: !!python/object/apply:os.system [ls]\n", "1:11", ["not valid YAML"]),
        ("- a\n- b\n", "1:1", ["a workload is a mapping", "requests"]),
        ("", "1:1", ["a workload is a mapping"]),
        ("model: x\n", "1:1", ["requests", "required"]),
        ("requests: []\n", "1:1", ["no requests"]),
        ("requests: [null]\n", "1:1", ["requests"]),
        ("requests: w.jsonl\nengine: null\n", "2:1", ["engine"]),
        ("requests: elsewhere.jsonl\n", "1:1", ["elsewhere.jsonl", "no such file"]),
        ("requests: ../w.jsonl\n", "1:1", ["../w.jsonl", "outside the workload's folder"]),
        ("requests: /etc/passwd\n", "1:1", ["/etc/passwd", "outside the workload's folder"]),
        ("requests:\n  - {id: x, prompt_ids: [5], max_new_tokens: 1}\n  - {id: x, prompt_ids: [5], max_new_tokens: 1}\n", "3:5",
         ["'x' was given before", "w.yaml:2:5"]),
    ],
)  # fmt: skip
def test_a_wrong_yaml_is_refused_with_its_place(write: Write, text: str, at: str, said: list[str]) -> None:
    path = write(text)
    message = refusal(lambda: read_workload(path))
    assert message.startswith(f"{path}:{at}: ")
    assert [words for words in said if words not in message] == [], message


@pytest.mark.parametrize(
    "text",
    ["requests: &a [*a]\n", "? [a]\n: b\n", f"requests: {'[' * 2000}\n", 'requests: "w\\0.jsonl"\n'],
    ids=["alias to itself", "list as a key", "nested too deep", "NUL in a path"],
)
def test_a_yaml_that_no_reader_survives_is_refused_too(write: Write, text: str) -> None:
    path = write(text)
    assert refusal(lambda: read_workload(path)).startswith(f"{path}:")


@pytest.mark.parametrize(
    ("kv", "said"),
    [
        ("{name: paged, block_size: true}", ["block_size", "valid integer", "True"]),
        ('{name: paged, block_size: "16"}', ["block_size", "valid integer", "'16'"]),
        ("{name: paged, block_size: 0}", ["block_size", "greater than or equal to 1", "got 0"]),
        ("{name: paged, block_size: -1}", ["block_size", "greater than or equal to 1", "got -1"]),
        ("{name: paged, block_size: 1.0}", ["block_size", "valid integer", "1.0"]),
        ("{name: paged, block_siz: 16}", ["unknown key 'block_siz'", "did you mean block_size?"]),
        ("{name: preallocated, reserve: all}", ["reserve", "'max_len', 'pow2' or 'exact'", "'all'"]),
        ("{block_size: 16}", ["strategy's name"]),
        ("pagd", ["no kv named 'pagd'", "did you mean paged?"]),
        ("7", ["strategy's name"]),
    ],
)
def test_a_wrong_strategy_or_option_is_refused_with_its_place(write: Write, kv: str, said: list[str]) -> None:
    path = write(f"requests: w.jsonl\nengine:\n  kv: {kv}\n")
    message = refusal(lambda: arms_of(path))
    assert message.startswith(f"{path}:3:"), message
    assert [words for words in said if words not in message] == [], message


@pytest.mark.parametrize("size", [1, 7, 16, 256, 768])
def test_any_whole_block_size_is_taken(write: Write, size: int) -> None:
    changed = f"(block_size={size})" if size != 16 else ""
    assert arms_of(write(f"requests: w.jsonl\nengine: {{kv: {{name: paged, block_size: {size}}}}}\n")) == [
        f"continuous+varlen+paged{changed}"
    ]


def test_a_wrong_arm_is_named_at_its_own_line_and_takes_what_it_leaves_out_from_engine(write: Write) -> None:
    text = "requests: w.jsonl\nengine: {scheduler: static, kv: cat}\narms:\n  - {attn: padded}\n  - {kv: {name: paged, block_size: 8}}\n"
    assert arms_of(write(text)) == ["static+padded+cat", "static+varlen+paged(block_size=8)"]
    path = write(text.replace("8", "no"))
    assert refusal(lambda: arms_of(path)).startswith(f"{path}:5:")


def test_two_equal_arms_are_refused(write: Write) -> None:
    path = write("requests: w.jsonl\narms:\n  - {attn: padded}\n  - {attn: padded}\n")
    assert "two arms are both continuous+padded+paged" in refusal(lambda: arms_of(path))


def test_a_missing_workload_and_one_that_is_no_text_are_named(tmp_path: Path, write: Write) -> None:
    assert refusal(lambda: read_workload(tmp_path / "no.yaml")).startswith(f"{tmp_path / 'no.yaml'}: cannot be read: No such file")
    (tmp_path / "w.yaml").write_bytes(b"\xff\xfe\x00")
    assert refusal(lambda: read_workload(tmp_path / "w.yaml")).startswith(f"{tmp_path / 'w.yaml'}: cannot be read")
    path = write()
    path.with_suffix(".jsonl").write_bytes(b'{"id": "\xff"}\n')
    assert "w.jsonl: cannot be read" in refusal(lambda: read_workload(path))
    assert "cannot be read" in refusal(lambda: read_workload(tmp_path))
