"""vLLM's custom dataset: `vllm bench serve --dataset-name custom` and `custom_image`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cbbench.importers._chat import length, said, spoken
from cbbench.importers._guidellm import marked
from cbbench.importers.base import Head, JsonImporter, TraceRow

OTHERS = {"messages", "model", "usage", "max_tokens", "max_completion_tokens", "completion_tokens", "system_prompt", "system", "prefix",
          "conversations", "conversation", "turns", "text", "texts", "text_input", "payload", "input_length", "input_tokens"}  # fmt: skip


class VllmCustom(JsonImporter):
    """prompt, output_tokens (absent, null or -1 where it is not known); no times. Image files and content parts are dropped.

    Cost: there are no arrivals, so these must be made. vLLM shuffles the file, replaces output_tokens by its own 256
    unless told not to, and puts the prompt into the chat template; here the text and the order are the file's.
    Use when: a prompt file for `vllm bench` (JSONL) is at hand.
    """

    keys = ()
    source = "the user's own file in the format of vllm-project/vllm"

    @classmethod
    def claims(cls, head: Head) -> bool:
        record = head.record or {}
        if head.keys & OTHERS or marked(head.keys) or any(isinstance(record.get(name), dict) for name in ("request", "body", "response")):
            return False
        content = record.get("content")
        parts = isinstance(content, list) and bool(content) and all(isinstance(part, dict) and "type" in part for part in content)
        return isinstance(record.get("prompt"), str) or ("prompt" not in record and parts)

    def rows(self, line: int, data: dict[str, Any]) -> Iterator[TraceRow]:
        row = TraceRow(line, output_tokens=length("output_tokens", data.get("output_tokens")))
        prompt, content = data.get("prompt"), data.get("content")
        if isinstance(content, list) or prompt is None:
            row.prompt, row.drop = spoken("content", content)
        if prompt is not None:
            row.prompt = said("prompt", prompt)
        if data.get("image_files") or data.get("audio_files"):
            row.drop = "has images" if data.get("image_files") else "has audio"
        if not row.prompt and not row.drop:
            raise ValueError("has no prompt")
        yield row
