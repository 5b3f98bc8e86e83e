"""Azure's LLM inference traces of 2023, 2024 and the multimodal one."""

from __future__ import annotations

from cbbench.importers.base import CsvImporter, TraceRow, stamp_us, whole


class Azure(CsvImporter):
    """TIMESTAMP (text), ContextTokens, GeneratedTokens; lengths and arrivals of one service, no prefixes, no sessions.

    Cost: `code` is on/off traffic (gaps up to 217 s), so a short window or a scaled rate is another workload; say which.
    The 2024 files cover different weeks and must not be merged. Rows with images are dropped.
    Use when: lengths and arrivals of a production service are wanted (AzureLLMInferenceTrace_*.csv, 2023 and 2024).
    """

    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    optional = ("NumImages",)
    source = "Azure/AzurePublicDataset, CC-BY 4.0; cite Splitwise (ISCA 2024), DynamoLLM (HPCA 2025) or ModServe (SoCC 2025)"

    def row(self, line: int, values: list[str | None]) -> TraceRow:
        stamp, prompt, output, images = values
        row = TraceRow(line, whole("ContextTokens", prompt), whole("GeneratedTokens", output), stamp_us("TIMESTAMP", stamp))
        if images is not None and whole("NumImages", images):
            row.drop = "has images"
        return row
