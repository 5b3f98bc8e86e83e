"""Which files a trace is read from, how they may be written down, how they are named, and what is refused in one line."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from cbbench.importing.text_prompts import TextPrompts
from cbbench.importing.trace import Window, choose_importer, read_trace
from cbbench.workload.prompts import PromptRecipe
from cbbench.workload.rows import Vocabulary
from tests.importing.test_trace import AZURE, MOON, ROWS, azure, ids, moon, read, write
from tests.support.commands import refusal

CUT = gzip.compress(azure(*ROWS).encode())[:-9]
BROKEN = gzip.compress(b"")[:10] + b"\xff" * 99


@pytest.fixture
def four(tmp_path: Path) -> Path:
    return write(tmp_path / "four.csv", azure(*ROWS))


def test_a_file_read_to_its_end_is_named_with_its_sha256_and_size(four: Path) -> None:
    raw = four.read_bytes()
    whole = {"name": "four.csv", "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert read(four).files == [whole]
    assert read(four, max_rows=2).files == [whole | {"only_the_beginning": True}]
    packed = write(four.with_suffix(".csv.gz"), gzip.compress(raw))
    assert read(packed).files == [
        {"name": "four.csv.gz", "bytes": packed.stat().st_size, "sha256": hashlib.sha256(packed.read_bytes()).hexdigest()}
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
@pytest.mark.parametrize("last", [True, False], ids=["final newline", "no final newline"])
@pytest.mark.parametrize("packed", [False, True], ids=["", "gz"])
@pytest.mark.parametrize("text", [azure(*ROWS), moon(MOON, MOON)], ids=["csv", "jsonl"])
def test_how_a_file_is_written_down_changes_nothing(tmp_path: Path, text: str, packed: bool, last: bool, mark: bytes, end: str) -> None:
    plain = read(write(tmp_path / "plain", text))
    raw = mark + (text if last else text.rstrip("\n")).replace("\n", end).encode()
    found = read(write(tmp_path / ("odd.gz" if packed else "odd"), gzip.compress(raw) if packed else raw))
    assert found.rows == plain.rows and found.importer.name() == plain.importer.name() and "only_the_beginning" not in found.files[0]


def test_rows_of_two_files_are_named_by_file_and_their_blocks_are_their_own(tmp_path: Path) -> None:
    one, two = (write(tmp_path / f"{name}.jsonl", moon({}, {"hash_ids": [0, 8]})) for name in "ab")
    found = read(one, two)
    assert ids(found) == ["a-1", "a-2", "b-1", "b-2"] and [row.scope for row in found.rows] == ["a", "a", "b", "b"]
    assert [row.scope for row in read(one).rows] == ["", ""] and [seen["name"] for seen in found.files] == ["a.jsonl", "b.jsonl"]
    assert len(read(one, two, skip_rows=1, max_rows=2).rows) == 2, "rows are counted over all files"


def test_a_folder_is_its_files_of_that_format_by_name(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv.gz", ".hidden.csv", "notes.txt"):
        write(tmp_path / name, gzip.compress(azure(*ROWS).encode()) if name.endswith("gz") else azure(*ROWS))
    (tmp_path / "c.csv").mkdir()
    assert [seen["name"] for seen in read(tmp_path).files] == ["a.csv.gz", "b.csv"]
    empty = tmp_path / "c.csv"
    assert refusal(lambda: read(empty)) == f"{empty}: no .csv or .jsonl or .json in this folder"
    assert refusal(lambda: read(empty, format="azure")) == f"{empty}: no .csv in this folder"


@pytest.mark.parametrize("other", ["folder/a.csv", "a.csv.gz", "a.txt"])
def test_files_of_one_name_give_no_two_rows_one_id(tmp_path: Path, other: str) -> None:
    (tmp_path / "folder").mkdir()
    text = azure(*ROWS).encode()
    two = write(tmp_path / other, gzip.compress(text) if other.endswith("gz") else text)
    found = ids(read(write(tmp_path / "a.csv", text), two))
    assert len(set(found)) == len(found) == 8


def test_files_of_one_name_share_no_blocks(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    two = write(tmp_path / "folder" / "m.jsonl", moon({"hash_ids": [7, 0]}))
    found = read(write(tmp_path / "m.jsonl", moon({})), two)
    assert len({row.scope for row in found.rows}) == 2 and not found.dropped


def test_turns_of_one_line_get_ids_of_their_own(tmp_path: Path) -> None:
    turns = {"prompt_0": "a", "output_tokens_count_0": 4, "prompt_1": "b", "output_tokens_count_1": 4}
    path = write(tmp_path / "turns.jsonl", json.dumps(turns))
    asked = TextPrompts(lambda: Vocabulary(lambda text: list(map(ord, text))), PromptRecipe())
    found = ids(read_trace(choose_importer("guidellm", [path], {}), [path], Window(), asked))
    assert len(set(found)) == len(found) == 2


@pytest.mark.parametrize(
    ("name", "text", "format", "said"),
    [
        ("e.csv", "", "auto", "no importer knows it (it has neither a header nor a JSON object); name one of aiperf, azure, "),
        ("e.csv", "a,b\n1,2\n", "auto", "no importer knows it (it has a, b); name one of aiperf, azure, "),
        ("e.jsonl", '{"b": 1, "a": 2}\n', "auto", "no importer knows it (it has a, b); name one of "),
        ("e.csv", "", "azure", "the header lacks TIMESTAMP, ContextTokens, GeneratedTokens; it has nothing"),
        ("e.csv", "TIMESTAMP,x\n", "azure", "the header lacks ContextTokens, GeneratedTokens; it has TIMESTAMP, x"),
        ("e.csv.gz", "text", "azure", "cannot be read: Not a gzipped file"),
        ("e.csv.gz", "text", "auto", "cannot be read: Not a gzipped file"),
        ("e.csv.gz", CUT, "azure", "cannot be read: Compressed file ended"),
        ("e.csv.gz", CUT, "auto", "cannot be read: Compressed file ended"),
        ("e.csv.gz", BROKEN, "azure", "cannot be read: "),
    ],
    ids=[
        "empty",
        "csv",
        "jsonl",
        "empty azure",
        "azure without columns",
        "no gzip",
        "no gzip auto",
        "cut gzip",
        "cut gzip auto",
        "broken gzip",
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path, name: str, text: str | bytes, format: str, said: str) -> None:
    path = write(tmp_path / name, text)
    message = refusal(lambda: read(path, format=format))
    assert message.startswith(str(path)) and said in message


def test_a_missing_file_and_an_unknown_format_are_refused(four: Path) -> None:
    for format in ("auto", "azure"):
        assert refusal(lambda format=format: read(four.with_name("no.csv"), format=format)) == f"{four.with_name('no.csv')}: no such file"
    assert refusal(lambda: read(four, format="azur")) == "no importer named 'azur'; did you mean azure?"


def test_a_header_without_rows_is_an_empty_trace(tmp_path: Path) -> None:
    assert read(write(tmp_path / "h.csv", AZURE)).rows_read == 0
    assert read(write(tmp_path / "e.jsonl", ""), format="mooncake").rows_read == 0


def test_the_format_is_told_by_header_or_keys(tmp_path: Path, four: Path) -> None:
    assert choose_importer("auto", [four], {}).name() == "azure"
    lines = moon({}).splitlines()
    for text in (lines[0], f"\n\n{lines[0]}\n", f"[{lines[0]}]", json.dumps([MOON], indent=1), f"broken\n{lines[0]}"[7:]):
        assert choose_importer("auto", [write(tmp_path / "m.json", text)], {}).name() == "mooncake"
