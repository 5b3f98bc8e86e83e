"""The request traces of Vidur's simulator (MLSys 2024)."""

from __future__ import annotations

from cbbench.importers.base import CsvImporter, TraceRow, microseconds, whole


class Vidur(CsvImporter):
    """num_prefill_tokens, num_decode_tokens, perhaps arrived_at (s): lengths, with arrivals where the file has them.

    Cost: `arxiv_summarization` has no arrivals and was cut to 4,096 tokens in all; `splitwise_*` are Azure's of 2023 again.
    Use when: lengths of a dataset are to be paired with arrivals of one's own (data/processed_traces/*.csv).
    """

    columns = ("num_prefill_tokens", "num_decode_tokens")
    optional = ("arrived_at",)
    source = "microsoft/vidur, MIT (splitwise_*: Azure, CC-BY 4.0); cite Vidur (MLSys 2024)"

    def row(self, line: int, values: list[str | None]) -> TraceRow:
        prompt, output, stamp = values
        time_us = None if stamp is None else microseconds("arrived_at", stamp, 1_000_000)
        return TraceRow(line, whole("num_prefill_tokens", prompt), whole("num_decode_tokens", output), time_us)
