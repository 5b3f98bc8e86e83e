"""Peers in an interpreter of their own: judged like an arm, never asked too early, and given what the arms are given."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cbbench.clock import RealClock
from cbbench.peers._children import serve
from tests.support.commands import read_lines, run_folder, write_workload
from tests.support.engines import LLAMA_LIKE, requests, tiny
from tests.support.peers import ARM, FAKE, LABEL, Written, cell_of, engine, in_order, rows_of, run_fake, started

__all__ = ["engine"]  # the fixture


def test_it_is_judged_by_the_same_tokens_as_the_arms_and_named_with_its_version(recorded: Path, tmp_path: Path, engine: Written) -> None:
    engine(rows_of(recorded))
    ended = run_fake(recorded, tmp_path, "--warmup", "1")
    assert ended.code == 0, ended.err
    row, arm = ended.rows[LABEL], ended.rows[ARM]
    assert (row["exact_checked"], row["exact_matched"], row["output_digest"]) == (4, 4, arm["output_digest"])
    assert row["ttft_s_p50"] > 0 and row["e2e_s_max"] <= row["duration_s"] + 1e-9 and row["steps"] is None
    assert (cell_of(tmp_path)["peer"], cell_of(tmp_path)["peer_version"]) == (FAKE, "1.2.3")
    added = [(note["added"], note["request"]["max_new_tokens"]) for note in engine.notes("added")]
    assert added == [(0, 4), (1, 4), (2, 1), (3, 4), (0, 7), (1, 5), (2, 1), (3, 12)], "the warm-up first, and none of it counted"
    order = [next(iter({"added", "forgot"} & {*note})) for note in engine.notes() if {"added", "forgot"} & {*note}]
    assert order == ["added"] * 4 + ["forgot"] + ["added"] * 4, "what it kept of the warm-up is gone"
    assert engine.all_gone()


def test_its_wrong_token_is_wrong_and_the_arm_beside_it_is_not(recorded: Path, tmp_path: Path, engine: Written) -> None:
    *rest, last = rows_of(recorded)
    engine([*rest, last | {"output_ids": [*last["output_ids"][:3], last["output_ids"][3] ^ 1, *last["output_ids"][4:]]}])
    ended = run_fake(recorded, tmp_path)
    assert ended.code == 4 and "wrong: request last, token 3: expected " in ended.err
    assert (ended.rows[LABEL]["exact_wrong"], ended.rows[LABEL]["exact_matched"]) == (1, 3)
    assert (ended.rows[ARM]["exact_wrong"], ended.rows[ARM]["exact_matched"]) == (0, 4)


def test_no_request_is_handed_over_before_it_arrives_and_times_count_from_the_start_of_the_run(engine: Written) -> None:
    made = requests(tiny(), "5/3@0.3 6/40@0 7/2@0.15", ignore_eos=True)
    engine(made, make="time.sleep(0.5)", step="time.sleep(0.01)")
    with started(made) as peer:
        begun_s = time.perf_counter()
        answers = peer.run(made, RealClock())
        took_s = time.perf_counter() - begun_s
    assert in_order(answers) == [request.output_ids for request in made]
    assert [note["added"] for note in engine.notes("added")] == [1, 2, 0]
    for note, request in zip(engine.notes("added"), (made[1], made[2], made[0]), strict=True):
        assert note["at_s"] - begun_s >= request.arrival_s, "perf_counter is one clock for all processes"
    for answer, request in zip(answers, made, strict=True):
        times = answer.token_times_s or []
        assert times == sorted(times) and times[-1] == answer.ended_s and request.arrival_s <= times[0] and times[-1] <= took_s


def test_two_runs_of_one_engine_keep_their_answers_and_their_clocks_apart(engine: Written) -> None:
    first, second = requests(tiny(), "5/9 6/4", ignore_eos=True), requests(tiny(), "7/3 4/8 9/2", ignore_eos=True)
    engine(first + second)
    with started(first + second) as peer:
        assert in_order(peer.run(first, RealClock())) == [request.output_ids for request in first]
        time.sleep(0.2)
        begun_s = time.perf_counter()
        answers = peer.run(second, RealClock())
        assert in_order(answers) == [request.output_ids for request in second]
        assert max(answer.ended_s or 0 for answer in answers) <= time.perf_counter() - begun_s


def test_whatever_an_engine_prints_is_in_its_log_and_no_reply(recorded: Path, tmp_path: Path, engine: Written) -> None:
    noise = "print('{NAME}', flush=True); os.write(1, b'{NAME} raw\\n'); subprocess.run(['echo', '{NAME} below'])"
    engine(rows_of(recorded), make=noise.replace("{NAME}", "made"), step=noise.replace("{NAME}", "stepped"))
    ended = run_fake(recorded, tmp_path)
    assert ended.code == 0 and ended.rows[LABEL]["exact_matched"] == 4, ended.err
    log = (tmp_path / "cache" / "peers" / "peers.log").read_text().splitlines()
    assert {"made", "made raw", "made below", "stepped", "stepped raw", "stepped below"} <= {*log}
    assert "stepped" not in ended.out + ended.err


def test_end_of_sequence_counts_where_the_request_says_so_and_the_model_has_one(engine: Written) -> None:
    made = [replace(request, ignore_eos=index == 1) for index, request in enumerate(requests(tiny(), "5/3 6/2", ignore_eos=True))]
    engine(made)
    for eos_ids in (frozenset({9, 2}), frozenset[int]()):
        with started(made, eos_ids=eos_ids) as peer:
            peer.run(made, RealClock())
    asked = [note["request"]["ignore_eos"] for note in engine.notes("added")]
    assert asked == [False, True, True, True], "without an end-of-sequence id every length is forced"
    assert [note["setting"]["eos_ids"] for note in engine.notes("setting")] == [[2, 9], []]


def test_an_engine_is_given_memory_for_a_full_batch_of_the_longest_request(engine: Written) -> None:
    made = requests(tiny(), "600/9 3/4", ignore_eos=True)
    engine(made)
    with started(made, max_num_seqs=3, num_threads=7):
        (note,) = engine.notes("setting")
    longest = 600 + 9  # and nothing for the last token, but one to be safe
    assert note["setting"] | {"model_dir": ""} == {
        "model_dir": "", "dtype": "float32", "device": "cpu",
        "num_threads": 7, "max_num_seqs": 3, "longest": longest, "kv_tokens": 3 * longest,
        "kv_bytes": 3 * longest * tiny().spec.bytes_per_token, "max_num_batched_tokens": 600, "eos_ids": [2], "options": {},
    }  # fmt: skip


def test_its_memory_is_unknown_since_its_model_is_loaded_with_it(recorded: Path, tmp_path: Path, engine: Written) -> None:
    """An arm's memory counts above its loaded model. What a child holds beside its model nobody can tell from outside."""
    engine(rows_of(recorded))
    rows = run_fake(recorded, tmp_path).rows
    assert rows[LABEL]["peak_memory_bytes"] is None and rows[ARM]["output_tokens"] == rows[LABEL]["output_tokens"]


def test_the_path_of_an_interpreter_stands_neither_in_the_label_nor_among_the_arms(recorded: Path, tmp_path: Path, engine: Written) -> None:
    engine(rows_of(recorded))
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    ended = run_fake(recorded, tmp_path, "--peer-python", f"{FAKE}={other}")
    assert ended.code == 0 and {*ended.rows} == {ARM, LABEL}, ended.err
    files = [path for path in run_folder(tmp_path / "results").rglob("*") if path.is_file()]
    assert len(files) > 5 and not [path for path in files if "other-python" in path.read_text()]
    info = json.loads((run_folder(tmp_path / "results") / "run.json").read_text())
    assert info["arms"][-1] == {"label": LABEL, "peer": FAKE, "max_num_seqs": 8}


def test_what_no_arm_could_run_is_refused_for_a_peer_too_and_never_asked_for(recorded: Path, tmp_path: Path, engine: Written) -> None:
    first, *rest = rows_of(recorded)
    limit = LLAMA_LIKE["max_position_embeddings"]
    none = [{"id": "empty", "prompt_ids": [], "max_new_tokens": 3}, {"id": "huge", "prompt_ids": [5] * limit, "max_new_tokens": 2}]
    engine([first, *rest])
    path = write_workload(tmp_path, recorded.read_text(), [first, *none, *rest])
    ended = run_fake(path, tmp_path, "--warmup", "1")
    assert ended.code == 3, ended.err
    for label in (ARM, LABEL):
        found = [ended.rows[label][key] for key in ("requests_refused", "requests_completed", "exact_matched", "output_tokens")]
        assert found == [2, 4, 4, 25], label
    lines = {label: read_lines(run_folder(tmp_path / "results") / label / "1" / "requests.jsonl") for label in (ARM, LABEL)}
    assert [(line["id"], line["index"], line["state"]) for line in lines[LABEL]] == [
        (line["id"], line["index"], line["state"]) for line in lines[ARM]
    ]
    assert lines[LABEL][2]["reason"] == lines[ARM][2]["reason"] == f"needs {limit + 1} positions, the model has {limit}"
    assert {len(note["request"]["prompt_ids"]) for note in engine.notes("added")} == {3, 25, 1, 5}
    assert engine.notes("setting")[0]["setting"]["longest"] == 25 + 5, "what is refused takes no memory"


def test_an_engine_never_has_more_than_the_batch_limit_in_its_hands() -> None:
    class Engine:
        """A token a step for everyone; three tokens each."""

        def __init__(self) -> None:
            self.left: dict[int, int] = {}
            self.most = 0

        def add(self, index: int, request: dict[str, Any]) -> None:
            self.left[index] = 3
            self.most = max(self.most, len(self.left))

        def step(self) -> Iterator[tuple[int, list[int], bool]]:
            for index in list(self.left):
                self.left[index] -= 1
                yield index, [7], not self.left[index]
                if not self.left[index]:
                    del self.left[index]

    engine = Engine()
    answers = serve.run(engine, [{"arrival_s": 0.0}] * 7, max_num_seqs=2)
    assert engine.most == 2 and [answer["output_ids"] for answer in answers] == [[7, 7, 7]] * 7
    assert all(answer["ended_s"] == answer["token_times_s"][-1] for answer in answers)
