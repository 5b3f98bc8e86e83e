"""WEKA's traces of coding agents (kv-cache-tester): one JSON document a session, or one a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from cbbench.importers.base import Head, Importer, Malformed, Read, TraceRow, block_ids, json_objects, microseconds, text, whole

KEYS = ("id", "block_size", "hash_id_scope", "requests")


@dataclass(slots=True)
class Agent:
    """A list of requests that wait for each other: the session's, or a sub-agent's."""

    key: str  # before the number of the request
    start_us: int
    entries: Iterator[tuple[int, Any]]
    last: str | None  # the request that the next one follows


class Weka(Importer):
    """id, requests of t (s of the session), in, out, hash_ids of whole 64-token blocks: agents, their sub-agents, their prefixes.

    Cost: every session begins at 0, for nothing is known of when sessions came; prompts of 100,000 tokens are common. A
    sub-agent follows the request before it, and the session does not wait for it.
    Use when: long contexts that grow turn by turn matter (traces/trace_*.json). Each request is whole, with its history.
    """

    suffixes = (".json", ".jsonl")
    block_tokens = 64
    source = "callanjfox/kv-cache-tester, Apache-2.0"

    @classmethod
    def claims(cls, head: Head) -> bool:
        return head.keys.issuperset(KEYS)

    def read(self, file: BinaryIO) -> Read:
        """Lines are numbers of requests within the session; what is wrong with a whole document names the document's."""
        seen: set[str] = set()
        for line, document in json_objects(file):
            try:
                session, scope, entries = opened(document)
                if session in seen:
                    raise ValueError(f"id {session[:40]!r} was given before")
            except ValueError as error:
                yield Malformed(line, str(error))
                continue
            seen.add(session)
            yield from requests(session, scope, Agent(f"{session}#", 0, enumerate(entries, 1), None))


def opened(document: dict[str, Any] | ValueError) -> tuple[str, str, list[Any]]:
    """A document's session, the scope of its block ids and its requests."""
    if isinstance(document, ValueError):
        raise document
    if lacking := [key for key in KEYS if key not in document]:
        raise ValueError(f"lacks {', '.join(lacking)}")
    session, scope = text("id", document["id"]), document["hash_id_scope"]
    if not session:
        raise ValueError("id should name the session, is empty")
    if document["block_size"] != 64:
        raise ValueError(f"block_size should be 64, is {str(document['block_size'])[:40]!r}")
    if scope not in ("local", "global"):
        raise ValueError(f"hash_id_scope should be local or global, is {str(scope)[:40]!r}")
    return session, session if scope == "local" else "", listed(document)


def listed(entry: dict[str, Any]) -> list[Any]:
    requests = entry.get("requests")
    if not isinstance(requests, list):
        raise ValueError(f"requests should be a list, is {str(requests)[:40]!r}")
    return requests


def requests(session: str, scope: str, main: Agent) -> Read:
    """In the order of the document, a sub-agent's at its place."""
    number, agents = 1, [main]
    while agents:
        agent = agents[-1]
        index, entry = next(agent.entries, (0, None))
        if not index:
            agents.pop()
            continue
        key = f"{agent.key}{index}"
        try:
            if not isinstance(entry, dict):
                raise ValueError(f"should be a JSON object, is {str(entry)[:40]!r}")
            start_us = microseconds("t", agent.start_us + microseconds("t", entry.get("t"), 1_000_000), 1)
            if entry.get("type") == "subagent":
                agents.append(Agent(f"{key}.", start_us, enumerate(listed(entry), 1), agent.last))
                continue
            row = request(number, entry, start_us)
            row.session, row.scope, row.key, row.parent = session, scope, key, agent.last
            yield row
            agent.last = key
        except ValueError as error:
            yield Malformed(number, f"{key}: {error}")
        number += 1


def request(number: int, entry: dict[str, Any], time_us: int) -> TraceRow:
    prompt_tokens, blocks = whole("in", entry.get("in")), block_ids("hash_ids", entry.get("hash_ids"))
    if len(blocks) != prompt_tokens // 64:
        raise ValueError(f"hash_ids has {len(blocks)} blocks, {prompt_tokens} tokens hold {prompt_tokens // 64} whole ones of 64")
    row = TraceRow(number, prompt_tokens, whole("out", entry.get("out")), time_us, blocks=blocks, has_tail=prompt_tokens % 64 != 0)
    row.think_s = microseconds("think_time", entry.get("think_time", 0), 1_000_000) / 1_000_000
    if row.think_s < 0:
        raise ValueError(f"think_time should not be negative, is {row.think_s}")
    return row
