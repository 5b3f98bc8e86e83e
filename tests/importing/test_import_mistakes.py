"""Wrong words to `cbbench workload import` are one line and exit code 2, and nothing is written or overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cbbench.workload.file import read_workload
from tests.importing.test_import import AZURE, MOON
from tests.support.commands import command, write_lines


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, with a.csv (azure) and m.jsonl (mooncake) in it."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(AZURE)
    write_lines(Path("m.jsonl"), MOON)


def files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("azur a.csv -o w.yaml", "no importer named 'azur'; did you mean azure?"),
        ("a.csv --format mooncak -o w.yaml", "no importer named 'mooncak'; did you mean mooncake?"),
        ("azure m.jsonl -o w.yaml", "m.jsonl:1: the header lacks TIMESTAMP, ContextTokens, GeneratedTokens; it has "),
        ("azure -o w.yaml", "azure: no such file"),
        ("no.csv -o w.yaml", "no.csv: no such file"),
        ("a.csv no.csv -o w.yaml", "no.csv: no such file"),
        ("a.csv --speedup 2 --rate 3 -o w.yaml", "--speedup and --rate both choose how fast: give one"),
        ("a.csv --rate 0 -o w.yaml", "--rate 0.0: should be more than 0"),
        ("a.csv --speedup -1 -o w.yaml", "--speedup -1.0: should be more than 0"),
        ("a.csv --speedup nan -o w.yaml", "--speedup nan: should be more than 0"),
        ("a.csv --gap-cap inf -o w.yaml", "--gap-cap inf: should be more than 0"),
        ("a.csv --output-scale 0 -o w.yaml", "--output-scale 0.0: should be more than 0"),
        ("a.csv --cv 2 -o w.yaml", "--cv"),
        ("a.csv --arrivals recorded --cv 2 -o w.yaml", "--cv"),
        ("a.csv --arrivals offline --rate 2 -o w.yaml", "--rate"),
        ("a.csv --arrivals offline --speedup 2 -o w.yaml", "--speedup"),
        ("a.csv --arrivals poisson --rate 2 --spread-ticks -o w.yaml", "--spread-ticks"),
        ("a.csv --arrivals poisson -o w.yaml", "--arrivals poisson needs --rate (requests a second)"),
        ("a.csv --arrivals poisson --rate 2 --cv 2 -o w.yaml", "--arrivals poisson has no --cv"),
        ("a.csv --arrivals gamma --rate 2 -o w.yaml", "--arrivals gamma needs --cv"),
        ("a.csv --zero-output two -o w.yaml", "--zero-output two: should be drop or one"),
        ("a.csv --block-tokens 32 -o w.yaml", "--block-tokens"),
        ("m.jsonl --block-tokens 1024 -o w.yaml", "--block-tokens"),
        ("a.csv -o w.json", "-o w.json: should be NAME.yaml"),
        ("a.csv -o w", "-o w: should be NAME.yaml"),
        ("a.csv -o no/w.yaml", "-o no/w.yaml: there is no folder no"),
        ("m.jsonl -o m.yaml", "m.jsonl"),
        ("a.csv -o folder.yaml", "folder.yaml"),
        ("a.csv -o latin.yaml", "latin.yaml"),
        ("a.csv --option x -o w.yaml", "--option x: should be KEY=VALUE"),
        ("a.csv --option x=[ -o w.yaml", "--option x=[: the value is not valid YAML"),
        ("a.csv --option x=1 -o w.yaml", "--option x: unknown key 'x'; known keys: none"),
        (
            "timed-trace m.jsonl --option block_token=1 -o w.yaml",
            "--option block_token: unknown key 'block_token'; did you mean block_tokens?",
        ),
        (
            "timed-trace m.jsonl --option block_tokens=x -o w.yaml",
            "--option block_tokens: block_tokens: should be a valid integer, got 'x'",
        ),
        ("a.csv bad.csv --strict -o w.yaml", "bad.csv:2: ContextTokens should be a whole number of tokens, is 'x'"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(words: str, said: str) -> None:
    Path("folder.yaml").mkdir()
    Path("latin.yaml").write_bytes(b"description: \xe9\n")
    Path("bad.csv").write_text(AZURE.replace(",10,", ",x,"))
    before = files()
    mistake = command("workload", "import", *words.split()).mistake
    assert said in mistake if said.startswith("--") and " " not in said else mistake.startswith(said), mistake
    assert files() == before


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "words", ["a.csv", "-o w.yaml", "a.csv -o w.yaml --fit cut", "a.csv -o w.yaml --max-tokens 1", "a.csv -o w.yaml --start-s -1"]
)
def test_what_typer_refuses_is_exit_code_2_without_data(words: str) -> None:
    before = files()
    ended = command("workload", "import", *words.split())
    assert (ended.code, ended.out) == (2, "") and "Error" in ended.err and "Traceback" not in ended.err and files() == before


@pytest.mark.usefixtures("folder")
def test_a_missing_file_among_several_is_called_that_and_no_format() -> None:
    assert command("workload", "import", "day/no.csv", "a.csv", "-o", "w.yaml").mistake == "day/no.csv: no such file"


@pytest.mark.usefixtures("folder")
def test_rows_left_out_are_named_beside_the_account() -> None:
    write_lines(Path("bad.jsonl"), [MOON[0], {**MOON[1], "hash_ids": [0]}, MOON[2]])
    ended = command("workload", "import", "bad.jsonl", "-o", "w.yaml")
    assert ended.err == "cbbench: left out: bad.jsonl:2: hash_ids has 1 blocks, 1100 tokens in blocks of 512 need 3\n"
    assert ended.code == 0 and "  dropped            1 malformed\n" in ended.out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "text",
    ["requests:\n# mine\n- {id: a, prompt_ids: [1], max_new_tokens: 1}\nmodel: x\n", "requests : old.jsonl\nmodel: x\n",
     "arrivals:\n# why\n  poisson: {rate_per_s: 3}\nrequests: old.jsonl\nmodel: x\n", '"requests": old.jsonl\nmodel: x\n',
     "requests: [\n  {id: a, prompt_ids: [1], max_new_tokens: 1}\n]\nmodel: x\n", "{requests: old.jsonl, model: x}\n"],
    ids=["a comment before a list", "a blank before the colon", "a comment before a mapping", "quoted", "brackets", "braces"],
)  # fmt: skip
def test_any_workload_that_reads_is_imported_over_or_refused_untouched(text: str) -> None:
    Path("w.yaml").write_text(text)
    if command("workload", "import", "a.csv", "-o", "w.yaml").code:
        assert Path("w.yaml").read_text() == text and not Path("w.jsonl").exists()
    else:
        assert read_workload(Path("w.yaml")).file.model == "x" and yaml.safe_load(Path("w.yaml").read_text())["source"]["format"] == "azure"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("words", [["--max-tokens", "2"], ["--skip-rows", "9"], ["--duration-s", "0"], ["empty.csv"]])
def test_an_import_that_keeps_nothing_is_refused_with_where_the_rows_went(words: list[str]) -> None:
    Path("empty.csv").write_text(AZURE.splitlines()[0])
    ended = command("workload", "import", *([] if "empty.csv" in words else ["a.csv"]), *words, "-o", "w.yaml")
    assert "no requests" in ended.mistake and not Path("w.yaml").exists() and not Path("w.jsonl").exists()
