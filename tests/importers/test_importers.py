"""Each public trace format reads as its publisher wrote it; what makes no sense is named with its line, never guessed."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cbbench import plugins
from cbbench.importers.base import Head, Importer, Malformed, TraceRow

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
LMM = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
BURST_8 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
SPLITWISE = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
MOON = {"timestamp": 3052, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}
TIMED = {"timestamp": 2.5, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, 9]}
CHAT = {"chat_id": 4, "parent_chat_id": 2, "timestamp": 61.114, "input_length": 33, "output_length": 9, "type": "text", "turn": 2}
CHAT["hash_ids"] = [0, 1, 2]
FIRST = {"t": 0.0, "type": "n", "in": 150, "out": 20, "hash_ids": [1, 2], "api_time": 1.5, "think_time": 0.0}
SECOND = {"t": 9.5, "type": "s", "in": 256, "out": 7, "hash_ids": [1, 2, 3, 4], "think_time": 8.0}
SUBAGENT = {"t": 4.25, "type": "subagent", "agent_id": "agent_001", "requests": [FIRST, SECOND]}
SESSION = {"id": "trace_7", "block_size": 64, "hash_id_scope": "local", "requests": [FIRST, SUBAGENT, SECOND]}

SAMPLES: list[tuple[str, str, str]] = [  # format, header, one row
    ("azure", AZURE, "2023-11-16 18:15:46.6805900,374,44"),
    ("azure", LMM, "2024-10-15T12:00:00.269Z,0,770,491"),
    ("burstgpt", BURST, "5,ChatGPT,472,18,490,Conversation log"),
    ("burstgpt", BURST_8, "5,12,3.2,GPT-4,472,18,490,Conversation log"),
    ("vidur", "arrived_at,num_prefill_tokens,num_decode_tokens", "4.314579,396,109"),
    ("vidur", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio", "3772,54,3826,69.85185185185185"),
    ("splitwise", SPLITWISE, "0,2,0,1,1,4096,32"),
    ("mooncake", "", json.dumps(MOON)),
    ("bailian", "", json.dumps(CHAT)),
    ("weka", "", json.dumps(SESSION)),
    ("timed_trace", "", json.dumps(TIMED)),
    ("timed_trace", "", json.dumps({key: value for key, value in TIMED.items() if key != "hash_ids"})),
]
NAMES = [f"{name} {header or sorted(json.loads(row))}" for name, header, row in SAMPLES]


def importer(name: str, **options: Any) -> Importer:
    found: Any = plugins.find("importer", name)
    return found(found.Options(**options))


def read(name: str, data: str | bytes, **options: Any) -> list[Any]:
    return list(importer(name, **options).read(io.BytesIO(data.encode() if isinstance(data, str) else data)))


def one(name: str, record: dict[str, Any] | str, header: str = "", **options: Any) -> Any:
    (row,) = read(name, f"{header}\n{record}" if header else json.dumps(record), **options)
    return row


def reason(row: Any, line: int = 1) -> str:
    assert isinstance(row, Malformed) and row.line == line, row
    return row.reason


def lengths(rows: list[Any]) -> list[tuple[int, int, int]]:
    return [(row.line, row.prompt_tokens, row.output_tokens) for row in rows]


@pytest.mark.parametrize("digits", range(8))
def test_azure_times_have_any_number_of_digits_row_by_row(digits: int) -> None:
    fraction = "1234560"[:digits]
    rows = read("azure", f"{AZURE}\n2024-05-10 00:00:00+00:00,1,2\n2024-05-10 00:00:00.{fraction or 0}+00:00,3,4\n")
    assert rows[1].time_us - rows[0].time_us == int(f"{fraction:0<6}"[:6])


def test_azure_times_with_z_with_an_offset_and_with_none_are_one_clock() -> None:
    times = ["2024-05-10T00:00:01Z", "2024-05-10 02:00:01+02:00", "2024-05-10 00:00:01", "2024-05-09 19:00:01.000000-05:00"]
    rows = read("azure", "\n".join([AZURE, *(f"{time},1,2" for time in times)]))
    assert {row.time_us for row in rows} == {1_715_299_201_000_000}


@pytest.mark.parametrize("time", ["", "yesterday", "18:15:46", "2023-13-16 18:15:46", "2023-11-16 25:15:46", "1700158546"])
def test_azure_text_that_is_no_time_is_refused_by_name(time: str) -> None:
    assert reason(one("azure", f"{time},1,2", AZURE), 2) == f"TIMESTAMP should be a time, is {time!r}"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False], ids=["final newline", "no final newline"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
@pytest.mark.parametrize(("name", "header", "row"), SAMPLES, ids=NAMES)
def test_line_ends_a_missing_last_one_and_a_byte_order_mark_change_nothing(
    name: str, header: str, row: str, mark: bytes, last: bool, end: str
) -> None:
    other = row.replace("trace_7", "trace_8")
    lines = [header, row, "", other] if header else [row, "", other]
    plain = read(name, "\n".join(lines))
    assert len(plain) >= 2 and all(isinstance(found, TraceRow) for found in plain)
    assert read(name, mark + (end.join(lines) + end * last).encode()) == plain


def test_columns_are_found_by_name_in_any_order_among_any_others() -> None:
    plain = read("azure", f"{AZURE}\n2023-11-16 18:15:46.1,374,44\n")
    assert read("azure", "GeneratedTokens,Region,ContextTokens,TIMESTAMP,x\n44,eu,374,2023-11-16 18:15:46.1,\n") == plain
    assert read("azure", "TIMESTAMP, ContextTokens , GeneratedTokens\n2023-11-16 18:15:46.1, 374 ,44\n") == plain, "spaces"
    with pytest.raises(ValueError, match="lacks ContextTokens; it has TIMESTAMP, GeneratedTokens"):
        read("azure", "TIMESTAMP,GeneratedTokens\n2023-11-16 18:15:46.1,44\n")


def test_azure_requests_with_images_are_marked_to_be_dropped() -> None:
    rows = read("azure", f"{LMM}\n2024-10-15T12:00:00.269Z,0,770,491\n2024-10-15T12:00:05.819Z,2,949,126\n")
    assert [row.drop for row in rows] == [None, "has images"] and rows[1].prompt_tokens == 949


def test_mooncake_times_are_milliseconds_and_its_last_block_may_be_partial() -> None:
    row = one("mooncake", MOON)
    assert (row.time_us, row.blocks, row.has_tail, row.scope) == (3_052_000, [0, 7], False, "")
    assert one("mooncake", MOON | {"input_length": 1024}).blocks == [0, 7], "an exact multiple"


@pytest.mark.parametrize("ids", [None, [0, None], [0, -1], [0, "1"], [0, 1.0], [True, 1], "0 1", {"0": 1}])
@pytest.mark.parametrize("name", ["mooncake", "bailian", "timed_trace", "weka"])
def test_block_ids_that_are_none_are_refused(name: str, ids: Any) -> None:
    record = {"mooncake": MOON, "bailian": CHAT, "timed_trace": TIMED, "weka": SESSION | {"requests": [FIRST | {"hash_ids": ids}]}}
    assert "hash_ids should be a list of block ids" in reason(one(name, record[name] | {"hash_ids": ids}))


@pytest.mark.parametrize(
    ("name", "good", "said"),
    [
        ("mooncake", MOON, "hash_ids has 1 blocks, 600 tokens in blocks of 512 need 2"),
        ("bailian", CHAT, "hash_ids has 1 blocks, 33 tokens in blocks of 16 need 3"),
        ("timed_trace", TIMED, "hash_ids has 1 blocks, 40 tokens in blocks of 16 need 3"),
    ],
)
def test_a_wrong_number_of_blocks_is_named_with_its_line_and_the_rest_is_read(name: str, good: dict[str, Any], said: str) -> None:
    before, wrong, after = read(name, "\n".join([json.dumps(good), json.dumps(good | {"hash_ids": [0]}), json.dumps(good)]))
    assert reason(wrong, 2) == said and (before.line, after.line) == (1, 3)


def test_burstgpt_files_of_6_and_of_8_columns_read_alike() -> None:
    six, eight = one("burstgpt", "5,ChatGPT,472,18,490,API log", BURST), one("burstgpt", "5,s1,3.25,ChatGPT,472,18,490,API log", BURST_8)
    assert (six.time_us, six.prompt_tokens, six.output_tokens, six.session) == (5_000_000, 472, 18, None)
    assert (eight.time_us, eight.prompt_tokens, eight.output_tokens, eight.session) == (5_000_000, 472, 18, "s1")
    assert one("burstgpt", "5,,,ChatGPT,472,18,490,API log", BURST_8) == six, "an empty session is none, the elapsed time is no target"


def test_burstgpt_rows_without_a_response_are_failures() -> None:
    rows = read("burstgpt", f"{BURST}\n5,GPT-4,472,0,472,API log\n5,GPT-4,0,0,0,API log\n6,GPT-4,0,3,3,API log\n")
    assert [row.drop for row in rows] == ["failed: no response"] * 2 + [None] and rows[2].prompt_tokens == 0


def test_bailian_rows_are_whole_requests_linked_to_the_turn_before() -> None:
    row = one("bailian", CHAT)
    assert (row.time_us, row.key, row.parent, row.continues, row.blocks) == (61_114_000, "4", "2", False, [0, 1, 2])
    assert one("bailian", CHAT | {"parent_chat_id": -1}).parent is None
    assert one("bailian", CHAT | {"type": "image"}).drop is None
    assert reason(one("bailian", CHAT | {"parent_chat_id": 4})) == "chat_id 4 is its own parent"
    assert reason(one("bailian", CHAT | {"chat_id": "4"})) == "chat_id should be a whole number, is '4'"


def test_weka_keeps_whole_blocks_and_says_where_a_tail_goes_on() -> None:
    first, *_, last = read("weka", json.dumps(SESSION))
    assert (first.blocks, first.has_tail, last.blocks, last.has_tail) == ([1, 2], True, [1, 2, 3, 4], False)
    (wrong,) = read("weka", json.dumps(SESSION | {"requests": [FIRST | {"hash_ids": [1, 2, 3]}]}))
    assert reason(wrong) == "trace_7#1: hash_ids has 3 blocks, 150 tokens hold 2 whole ones of 64"


def test_weka_sub_agents_restart_their_clock_and_share_the_sessions_ids() -> None:
    rows = read("weka", json.dumps(SESSION))
    assert [(row.line, row.time_us) for row in rows] == [(1, 0), (2, 4_250_000), (3, 13_750_000), (4, 9_500_000)]
    assert {(row.session, row.scope) for row in rows} == {("trace_7", "trace_7")}
    assert {row.scope for row in read("weka", json.dumps(SESSION | {"hash_id_scope": "global"}))} == {""}


def test_weka_requests_follow_their_own_agent_and_a_sub_agent_the_request_before_it() -> None:
    links = {row.key: (row.parent, row.think_s) for row in read("weka", json.dumps(SESSION))}
    first, inner = "trace_7#1", "trace_7#2.1"
    assert links == {first: (None, 0.0), inner: (first, 0.0), "trace_7#2.2": (inner, 8.0), "trace_7#3": (first, 8.0)}


def test_weka_a_wrong_request_is_left_out_alone_and_nothing_follows_it() -> None:
    wrong = [SECOND | {"think_time": -1}, 5, {"type": "subagent", "t": 1}, SECOND | {"in": None}, SECOND | {"t": 1e300}]
    rows = read("weka", json.dumps(SESSION | {"requests": [FIRST, *wrong, SECOND]}))
    assert [row.line for row in rows] == list(range(1, 8)) and sum(isinstance(row, Malformed) for row in rows) == 5
    assert rows[-1].parent == "trace_7#1"


@pytest.mark.parametrize("change", [{"block_size": 32}, {"id": ""}, {"id": 7}, {"hash_id_scope": "eu"}, {"requests": {}}, {"id": "a"}])
def test_weka_a_wrong_document_is_named_with_its_key_and_the_next_one_is_read(change: dict[str, Any]) -> None:
    documents = [SESSION | {"id": "a", "requests": []}, SESSION | change, SESSION | {"id": "b"}]
    wrong, *rows = read("weka", "\n".join(map(json.dumps, documents)))
    assert next(iter(change)) in reason(wrong, 2) and len(rows) == 4
    assert read("weka", json.dumps(SESSION, indent=1)) == read("weka", json.dumps([SESSION])) == read("weka", json.dumps(SESSION))


def test_vidur_reads_lengths_alone_where_there_are_no_times() -> None:
    timed = one("vidur", "4.314579,396,109", "arrived_at,num_prefill_tokens,num_decode_tokens")
    assert (timed.time_us, timed.prompt_tokens, timed.output_tokens) == (4_314_579, 396, 109)
    assert one("vidur", "396,109", "num_prefill_tokens,num_decode_tokens").time_us is None
    assert "arrived_at" in reason(one("vidur", ",396,109", "arrived_at,num_prefill_tokens,num_decode_tokens"), 2)


def test_splitwise_times_are_seconds() -> None:
    row = one("splitwise", "0,2,0,1.5,1,4096,32", SPLITWISE)
    assert (row.time_us, row.prompt_tokens, row.output_tokens) == (1_500_000, 4096, 32)


def test_timed_trace_is_in_seconds_unless_told_and_fields_may_have_other_names() -> None:
    assert one("timed_trace", TIMED).time_us == 2_500_000 and importer("timed_trace").block_tokens == 16
    renamed = {"ts": 2500, "isl": 40, "osl": 5, "ids": [0, 9]}
    options = {"timestamp": "ts", "input_length": "isl", "output_length": "osl", "hash_ids": "ids"}
    row = one("timed_trace", renamed, **options, seconds_per_unit=0.001, block_tokens=32)
    assert (row.time_us, row.blocks) == (2_500_000, [0, 9]) and importer("timed_trace", block_tokens=32).block_tokens == 32
    assert reason(one("timed_trace", renamed)) == "lacks timestamp, input_length, output_length"
    assert one("timed_trace", {"timestamp": 1, "input_length": 40, "output_length": 5}).blocks is None


def test_timed_trace_of_mooncake_reads_as_mooncake() -> None:
    assert one("timed_trace", MOON, seconds_per_unit=0.001, block_tokens=512) == one("mooncake", MOON)


def heads() -> Iterator[Any]:
    for (name, header, row), said in zip(SAMPLES, NAMES, strict=True):
        head = Head(columns=frozenset(header.split(","))) if header else Head(record=json.loads(row))
        yield pytest.param(head, [name], id=said)
    texts = ["prompt", "conversations", "text", "text_input", "turns", "messages", "payload", "session_id"]
    for key, length_trace in itertools.product(texts, [TIMED, CHAT]):
        yield pytest.param(Head(record={**length_trace, key: "x"}), [], id=f"{key} and {len(length_trace)} keys")
    yield pytest.param(Head(record={"a": 1}), [], id="nobody's")
    yield pytest.param(Head(), [], id="nothing")


OURS = {name for name, _, _ in SAMPLES}


@pytest.mark.parametrize(("head", "claimed"), heads())
def test_every_file_is_claimed_by_one_format(head: Head, claimed: list[str]) -> None:
    claiming = [name for name in plugins.names("importer") if importer(name).claims(head)]
    assert [name for name in claiming if name in OURS] == claimed and len(claiming) <= 1


NUMBERS: list[Any] = [None, True, "", "x", -1, -0.5, 1.5, "1.5", float("nan"), float("inf"), 10**30, 1e300, [], [[]], {}, "nan", "9" * 5000]


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: str(value)[:9])
@pytest.mark.parametrize(("name", "header", "row"), SAMPLES, ids=NAMES)
def test_a_length_that_is_none_is_refused_alone(name: str, header: str, row: str, value: Any) -> None:
    field = FIELDS[name]
    if header:
        cells = dict(zip(header.split(","), row.split(","), strict=True)) | {field: f'"{"" if value is None else value}"'}
        wrong = ",".join(cells.values())
    else:
        wrong = json.dumps(json.loads(row) | {"id": "wrong", "input_length": value, "requests": [FIRST | {"in": value}]})
    alone = read(name, f"{header}\n{row}")
    found = read(name, "\n".join([header, row, wrong, row.replace("trace_7", "trace_8")]))
    (bad,) = [each for each in found if isinstance(each, Malformed)]
    assert field in bad.reason and len(bad.reason) < 120 and len(found) == 2 * len(alone) + 1, found


FIELDS = {"azure": "ContextTokens", "burstgpt": "Request tokens", "vidur": "num_prefill_tokens", "splitwise": "prompt_size", "weka": "in"}
FIELDS |= dict.fromkeys(["mooncake", "bailian", "timed_trace"], "input_length")
