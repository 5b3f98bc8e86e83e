"""Importers read as streams, and no bytes harm them: rows, named mistakes, or one line about the header."""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbbench import plugins
from cbbench.importers.base import Head, Malformed, TraceRow
from tests.importers.test_importers import MOON, NAMES, SAMPLES, importer, read


class Endless(io.RawIOBase):
    """A header and then one row for ever, a session renamed each time. Counts what was taken."""

    def __init__(self, header: str, row: str) -> None:
        self.lines = itertools.chain([header] * bool(header), (row.replace("trace_7", f"trace_{n}") for n in itertools.count()))
        self.rest, self.taken = b"", 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(self.rest) < len(buffer):
            self.rest += f"{next(self.lines)}\n".encode()
        buffer[:], self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
        self.taken += len(buffer)
        return len(buffer)


@pytest.mark.parametrize(("name", "header", "row"), SAMPLES, ids=NAMES)
def test_the_first_1000_rows_of_an_endless_file_are_read_and_little_more(name: str, header: str, row: str) -> None:
    endless = Endless(header, row)
    rows = list(itertools.islice(importer(name).read(io.BufferedReader(endless, 4096)), 1000))
    assert len(rows) == 1000 and all(isinstance(found, TraceRow) for found in rows)
    needed = (1000 if name != "weka" else 250) * (len(row) + 1)
    assert endless.taken < needed + len(header) + 3 * 4096


def assert_sound(name: str, data: bytes) -> None:
    """What comes out of any bytes: sound rows, named mistakes, or one ValueError about the header."""
    rows = importer(name).read(io.BytesIO(data))
    try:
        found = list(rows)
    except ValueError:
        return
    for row in found:
        if isinstance(row, Malformed):
            assert row.line >= 1 and row.reason.strip(), row
            continue
        assert isinstance(row, TraceRow) and row.line >= 1, row
        assert all(count is None or (type(count) is int and 0 <= count <= 10**8) for count in (row.prompt_tokens, row.output_tokens)), row
        assert row.time_us is None or (type(row.time_us) is int and abs(row.time_us) <= 2**62), row
        assert 0 <= row.think_s < float("inf") and isinstance(row.scope, str), row
        assert row.blocks is None or all(type(block) is int and block >= 0 for block in row.blocks), row


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["t", "in", "requests", "type", "x"]), inner, max_size=3),
    max_leaves=6,
)
FILES = [f"{header}\n{row}\n{row}\n".lstrip().encode() for _, header, row in SAMPLES]
EVERY = pytest.mark.parametrize("name", plugins.names("importer"))


@EVERY
@given(data=st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_arbitrary_bytes_harm_no_importer(name: str, data: bytes) -> None:
    assert_sound(name, data)
    for header in (header for known, header, _ in SAMPLES if known == name and header):
        assert_sound(name, header.encode() + b"\n" + data)


@EVERY
@given(file=st.sampled_from(FILES), place=st.floats(0, 1), cut=st.integers(0, 9), put=st.binary(max_size=6))
def test_a_damaged_file_harms_no_importer(name: str, file: bytes, place: float, cut: int, put: bytes) -> None:
    at = int(place * len(file))
    assert_sound(name, file[:at] + put + file[at + cut :])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    own = [(value, key) for key in (value if isinstance(value, dict) else range(len(value)))] if isinstance(value, dict | list) else []
    return own + [place for container, key in own for place in places(container[key])]


@EVERY
@given(sample=st.sampled_from([row for _, header, row in SAMPLES if not header]), put=ANY_JSON, data=st.data())
def test_any_json_in_any_place_harms_no_importer(name: str, sample: str, put: Any, data: st.DataObject) -> None:
    record = json.loads(sample)
    container, key = data.draw(st.sampled_from(places(record)))
    container[key] = put
    assert_sound(name, json.dumps(record).encode())
    importer(name).claims(Head(record=record))


MOON_LINE = json.dumps(MOON)
ONE_LINE_WRONG = [  # (format, file, what each of its lines behind the header gives); None: a ValueError about the header
    pytest.param("vidur", "num_prefill_tokens,num_decode_tokens\r396,109\r", None, id="old Mac line ends"),
    pytest.param("vidur", "num_prefill_tokens,num_decode_tokens\n1,469,13\n1,2", [Malformed, TraceRow], id="a cell too many"),
    pytest.param("vidur", 'num_prefill_tokens,num_decode_tokens\n"1,2\n3,4\n5,6', [Malformed, TraceRow, TraceRow], id="a quote left open"),
    pytest.param("mooncake", f"{MOON_LINE[:20]}\n{MOON_LINE}\n{MOON_LINE}", [Malformed, TraceRow, TraceRow], id="a first line cut off"),
]


@pytest.mark.parametrize(("name", "data", "kinds"), ONE_LINE_WRONG)
def test_what_is_wrong_with_one_line_costs_that_line_alone(name: str, data: str, kinds: list[type] | None) -> None:
    if kinds is None:
        with pytest.raises(ValueError):
            read(name, data)
    else:
        assert [type(row) for row in read(name, data)] == kinds
