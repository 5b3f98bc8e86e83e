"""GuideLLM's own dataset files, CSV or JSON, one or several turns a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from cbbench.importers._chat import MEDIA, length, said, valid
from cbbench.importers._guidellm import columns, marked, records
from cbbench.importers.base import Head, Importer, Read, TraceRow, malformed, microseconds


class Guidellm(Importer):
    """Aliases of prompt, prompt_tokens_count, output_tokens_count, system_prompt and relative_timestamp (s); _N is turn N.

    Cost: as in GuideLLM's chat requests a system prompt becomes a system message (its completions put it in front of the
    prompt with a blank) and prompt_tokens_count leaves it out, so such a row has no length but its text's; of several
    aliases of one thing the file's first column counts, and one without a number belongs to turn 0. Tools are ignored.
    Use when: a dataset was written for `guidellm benchmark`; its trace files (hash_ids) are other formats.
    """

    suffixes = (".csv", ".jsonl", ".json")
    has_continuations = True
    source = "the user's own file in the format of vllm-project/guidellm"

    @classmethod
    def claims(cls, head: Head) -> bool:
        names = tuple(sorted(head.columns or head.keys))
        try:
            texts = columns(names).get("text", {}).values() if marked(names) else ()
        except ValueError:
            return False
        return bool(texts) and not (head.record and any(not isinstance(head.record[name], str | None) for name in texts))

    def read(self, file: BinaryIO) -> Read:
        for number, found in records(file):
            try:
                if isinstance(found, ValueError):
                    raise found
                yield from self.rows(number, found)
            except (ValueError, RecursionError) as error:
                yield malformed(number, error)

    def rows(self, line: int, data: dict[str, Any]) -> Iterator[TraceRow]:
        named = columns(tuple(data))
        if data.get("conversation_turns"):
            raise ValueError("conversation_turns, a graph of turns, cannot be read")
        texts = named.get("text", {})
        turns = [turn for turn, name in texts.items() if data[name] not in (None, "")]
        if not turns:
            raise ValueError(f"has no text in {' or '.join(texts.values()) or 'any column'}")
        if gap := [name for turn, name in texts.items() if turn < turns[-1] and turn not in turns]:
            raise ValueError(f"{gap[0]} is empty, a later turn is not")
        made = []
        for turn in sorted({turn for names in named.values() for turn in names}):
            given = {kind: (names[turn], data[names[turn]]) for kind, names in named.items() if turn in names}
            given = {kind: found for kind, found in given.items() if found[1] not in (None, "")}
            if turn in turns:
                made.append(_turn(line, given))
            elif given:
                raise ValueError(f"{next(iter(given.values()))[0]} is of turn {turn}, which has no text")
        chatty = any(row.messages for row, _ in made)
        for number, (row, _) in enumerate(made):
            if len(made) > 1:
                row.session, row.key = f"line {line}", f"{line}/{number}"
            if number:
                row.parent, row.continues, row.think_s = f"{line}/{number - 1}", True, made[number - 1][1]
            if chatty and row.messages is None:
                row.messages, row.prompt = [{"role": "user", "content": row.prompt}], None
        yield from (row for row, _ in made)


def _turn(line: int, given: dict[str, tuple[str, Any]]) -> tuple[TraceRow, float]:
    """A turn out of its kinds' (name, value), and the seconds that GuideLLM waits behind it."""
    prompt = said(*given["text"])
    row = TraceRow(line, length(*given.get("prompt_tokens", ("", None))), length(*given.get("output_tokens", ("", None))), prompt=prompt)
    if "prefix" in given:
        row.messages = [{"role": "system", "content": valid(*given["prefix"])}, {"role": "user", "content": prompt}]
        row.prompt = row.prompt_tokens = None
    row.drop = next((why for kind, why in MEDIA.items() if kind in given), None)
    if "time" in given:
        row.time_us = _seconds_us(*given["time"])
    return row, _seconds_us(*given["delay"]) / 1e6 if "delay" in given else 0.0


def _seconds_us(name: str, value: Any) -> int:
    if (time_us := microseconds(name, value, 1e6)) < 0:
        raise ValueError(f"{name} should not be negative, is {str(value)[:40]!r}")
    return time_us
