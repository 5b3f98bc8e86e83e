"""A trace is read as a stream, its window and nothing beyond, and every row read is kept or dropped by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbbench.importing import trace as trace_module
from cbbench.importing.run import _sort
from cbbench.importing.text_prompts import TextPrompts
from cbbench.importing.trace import Trace, Window, choose_importer, read_trace
from cbbench.workload.prompts import PromptRecipe
from tests.support.commands import refusal

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROWS = ["2023-11-16 18:15:40,10,5", "2023-11-16 18:15:41.5,20,3", "2023-11-16 18:15:43,30,7", "2023-11-16 18:15:46,40,1"]
MOON = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}
Row = tuple[str, int | None, int | None]


def azure(*lines: str, header: str = AZURE) -> str:
    return "".join(f"{line}\n" for line in (header, *lines))


def moon(*changes: dict[str, Any]) -> str:
    return "".join(json.dumps(MOON | change) + "\n" for change in changes)


def texts() -> TextPrompts:
    return TextPrompts(lambda: pytest.fail("lengths need no vocabulary"), PromptRecipe(block_tokens=512))


def read(*paths: Path, format: str = "auto", strict: bool = False, zero_output_as_one: bool = False, **window: Any) -> Trace:
    paths_ = list(paths)
    found = read_trace(choose_importer(format, paths_, {}), paths_, Window(**window), texts(), strict, zero_output_as_one)
    assert found.rows_read == len(found.rows) + found.dropped.total(), "the account reconciles, always"
    return found


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture
def four(tmp_path: Path) -> Path:
    return write(tmp_path / "four.csv", azure(*ROWS))


def ids(trace: Trace) -> list[str]:
    return [row.id for row in trace.rows]


def test_a_row_is_named_by_its_line(four: Path) -> None:
    found = read(four)
    assert (found.importer.name(), ids(found), found.rows_read, dict(found.dropped)) == ("azure", ["2", "3", "4", "5"], 4, {})


@pytest.mark.parametrize(
    ("window", "kept", "dropped"),
    [
        ({"skip_rows": 1}, "345", {"before the window": 1}),
        ({"max_rows": 2}, "23", {}),
        ({"skip_rows": 1, "max_rows": 2}, "34", {"before the window": 1}),
        ({"skip_rows": 9}, "", {"before the window": 4}),
        ({"start_s": 1.5}, "345", {"before the window": 1}),
        ({"duration_s": 3.0}, "23", {"after the window": 2}),
        ({"start_s": 1.5, "duration_s": 4.5}, "34", {"before the window": 1, "after the window": 1}),
        ({"start_s": 1.5, "skip_rows": 2, "duration_s": 99.0}, "45", {"before the window": 2}),
    ],
)
def test_windows_in_rows_and_in_seconds_from_the_first_row(four: Path, window: dict[str, Any], kept: str, dropped: dict[str, int]) -> None:
    """[start, start + duration): the end is outside."""
    found = read(four, **window)
    assert ("".join(ids(found)), dict(found.dropped)) == (kept, dropped)
    assert Window(**window).describe() == window


def test_rows_without_a_time_are_in_every_window_of_seconds(tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", azure("5,6", header="num_prefill_tokens,num_decode_tokens"))
    assert len(read(path, start_s=5.0, duration_s=1.0).rows) == 1


def test_a_time_window_ends_the_reading_when_thousands_of_rows_lie_beyond_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "PATIENCE", 3)
    late = moon(*({"timestamp": 5000} for _ in range(3)), {"timestamp": 10}, *({"timestamp": 6000} for _ in range(100)))
    found = read(write(tmp_path / "m.jsonl", moon({}) + late), duration_s=1.0)
    assert [row.id for row in found.rows] == ["1", "5"], "a straggler within the patience is kept"
    assert dict(found.dropped) == {"after the window": 7} and found.rows_read == 9


def test_a_row_beyond_the_window_is_never_read(tmp_path: Path) -> None:
    text = moon({}, {"hash_ids": [0, 8]}) + "broken\n" + moon(*({"hash_ids": [0, 9]} for _ in range(30_000)))
    path = write(tmp_path / "m.jsonl", text)
    found = read(path, strict=True, max_rows=2)
    assert found.rows_read == 2 and found.files[0]["only_the_beginning"] and found.files[0]["bytes"] < path.stat().st_size / 4
    assert refusal(lambda: read(path, strict=True, max_rows=3)) == f"{path}:3: not valid JSON: Expecting value"
    missing = tmp_path / "behind.jsonl"
    assert read(path, missing, max_rows=2).rows_read == 2, "nor a file beyond it"


def test_rows_that_say_nothing_are_dropped_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "z.csv", azure("2023-11-16 18:15:40,0,5", "2023-11-16 18:15:41,7,0", "2023-11-16 18:15:42,0,0", ROWS[3]))
    found = read(path)
    assert (ids(found), dict(found.dropped)) == (["5"], {"no prompt tokens": 2, "no output tokens": 1})
    found = read(path, zero_output_as_one=True)
    assert [(row.id, row.output_tokens) for row in found.rows] == [("3", 1), ("5", 1)] and dict(found.dropped) == {"no prompt tokens": 2}


def test_rows_that_cannot_be_read_are_counted_and_the_first_five_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", azure(ROWS[0], *(f"2023-11-16 18:15:4{i},x{i},1" for i in range(7)), "1,2", ROWS[3]))
    found = read(path)
    assert dict(found.dropped) == {"malformed": 8} and ids(found) == ["2", "11"]
    assert found.malformed == [f"{path}:{i + 3}: ContextTokens should be a whole number of tokens, is 'x{i}'" for i in range(5)]
    assert refusal(lambda: read(path, strict=True)) == found.malformed[0]


def test_a_block_with_two_parents_is_a_malformed_row(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", moon({}, {"hash_ids": [7, 0]}, {"hash_ids": [0, 8]}))
    found = read(path)
    assert ids(found) == ["1", "3"] and found.malformed == [f"{path}:2: block 7 stands behind nothing, before it stood behind 0"]


def test_a_window_later_in_the_file_has_the_blocks_of_the_whole_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", moon(*({"timestamp": 1000 * i, "hash_ids": [0, i + 1]} for i in range(3000))))
    whole = {row.id: list(row.blocks or ()) for row in read(path).rows}
    assert any(max(blocks) > 1 << 40 for blocks in whole.values()), "some had to be told apart"
    for window in ({"skip_rows": 1500}, {"start_s": 2000.0}, {"skip_rows": 100, "max_rows": 2000}):
        assert all(list(row.blocks or ()) == whole[row.id] for row in read(path, **window).rows)


def test_times_out_of_order_are_sorted_ties_stay_as_they_stood_and_inversions_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", moon(*({"timestamp": at} for at in (5, 3, 3, 9, 5, 3))))
    found = read(path)
    assert _sort(found.rows) == 3 and ids(found) == ["2", "3", "6", "1", "5", "4"]
    assert _sort(found.rows) == 0 and _sort([]) == 0


LINES: list[tuple[str, str]] = [  # a line, and what becomes of it
    (json.dumps(MOON), "kept"), (json.dumps(MOON | {"output_length": 0}), "no output tokens"), ("{}", "malformed"), ("[1", "malformed"),
    (json.dumps(MOON | {"input_length": 0, "hash_ids": []}), "no prompt tokens"), (json.dumps(MOON | {"hash_ids": [7, 0]}), "malformed"),
    (json.dumps(MOON | {"timestamp": 10**7}), "after the window"), (json.dumps(MOON | {"timestamp": "x"}), "malformed"), ("", "no row"),
]  # fmt: skip


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(LINES), max_size=12), st.integers(0, 4), st.one_of(st.none(), st.integers(1, 6)))
def test_the_account_of_any_mix_reconciles(tmp_path_factory: pytest.TempPathFactory, mix: list[Any], skip: int, most: int | None) -> None:
    text = "\n".join([LINES[0][0], *(line for line, _ in mix)])
    found = read(
        write(tmp_path_factory.getbasetemp() / "mix.jsonl", text), format="mooncake", skip_rows=skip, max_rows=most, duration_s=9.0
    )
    seen = [(number, fate) for number, (_, fate) in enumerate([LINES[0], *mix], 1) if fate != "no row"][: skip + most if most else None]
    fates = [fate if fate == "malformed" or index >= skip else "before the window" for index, (_, fate) in enumerate(seen)]
    assert found.rows_read == len(seen)
    assert {**found.dropped, "kept": len(found.rows)} == {"kept": 0} | {fate: fates.count(fate) for fate in set(fates)}
    assert ids(found) == [str(number) for (number, _), fate in zip(seen, fates, strict=True) if fate == "kept"]
