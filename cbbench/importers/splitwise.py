"""The request traces of splitwise-sim (ISCA 2024)."""

from __future__ import annotations

from cbbench.importers.base import CsvImporter, TraceRow, microseconds, whole


class Splitwise(CsvImporter):
    """arrival_timestamp (s), prompt_size, token_size: lengths and arrivals, no prefixes, no sessions.

    Cost: its generator draws lengths of Azure's 2023 traces at a rate of choice, so the order of lengths is made up.
    Use when: a trace was made with splitwise-sim (traces/*.csv); request_type, batch_size and application_id are ignored.
    """

    columns = ("arrival_timestamp", "prompt_size", "token_size")
    source = "Mutinifni/splitwise-sim, MIT (lengths: Azure, CC-BY 4.0); cite Splitwise (ISCA 2024)"

    def row(self, line: int, values: list[str | None]) -> TraceRow:
        stamp, prompt, output = values
        time_us = microseconds("arrival_timestamp", stamp, 1_000_000)
        return TraceRow(line, whole("prompt_size", prompt), whole("token_size", output), time_us)
