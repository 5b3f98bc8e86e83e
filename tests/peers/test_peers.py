"""Other systems in the same tables: the same requests, judged by the same tokens; what they do not tell is null."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cbbench import plugins
from cbbench.clock import RealClock, VirtualClock
from cbbench.peers.base import Answer, Setting, describe_answer, shortfall, until_end
from cbbench.peers.hf_continuous import HfContinuous
from cbbench.peers.hf_generate import HfGenerate
from cbbench.request import Request
from tests.support.commands import command, read_lines, run_folder, run_json
from tests.support.engines import as_it_comes, requests, tiny

PEERS = ["hf-generate", "hf-continuous"]


def answers_of(made: list[Request], max_num_seqs: int) -> list[Answer]:
    setting = Setting(max_num_seqs, "float32", "cpu", 1, as_it_comes)
    peer = HfGenerate(setting, HfGenerate.Options())
    peer.start(made)
    return sorted(peer.run(made, RealClock()), key=lambda answer: answer.index)


def test_a_run_with_peers_judges_them_by_the_same_tokens_and_leaves_null_what_they_do_not_tell(recorded: Path, tmp_path: Path) -> None:
    ended = run_json(recorded, tmp_path, "--peer", ",".join(PEERS))
    assert ended.code == 0, ended.err
    assert [*ended.rows] != [] and {*ended.rows} == {"continuous+varlen+paged", *PEERS}
    for name in PEERS:
        row = ended.rows[name]
        assert (row["exact_checked"], row["exact_matched"], row["requests_completed"]) == (4, 4, 4)
        assert row["output_tokens"] == ended.rows["continuous+varlen+paged"]["output_tokens"]
        assert row["ttft_s_p50"] > 0 and row["output_tok_per_s"] > 0 and row["e2e_s_max"] <= row["duration_s"] + 1e-9
        for key in (
            "steps",
            "host_s",
            "kv_utilization",
            "slot_idle_frac",
            "preemptions",
            "prefill_padding_frac",
            "kv_peak_bytes",
            "lateness_s_max",
        ):
            assert row[key] is None, key
    lines = read_lines(run_folder(tmp_path / "results") / "hf-generate" / "1" / "requests.jsonl")
    assert [line["outcome"] for line in lines] == ["exact"] * 4


def test_generate_runs_a_batch_to_its_longest_and_each_request_keeps_its_own() -> None:
    made = requests(tiny(), "5/3@0 17/12@0 9/1@0 4/7@0 6/5@0", ignore_eos=True)
    answers = answers_of(made, max_num_seqs=3)
    assert [tuple(answer.output_ids) for answer in answers] == [request.output_ids for request in made]
    times = [answer.token_times_s or [] for answer in answers]
    assert all(len(stamps) == len(answer.output_ids) and stamps == sorted(stamps) for stamps, answer in zip(times, answers, strict=True))
    first, second = answers[:3], answers[3:]
    assert len({answer.first_scheduled_s for answer in first}) == 1, "one batch"
    assert min(a.first_scheduled_s or 0 for a in second) >= max(a.ended_s or 0 for a in first), "the next batch waits for all of it"


def test_a_batch_is_made_of_what_has_arrived_and_waits_for_no_other() -> None:
    """The rule of our static scheduler."""
    made = requests(tiny(), "5/3@0 6/2@0 7/2@0.2", ignore_eos=True)
    peer = HfGenerate(Setting(3, "float32", "cpu", 1, as_it_comes), HfGenerate.Options())
    first, second, late = peer.run(made, VirtualClock())  # type: ignore[arg-type]  # on which a batch takes no time
    assert [answer.first_scheduled_s for answer in (first, second, late)] == [0, 0, 0.2]
    assert [tuple(answer.output_ids) for answer in (first, second, late)] == [request.output_ids for request in made]


def test_one_request_that_ignores_its_end_leaves_the_ends_of_its_batch_alone() -> None:
    """The others end at their end-of-sequence token, the batch with the last of them; nothing is computed to the longest length."""
    free, forced = requests(tiny(), "5/30 6/4", ignore_eos=True)
    assert free.output_ids is not None and forced.output_ids is not None
    end = free.output_ids[2]
    made = [replace(free, ignore_eos=False), forced]
    model = SimpleNamespace(hf=as_it_comes().hf, eos_ids=frozenset({end}), device="cpu")
    steps: list[int] = []
    handle = model.hf.register_forward_pre_hook(lambda *_: steps.append(1))
    try:
        peer = HfGenerate(Setting(2, "float32", "cpu", 1, lambda: model), HfGenerate.Options())
        found = peer.run(made, RealClock())
    finally:
        handle.remove()
    assert [tuple(answer.output_ids) for answer in found] == [free.output_ids[: free.output_ids.index(end) + 1], forced.output_ids]
    assert len(steps) == 4 and all(answer.ended_s == (answer.token_times_s or [])[-1] for answer in found)


@pytest.mark.parametrize(
    ("given", "asked", "said"),
    [
        ([7, 8, 9], {}, None),
        ([7, 2], {}, None),
        ([-1, -1], {}, None),
        ([7, 2], {"ignore_eos": True}, "it ended after 2 of 3 tokens"),
        ([-1, -1], {"ignore_eos": True}, "it ended after 2 of 3 tokens"),
        ([7, 8], {}, "it ended after 2 of 3 tokens"),
        ([], {}, "it ended after 0 of 3 tokens"),
        ([7, 8, 9, 10], {}, "4 tokens, 3 were asked for"),
    ],
)
def test_no_peers_answer_counts_unless_it_is_what_was_asked(given: list[int], asked: dict[str, Any], said: str | None) -> None:
    assert shortfall(Answer(0, given), Request("a", (1,), 3, **asked), frozenset({2})) == said


def test_the_measured_prompts_are_not_in_a_cache_of_the_warm_up() -> None:
    """transformers shares the blocks of equal beginnings (pages of 256 tokens), also with prompts that have ended."""
    made = requests(tiny(), "600/2", ignore_eos=True)
    peer = HfContinuous(Setting(1, "float32", "cpu", 1, as_it_comes), HfContinuous.Options())
    peer.start(made)
    try:
        peer.run(made, RealClock())
        kept = [allocator.ledger.cached_blocks for allocator in peer.manager.batch_processor.cache.cache_allocators.values()]
        assert any(kept), "or there is nothing to forget"
        peer.forget_prompts()
        assert not any(kept)
        (answer,) = peer.run(made, RealClock())
    finally:
        peer.stop()
    assert tuple(answer.output_ids) == made[0].output_ids


@pytest.mark.parametrize(
    ("asked", "ids", "kept"),
    [
        ({"max_new_tokens": 3}, [5, 6, 7, 8], [5, 6, 7]),
        ({"max_new_tokens": 9}, [5, 2, 7, 8], [5, 2]),
        ({"max_new_tokens": 9, "ignore_eos": True}, [5, 2, 7, 8], [5, 2, 7, 8]),
        ({"max_new_tokens": 1}, [5, 2], [5]),
    ],
)
def test_tokens_belong_to_a_request_until_its_length_or_its_end(asked: dict[str, Any], ids: list[int], kept: list[int]) -> None:
    assert until_end(ids, Request("a", (1,), **asked), frozenset({2})) == kept


def test_an_answer_that_failed_is_a_failed_request() -> None:
    line = describe_answer(Answer(0, failed="too long"), Request("a", (1, 2), 4))
    assert (line["state"], line["reason"], line["output_ids"]) == ("failed", "too long", [])


def test_peers_are_listed_and_a_wrong_name_gets_the_nearest(recorded: Path, tmp_path: Path) -> None:
    out = command("list", "peers").out
    assert all(name in out for name in plugins.names("peer")) and out.count("Cost:") == len(plugins.names("peer"))
    assert "did you mean hf_generate?" in command("run", recorded, "--peer", "hf-generat", "--out", tmp_path).mistake
    assert not [*tmp_path.iterdir()]


def test_a_peer_that_is_not_here_says_how_to_get_it_and_nothing_is_run(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HfGenerate, "cannot_run", classmethod(lambda cls, *_: "pip install it"))
    assert command("run", recorded, "--peer", "hf-generate", "--out", tmp_path).mistake == "--peer hf-generate: pip install it"
    assert "--peer needs a model" in command("run", recorded, "--peer", "hf-generate", "--model", "none", "--out", tmp_path).mistake
    assert not [*tmp_path.iterdir()]
