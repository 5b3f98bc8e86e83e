"""`cbbench workload record SOURCE -o NAME.yaml --from-server URL`: what an OpenAI-compatible server answered.

Greedily, one request at a time. The answer is kept beside each request; its length becomes the request's forced output
length, so that a replay generates as many tokens. It is no reference for exactness: the server may run other weights in
another precision.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

from cbbench.clock import RealClock
from cbbench.errors import UserError
from cbbench.peers._completion import NotWholeError, refuse_end
from cbbench.peers._openai_client import Server
from cbbench.recording.sources import Source
from cbbench.workload.rows import RequestRow
from cbbench.workload.writer import as_line, update_yaml, write_rows

Track = Callable[[list[Any]], Iterable[Any]]
PromptIds = Callable[[int], list[int]]  # index of a row -> its token ids, for rows without text


def answer(server: Server, row: RequestRow, prompt_ids: Callable[[], list[int]]) -> dict[str, Any]:
    """Greedy completion: text, finish_reason, token counts, and the time it took."""
    asked = {"model": server.model, "max_tokens": row.max_new_tokens, "temperature": 0, "ignore_eos": row.ignore_eos or None}
    body: dict[str, Any] = {key: value for key, value in asked.items() if value is not None}
    if row.messages is not None:
        path, body["messages"] = "chat/completions", row.messages
    else:
        path, body["prompt"] = "completions", row.prompt if row.prompt is not None else prompt_ids()
    clock = RealClock()
    reply = server.ask(path, body)
    try:
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        counts = {key: usage.get(key) for key in ("prompt_tokens", "completion_tokens")}
        reason = choice.get("finish_reason")
        if not isinstance(text, str) or any(count is not None and (type(count) is not int or count < 0) for count in counts.values()):
            raise TypeError
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise UserError(f"{server.url}/{path}: the answer to request {row.id!r} is no completion: {json.dumps(reply)[:200]}") from error
    try:
        refuse_end(reason, counts["completion_tokens"] or None, row.max_new_tokens, bool(row.ignore_eos))
    except NotWholeError as error:
        raise UserError(f"{server.url}/{path}: the answer to request {row.id!r} is not whole: {error}") from error
    return {"text": text, "finish_reason": reason, **counts, "e2e_s": round(clock.now(), 6)}


def record_from_server(server: Server, source: Source, prompt_ids: PromptIds, target: Path, track: Track) -> None:
    """Writes TARGET (.yaml) and the .jsonl beside it. Interrupted, it goes on where it was: answers are kept one by one."""
    kept = target.with_name(f".{target.stem}.answers")
    answers = _kept_answers(kept)
    with kept.open("a", encoding="utf-8") as file:
        file.write("\n")  # behind what an interrupt may have left half-written
        for index, row in track(list(enumerate(source.rows.rows))):
            asked = f"{server.url} {server.model} {as_line(row)}"
            if asked not in answers:
                answers[asked] = answer(server, row, partial(prompt_ids, index))
                file.write(json.dumps([asked, answers[asked]]) + "\n")
                file.flush()
    rows = [_as_answered(row, answers[f"{server.url} {server.model} {as_line(row)}"]) for row in source.rows.rows]
    write_rows(target, rows)
    came_from = {"server": server.url, "model": server.model, "answers": len(rows)}
    blocks = {"requests": target.with_suffix(".jsonl").name, "chat_template": source.chat_template, "source": came_from}
    update_yaml(target, {"description": ""}, blocks, source.yaml_text)
    kept.unlink()


def _kept_answers(path: Path) -> dict[str, dict[str, Any]]:
    """Of an interrupted recording; a half-written last line is asked for again."""
    answers = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            asked, answer = json.loads(line)
        except ValueError:
            continue
        answers[asked] = answer
    return answers


def _as_answered(row: RequestRow, answer: dict[str, Any]) -> RequestRow:
    produced = answer["completion_tokens"]
    meta = {**(row.meta or {}), "server": {"requested_tokens": row.max_new_tokens, **answer}}
    answered = copy(row)  # `replace` would check again, and blocks are an array by now
    answered.meta = meta
    if produced:
        answered.max_new_tokens, answered.ignore_eos = produced, True
    return answered
