"""The public traces through the command: what is known of them comes out, and what they share is what is shared afterwards."""

from __future__ import annotations

from functools import cache
from itertools import combinations, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cbbench.workload.file import Workload, read_workload, resolve
from cbbench.workload.rows import Vocabulary
from tests.support.commands import command
from tests.support.places import ROOT

TRACES = ROOT.parent / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no excerpts of public traces at {TRACES}")
CONVERSATION = "mooncake_fast25/conversation_trace.first4000.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imported")


def imported(folder: Path, trace: str, *words: str) -> dict[str, Any]:
    """The account, as the workload keeps it."""
    ended = command("workload", "import", TRACES / trace, "-o", folder / "w.yaml", *words)
    assert (ended.code, ended.err) == (0, "")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    account: dict[str, Any] = yaml.load((folder / "w.yaml").read_text(), Loader=loader)["source"]
    assert account["rows_read"] == account["kept"] + sum(account["dropped"].values())
    return account


def read_back(folder: Path) -> Workload:
    return read_workload(folder / "w.yaml")


@pytest.mark.parametrize(
    ("file", "kept", "rate", "cv", "dispersion"), [("code", 8819, 2.567, 13.15, 13.2), ("conv", 19366, 5.530, 1.09, 1.39)]
)
def test_azure_2023(folder: Path, file: str, kept: int, rate: float, cv: float, dispersion: float) -> None:
    account = imported(folder, f"azure_llm_2023/AzureLLMInferenceTrace_{file}.csv")
    assert (account["format"], account["kept"], account["dropped"]) == ("azure", kept, {})
    for profile in (account["original"], account["replayed"]):
        assert profile["rate_per_s"] == pytest.approx(rate, abs=5e-4) and profile["gap_cv"] == pytest.approx(cv, abs=6e-3)
        assert profile["dispersion_1s"] == pytest.approx(dispersion, abs=0.06) and profile["prefix_hit_frac"] == 0


@pytest.mark.parametrize(("file", "share"), [("code", 0.62), ("conv", 0.85)])
def test_azure_2023_in_a_model_of_2048_positions(folder: Path, file: str, share: float) -> None:
    trace = f"azure_llm_2023/AzureLLMInferenceTrace_{file}.csv"
    dropped = imported(folder, trace, "--max-tokens", "2048")
    assert dropped["kept"] / dropped["rows_read"] == pytest.approx(share, abs=5e-3)
    clipped = imported(folder, trace, "--max-tokens", "2048", "--fit", "clip-prompt")
    assert clipped["kept"] == clipped["rows_read"] and clipped["lengths"]["clipped_frac"] == pytest.approx(1 - share, abs=5e-3)
    assert max(len(r.prompt_ids) + r.max_new_tokens for r in resolve(read_back(folder), None)) == 2048


def test_azures_pauses_capped_and_replayed_at_another_rate(folder: Path) -> None:
    account = imported(folder, "azure_llm_2023/AzureLLMInferenceTrace_code.csv", "--gap-cap", "10", "--rate", "20")
    assert account["original"]["span_s"] == pytest.approx(3435.948, abs=1e-3) and account["replayed"]["rate_per_s"] == pytest.approx(20)
    assert account["replayed"]["gap_cv"] < 6 and account["times"]["speedup"] > 1


def test_mooncake_conversation_as_stamped_and_with_ties_spread(folder: Path) -> None:
    account = imported(folder, CONVERSATION, "--spread-ticks")
    assert account["kept"] == 4000 and account["original"]["prefix_hit_frac"] == pytest.approx(0.331, abs=5e-4)
    assert account["original"]["gap_cv"] == pytest.approx(2.87, abs=0.005) and account["replayed"]["gap_cv"] == pytest.approx(1, abs=0.05)
    assert account["times"]["spread_over_s"] == pytest.approx(3, abs=0.01) and account["replayed"]["prefix_hit_frac"] == pytest.approx(
        0.331, abs=5e-4
    )
    assert account["replayed"]["rate_per_s"] == pytest.approx(account["original"]["rate_per_s"], rel=0.01)


def test_mooncake_conversation_in_a_model_of_2048_positions(folder: Path) -> None:
    account = imported(folder, CONVERSATION, "--max-tokens", "2048")
    assert account["kept"] / 4000 == pytest.approx(0.20, abs=0.03)


@pytest.mark.parametrize(("file", "hits"), [("conversation_trace.first4000", 0.331), ("synthetic_trace", 0.651)])
def test_smaller_blocks_keep_the_hit_rate(folder: Path, file: str, hits: float) -> None:
    account = imported(folder, f"mooncake_fast25/{file}.jsonl", "--block-tokens", "8")
    assert account["original"]["prefix_hit_frac"] == pytest.approx(hits, abs=5e-4)
    assert account["replayed"]["prefix_hit_frac"] == pytest.approx(hits, abs=0.015)
    assert account["replayed"]["prompt_tokens"]["max"] == -(-account["original"]["prompt_tokens"]["max"] // 64)


def test_scaling_fits_the_longest_request_and_keeps_the_hit_rate(folder: Path) -> None:
    account = imported(folder, CONVERSATION, "--fit", "scale", "--max-tokens", "2048")
    assert account["kept"] == 4000 and account["replayed"]["prefix_hit_frac"] == pytest.approx(0.331, abs=0.015)
    assert 1900 < max(len(r.prompt_ids) + r.max_new_tokens for r in resolve(read_back(folder), None)) <= 2048


def test_weka_sessions_share_within_and_not_across(folder: Path) -> None:
    account = imported(folder, "weka_agentic")
    assert account["kept"] == 60 and len(account["files"]) == 9
    assert account["original"]["prefix_hit_frac"] == pytest.approx(0.864, abs=5e-4)
    assert len({request.id for request in resolve(read_back(folder), None)}) == 60


@cache
def raw_blocks(path: Path) -> list[list[int]]:
    import json

    return [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()[:300]]


@pytest.mark.parametrize(
    "words", [(), ("--block-tokens", "16"), ("--max-tokens", "9000", "--fit", "clip-prompt")], ids=["", "scaled", "clipped"]
)
@pytest.mark.parametrize("file", ["conversation_trace.first4000", "synthetic_trace"])
def test_every_pair_of_rows_shares_exactly_the_tokens_of_its_common_leading_blocks(folder: Path, file: str, words: tuple[str, ...]) -> None:
    trace = f"mooncake_fast25/{file}.jsonl"
    imported(folder, trace, "--max-rows", "300", *words)
    workload = read_back(folder)
    requests = {request.id: request for request in resolve(workload, Vocabulary(ordinary_ids=np.arange(49_000)))}
    size = workload.file.prompts.block_tokens or 0
    rows = [(blocks, np.array(requests[str(line)].prompt_ids)) for line, blocks in enumerate(raw_blocks(TRACES / trace), 1)]
    assert len(rows) == len(requests) == 300
    for (one, ids), (two, other) in combinations(rows, 2):
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))
        length = min(len(ids), len(other))
        expected = min(shared * size, length)
        assert np.array_equal(ids[:expected], other[:expected]) and (expected == length or ids[expected] != other[expected])


def test_a_window_of_a_trace_has_the_prompts_of_the_whole(folder: Path) -> None:
    imported(folder, CONVERSATION, "--max-rows", "2000")
    whole = {request.id: request.prompt_ids for request in resolve(read_back(folder), None)}
    imported(folder, CONVERSATION, "--skip-rows", "1500", "--max-rows", "400")
    window = resolve(read_back(folder), None)
    assert [request.id for request in window] == [str(line) for line in range(1501, 1901)]
    assert all(request.prompt_ids.recipe == whole[request.id].recipe for request in window)
