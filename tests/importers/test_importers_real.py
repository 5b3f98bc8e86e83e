"""The public traces themselves: what the importers read is what is known of the files. Excerpts are no part of this repository."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cbbench import plugins
from cbbench.importers.base import Head, Malformed, TraceRow
from tests.support.places import ROOT

TRACES = ROOT.parent / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no excerpts of public traces at {TRACES}")


def read(name: str, *paths: str | Path) -> list[TraceRow]:
    """All requests of files. Not one may be malformed."""
    rows: list[Any] = []
    for path in paths:
        found: Any = plugins.find("importer", name)
        with (TRACES / path).open("rb") as file:
            rows += found().read(file)
    assert [row for row in rows if isinstance(row, Malformed)] == []
    return rows


def prompts(rows: Iterable[TraceRow]) -> list[int]:
    return [row.prompt_tokens or 0 for row in rows]


def outputs(rows: Iterable[TraceRow]) -> list[int]:
    return [row.output_tokens or 0 for row in rows]


def times_us(rows: Iterable[TraceRow]) -> list[int]:
    return [row.time_us for row in rows if row.time_us is not None]


def summary(counts: list[int]) -> list[float]:
    """mean, p50, p90, p99, max as the notes beside the traces give them."""
    return [round(float(np.mean(counts)), 1), *(float(np.percentile(counts, at)) for at in (50, 90, 99)), max(counts)]


def reusable(rows: list[TraceRow], block_tokens: int) -> float:
    """Share of prompt tokens in leading blocks that an endless cache would hold already."""
    seen: set[tuple[str, int]] = set()
    reused = 0
    for row in rows:
        ids = [(row.scope, block) for block in row.blocks or ()]
        leading = next((place for place, block in enumerate(ids) if block not in seen), len(ids))
        reused += min(leading * block_tokens, row.prompt_tokens or 0)
        seen.update(ids)
    return reused / sum(prompts(rows))


def assert_prefix_tree(rows: list[TraceRow]) -> None:
    """Every id has one predecessor, in every prompt that has it."""
    before: dict[tuple[str, int], int | None] = {}
    for row in rows:
        blocks = list(row.blocks or ())
        for previous, block in zip([None, *blocks], blocks, strict=False):
            assert before.setdefault((row.scope, block), previous) == previous, (row.line, block)


@pytest.mark.parametrize(
    ("file", "num_rows", "span_s", "longest", "prompt", "output"),
    [
        ("code", 8819, 3435.948, 7841, [2047.8, 1469, 5187.6, 7436, 7437], [27.9, 13, 55, 251.5, 1899]),
        ("conv", 19366, 3501.722, 14089, [1154.7, 1020, 2734.5, 4142, 14050], [211.1, 129, 424, 601, 1000]),
    ],
)
def test_azure_2023(file: str, num_rows: int, span_s: float, longest: int, prompt: list[float], output: list[float]) -> None:
    rows = read("azure", f"azure_llm_2023/AzureLLMInferenceTrace_{file}.csv")
    times = times_us(rows)
    assert len(rows) == len(times) == num_rows and times == sorted(set(times))
    assert (times[-1] - times[0]) / 1e6 == pytest.approx(span_s, abs=5e-4)
    assert max(a + b for a, b in zip(prompts(rows), outputs(rows), strict=True)) == longest
    assert summary(prompts(rows)) == pytest.approx(prompt, abs=0.1) and summary(outputs(rows)) == pytest.approx(output, abs=0.1)
    assert [row.line for row in rows] == list(range(2, num_rows + 2))


def test_azure_2024_and_its_multimodal_trace() -> None:
    code, conv = (read("azure", f"azure_llm_2024/AzureLLMInferenceTrace_{file}_1week.head5.csv") for file in ("code", "conv"))
    assert (prompts(code)[:3], outputs(code)[:3], len(code)) == ([2162, 2399, 76], [5, 6, 15], 5)
    assert (times_us(code)[0], times_us(conv)[0]) == (1_715_299_200_009_930, 1_715_472_000_001_163)
    images = read("azure", "azure_lmm_2024/AzureLMMInferenceTrace_multimodal.head5.csv")
    assert [row.drop for row in images[:3]] == [None, "has images", "has images"] and len(images) == 5
    assert times_us(images)[1] - times_us(images)[0] == 5_550_000


@pytest.mark.parametrize(
    ("file", "num_rows", "span_s", "prompt", "output", "shared"),
    [
        ("conversation_trace.first4000", 4000, 1301.999, [13312.3, 7874, 28981, 94411, 123192], [347.1, 358, 605, 1157, 2000], 0.331),
        ("synthetic_trace", 3993, 1022.025, [15325.5, 11587, 38611, 66456, 191378], [149.1, 69, 389, 768, 893], 0.651),
    ],
)
def test_mooncake(file: str, num_rows: int, span_s: float, prompt: list[float], output: list[float], shared: float) -> None:
    rows = read("mooncake", f"mooncake_fast25/{file}.jsonl")
    assert len(rows) == num_rows and (times_us(rows)[-1] - times_us(rows)[0]) / 1e6 == span_s
    assert summary(prompts(rows)) == pytest.approx(prompt, abs=1) and summary(outputs(rows)) == pytest.approx(output, abs=1)
    assert reusable(rows, 512) == pytest.approx(shared, abs=5e-4)
    assert_prefix_tree(rows)


def test_mooncake_cut_out_of_the_middle() -> None:
    rows = read("mooncake", "mooncake_arxiv/mooncake_trace.middle24.jsonl")
    assert len(rows) == 24 and len(set(times_us(rows))) == 3 and summary(prompts(rows))[0] == 4698.8
    assert reusable(rows, 512) == pytest.approx(0.468, abs=5e-4)


def test_weka() -> None:
    rows = read("weka", *sorted((TRACES / "weka_agentic").glob("*.json")))
    assert len(rows) == 60 and len({row.session for row in rows}) == 9 == len({row.scope for row in rows})
    assert summary(prompts(rows)) == pytest.approx([44261, 19157, 90295, 100751, 101059], abs=1)
    assert summary(outputs(rows)) == pytest.approx([553.8, 217.5, 2194.7, 2958, 3035], abs=0.5)
    assert reusable(rows, 64) == pytest.approx(0.864, abs=5e-4)
    assert_prefix_tree(rows)


def test_weka_sub_agents_hang_on_the_request_before_them() -> None:
    rows = {row.key: row for row in read("weka", "weka_agentic/trace_0291.json")}
    assert [row.line for row in rows.values()] == list(range(1, len(rows) + 1)) and len(rows) == 32
    assert all(row.parent in rows for row in rows.values() if row.key != "trace_0291#1")
    assert {rows[f"trace_0291#{key}"].parent for key in ("17.1", "18.1", "19")} == {"trace_0291#16"}
    assert rows["trace_0291#17.2"].time_us == 1_153_013_000 and rows["trace_0291#19"].think_s == 108


@pytest.mark.parametrize("file", ["code", "conv"])
def test_vidur_has_the_rows_of_azure_2023(file: str) -> None:
    rows = read("vidur", f"vidur_processed/splitwise_{file}.first500.csv")
    azure = read("azure", f"azure_llm_2023/AzureLLMInferenceTrace_{file}.csv")[:500]
    assert (prompts(rows), outputs(rows)) == (prompts(azure), outputs(azure)) and len(rows) == 500
    start_us = times_us(azure)[0]
    assert max(abs(a - (b - start_us)) for a, b in zip(times_us(rows), times_us(azure), strict=True)) <= 1


def test_vidur_without_arrivals() -> None:
    rows = read("vidur", "vidur_processed/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.first10000.csv")
    assert len(rows) == 10_000 and times_us(rows) == []
    assert summary(prompts(rows)) == pytest.approx([2573.4, 2711, 3702, 3931, 4046], abs=1)
    assert summary(outputs(rows)) == pytest.approx([300.2, 166, 377, 3332, 4056], abs=1)


def test_splitwise_and_burstgpt() -> None:
    rows = read("splitwise", "splitwise_sim/test_trace.csv")
    assert (prompts(rows), outputs(rows), times_us(rows)) == ([4096, 2048, 2048], [32, 8, 16], [1_000_000, 3_000_000, 4_000_000])
    rows = read("burstgpt", "burstgpt/BurstGPT_1.head3.csv")
    assert (prompts(rows), outputs(rows), times_us(rows)) == ([472, 1087, 417], [18, 230, 276], [5_000_000, 45_000_000, 118_000_000])
    assert read("burstgpt", "burstgpt/BurstGPT_3.header_only.csv") == []


OWNERS = dict.fromkeys(["azure_llm_2023", "azure_llm_2024", "azure_lmm_2024"], "azure")
OWNERS |= dict.fromkeys(["mooncake_fast25", "mooncake_arxiv"], "mooncake")
OWNERS |= {"burstgpt": "burstgpt", "vidur_processed": "vidur", "splitwise_sim": "splitwise", "weka_agentic": "weka"}


@pytest.mark.parametrize("folder", OWNERS)
def test_every_file_is_claimed_by_its_format_alone(folder: str) -> None:
    paths = [path for path in (TRACES / folder).iterdir() if path.suffix in (".csv", ".json", ".jsonl")]
    for path in paths:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        head = Head(frozenset(first.split(","))) if path.suffix == ".csv" else Head(record=json.loads(first))
        found: dict[str, Any] = {name: plugins.find("importer", name) for name in plugins.names("importer")}
        assert [name for name, kind in found.items() if kind.claims(head)] == [OWNERS[folder]], path.name
    assert paths


def test_a_file_without_its_last_newline_loses_no_row() -> None:
    data = (TRACES / "azure_llm_2023" / "tiny_AzureLLMInferenceTrace_conv.csv").read_bytes().rstrip()
    azure: Any = plugins.find("importer", "azure")
    assert len(list(azure().read(io.BytesIO(data)))) == 100
