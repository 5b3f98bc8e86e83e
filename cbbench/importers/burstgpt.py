"""BurstGPT: ChatGPT and GPT-4 traffic of a campus (KDD 2025)."""

from __future__ import annotations

from cbbench.importers.base import CsvImporter, TraceRow, microseconds, whole


class BurstGPT(CsvImporter):
    """Timestamp (s), Request tokens, Response tokens, perhaps Session ID: lengths and arrivals over months, no prefixes.

    Cost: 0.3 to 0.7 requests/s on average and whole seconds, so time has to be compressed and ties are common. The clock
    begins at midnight of day 1 and file 2 goes on with it. Both models and both log types are read. A response of zero
    tokens is a failure and dropped; Elapsed time is what another system took and is ignored.
    Use when: bursts of a real service over days are wanted (BurstGPT_*.csv of 6 and of 8 columns, with or without fails).
    """

    columns = ("Timestamp", "Request tokens", "Response tokens")
    optional = ("Session ID",)
    source = "HPMLL/BurstGPT, CC-BY 4.0; cite BurstGPT (KDD 2025)"

    def row(self, line: int, values: list[str | None]) -> TraceRow:
        stamp, prompt, response, session = values
        time_us = microseconds("Timestamp", stamp, 1_000_000)
        row = TraceRow(line, whole("Request tokens", prompt), whole("Response tokens", response), time_us, session=session or None)
        if not row.output_tokens:
            row.drop = "failed: no response"
        return row
