"""The peer `openai`: what a server is asked, when, and what of its stream is believed. Ids are checked, counts are not."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cbbench.clock import RealClock
from cbbench.peers.base import UNKNOWN, Answer, Setting
from cbbench.peers.openai import OpenAi
from cbbench.request import Request
from tests.support.commands import SOURCE, Ended, read_lines, run_folder, run_json
from tests.support.engines import requests, tiny
from tests.support.servers import Completions, Fake, Stream, fake

__all__ = ["fake"]  # the fixture

ARM = "continuous+varlen+paged"
Outputs = dict[tuple[int, ...], tuple[int, ...]]


@pytest.fixture
def outputs(recorded: Path) -> Outputs:
    """What the tiny model says to each prompt of `recorded`."""
    return {tuple(row["prompt_ids"]): tuple(row["output_ids"]) for row in read_lines(recorded.with_suffix(".jsonl"))}


def run_peer(workload: Path, tmp_path: Path, fake: Fake, *words: str) -> Ended:
    return run_json(workload, tmp_path, "--peer", "openai", "--set", f"peer.url={fake.url}", *words)


def saved(tmp_path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """cell.json and requests.jsonl of the peer."""
    folder = run_folder(tmp_path / "results") / "openai" / "1"
    return json.loads((folder / "cell.json").read_text()), read_lines(folder / "requests.jsonl")


def answers(fake: Fake, made: list[Request], max_num_seqs: int = 4) -> list[Answer]:
    setting = Setting(max_num_seqs, "float32", "cpu", 1, tiny, eos_ids=frozenset({2}))
    peer = OpenAi(setting, OpenAi.Options(url=fake.url))
    peer.start(made)
    return sorted(peer.run(made, RealClock()), key=lambda answer: answer.index)


def known(made: list[Request]) -> Outputs:
    return {tuple(request.prompt_ids): request.output_ids or () for request in made}


def test_a_server_that_tells_its_token_ids_is_judged_by_them_like_any_arm(
    recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs
) -> None:
    fake.answer = Completions(outputs)
    ended = run_peer(recorded, tmp_path, fake)
    assert ended.code == 0, ended.err
    row, arm = ended.rows["openai"], ended.rows[ARM]
    assert (row["exact_checked"], row["exact_matched"], row["requests_completed"]) == (4, 4, 4)
    assert row["output_digest"] == arm["output_digest"] and row["ttft_s_p50"] > 0 and row["itl_s_max"] > 0
    assert (row["peak_memory_bytes"], row["steps"], row["kv_peak_bytes"], row["preemptions"]) == (None, None, None, None)
    cell, lines = saved(tmp_path)
    assert (cell["peer"], cell["peer_version"]) == ("openai", "first"), "the model that the server names"
    assert [line["outcome"] for line in lines] == ["exact"] * 4


def test_a_servers_wrong_token_is_wrong_and_the_arm_beside_it_is_not(recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs) -> None:
    prompt = (7, 8, 9, 10, 11)
    fake.answer = Completions(outputs | {prompt: (*outputs[prompt][:-1], outputs[prompt][-1] ^ 1)})
    ended = run_peer(recorded, tmp_path, fake)
    assert ended.code == 4 and "wrong: request last, token 11: expected " in ended.err
    assert (ended.rows["openai"]["exact_wrong"], ended.rows["openai"]["exact_matched"]) == (1, 3)
    assert (ended.rows[ARM]["exact_wrong"], ended.rows[ARM]["exact_matched"]) == (0, 4)


def test_it_is_asked_for_greedy_tokens_of_the_very_prompt_ids_after_a_probe_of_one_token(
    recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs
) -> None:
    fake.answer = Completions(outputs)
    assert run_peer(recorded, tmp_path, fake, "--max-num-seqs", "1", "--set", "peer.model=mine").code == 0
    salts = [body.pop("cache_salt") for _, body, _ in fake.asked]
    assert len({*salts}) == 2, "the probe's, and the round's"
    same = {"model": "mine", "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    forced = [{"ignore_eos": True} if row.get("ignore_eos") else {} for row in SOURCE]
    rows = [{"prompt": row["prompt_ids"], "max_tokens": row["max_new_tokens"]} for row in SOURCE]
    assert [body for _, body, _ in fake.asked] == [
        same | {"prompt": [11], "max_tokens": 1},
        *(same | row | force for row, force in zip(rows, forced, strict=True)),
    ]
    assert {path for path, _ in fake.visits} == {"/v1/completions"}, "a named model is not looked for"


def test_a_server_that_refuses_words_it_does_not_know_is_asked_without_them_and_its_tokens_are_counted_not_verified(
    recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs
) -> None:
    fake.answer = Completions(outputs, takes_any_word=False)
    ended = run_peer(recorded, tmp_path, fake)
    assert ended.code == 0, ended.err
    row, arm = ended.rows["openai"], ended.rows[ARM]
    assert (row["exact_checked"], row["requests_completed"], row["output_tokens"]) == (0, 4, arm["output_tokens"])
    assert row["ttft_s_p50"] > 0 and row["tpot_s_p50"] > 0, "one event is one token: its moment is known"
    assert ["return_token_ids" in body for _, body, _ in fake.asked] == [True, True, *[False] * 6]
    assert all({*line["output_ids"]} == {UNKNOWN} and "outcome" not in line for line in saved(tmp_path)[1])
    assert "unverified" in (run_folder(tmp_path / "results") / "summary.md").read_text()


@pytest.mark.parametrize("tells_ids", [True, False])
def test_tokens_that_came_in_one_event_share_its_moment_or_have_none(fake: Fake, tells_ids: bool) -> None:
    (request,) = made = requests(tiny(), "5/7", ignore_eos=True)
    fake.answer = Completions(known(made), tells_ids, tokens_per_event=3)
    (answer,) = answers(fake, made)
    times = answer.token_times_s
    if not tells_ids:
        assert (answer.output_ids, times) == ([UNKNOWN] * 7, None), "counted by the server, and no moment is made up"
        return
    assert tuple(answer.output_ids) == request.output_ids and times is not None and len(times) == 7
    assert times[0] == times[2] <= times[3] == times[5] <= times[6] <= (answer.ended_s or 0)


def test_moments_that_are_not_known_are_null_in_the_tables_and_the_run_still_has_its_throughput(
    recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs
) -> None:
    fake.answer = Completions(outputs, tells_ids=False, tokens_per_event=2)
    row = run_peer(recorded, tmp_path, fake).rows["openai"]
    assert [row[key] for key in ("tpot_s_p50", "itl_s_p99", "exact_checked", "exact_wrong")] == [None, None, 0, 0]
    assert [line["token_times_s"] is None for line in saved(tmp_path)[1]] == [True, True, False, True], "one token, one event"
    assert row["output_tokens"] == 7 + 5 + 1 + 12 and row["output_tok_per_s"] > 0 and row["e2e_s_p50"] > 0


def test_without_usage_events_are_counted(fake: Fake) -> None:
    made = requests(tiny(), "5/7", ignore_eos=True)
    fake.answer = Completions(known(made), tells_ids=False, tells_usage=False)
    (answer,) = answers(fake, made)
    assert answer.output_ids == [UNKNOWN] * 7 and len(answer.token_times_s or []) == 7


def test_tokens_without_text_are_counted_and_not_taken_for_none(recorded: Path, tmp_path: Path, fake: Fake) -> None:
    """An end of sequence, or half a character: the server counts it and shows no text."""
    fake.answer = lambda _, body: Stream(
        [{"choices": [{"text": "", "finish_reason": "length"}]}, {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}]
    )
    ended = run_peer(recorded, tmp_path, fake)
    assert ended.code == 0, ended.err
    assert [ended.rows["openai"][key] for key in ("output_tokens", "exact_checked", "exact_wrong")] == [7 + 5 + 1 + 12, 0, 0]


def test_a_tail_behind_the_end_of_sequence_does_not_count_unless_it_was_asked_for(fake: Fake) -> None:
    asked = [Request("a", (5, 6), 6), Request("b", (5, 6), 6, ignore_eos=True)]
    tail = [
        {"choices": [{"token_ids": [token], "text": "x", "finish_reason": end}]}
        for token, end in zip((7, 8, 2, 9, 9, 9), (*[None] * 5, "length"), strict=True)
    ]
    fake.answer = lambda _, body: Stream(tail if body["max_tokens"] == 6 else [tail[-1]])
    found = answers(fake, asked)
    assert [answer.output_ids for answer in found] == [[7, 8, 2], [7, 8, 2, 9, 9, 9]]
    assert [len(answer.token_times_s or []) for answer in found] == [3, 6]


def test_as_many_requests_as_the_arms_have_places_are_under_way_and_never_more(fake: Fake) -> None:
    made = requests(tiny(), "3/4 4/4 5/4 6/4 7/4 8/4", ignore_eos=True)
    model = fake.answer = Completions(known(made), meeting=threading.Barrier(2))
    assert [tuple(a.output_ids) for a in answers(fake, made, max_num_seqs=2)] == [request.output_ids for request in made]
    assert model.most_running == 2


def test_no_request_is_asked_before_it_arrives_and_each_goes_in_order_of_arrival(fake: Fake) -> None:
    made = requests(tiny(), "3/2@0.3 4/2@0 5/2@0.15", ignore_eos=True)
    fake.answer = Completions(known(made))
    found = answers(fake, made, max_num_seqs=1)
    assert [len(body["prompt"]) for _, body, _ in fake.asked[1:]] == [4, 5, 3]
    for answer, request in zip(found, made, strict=True):
        moments = [answer.first_scheduled_s, *(answer.token_times_s or []), answer.ended_s]
        assert moments == sorted(moments) and (answer.first_scheduled_s or 0) >= request.arrival_s
        assert tuple(answer.output_ids) == request.output_ids


def test_the_warm_up_asks_the_server_and_is_not_counted(recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs) -> None:
    fake.answer = Completions(outputs)
    ended = run_peer(recorded, tmp_path, fake, "--warmup", "2", "--max-num-seqs", "3")
    assert ended.rows["openai"]["exact_matched"] == 4 and len(fake.asked) == 1 + 2 * 3 + 4
    lengths = [body["max_tokens"] for _, body, _ in fake.asked[1:]]
    assert [sorted(lengths[:3]), sorted(lengths[3:6]), sorted(lengths[6:])] == [[1, 4, 4], [1, 4, 4], [1, 5, 7, 12]]
    prompts = [tuple(body["prompt"]) for _, body, _ in fake.asked[1:]]
    warm, measured = set(prompts[:6]), set(prompts[6:])
    assert not {prompt for prompt in warm & measured if prompt != prompt[::-1]}, "or a server's prefix cache would know them"
    assert {prompt[::-1] for prompt in warm} <= measured, "the same lengths and tokens"


def test_url_and_name_of_the_model_stand_neither_in_the_label_nor_among_the_arms(
    recorded: Path, tmp_path: Path, fake: Fake, outputs: Outputs
) -> None:
    fake.answer = Completions(outputs)
    assert run_peer(recorded, tmp_path, fake, "--set", "peer.model=mine").code == 0
    arms = json.loads((run_folder(tmp_path / "results") / "run.json").read_text())["arms"]
    assert arms[-1] == {"label": "openai", "peer": "openai", "max_num_seqs": 8}


def test_requests_of_one_prompt_that_differ_in_length_are_each_their_own(fake: Fake) -> None:
    (first,) = requests(tiny(), "5/9", ignore_eos=True)
    made = [first, replace(first, id="short", max_new_tokens=3)]
    fake.answer = Completions(known([first]))
    assert [len(answer.output_ids) for answer in answers(fake, made)] == [9, 3]
