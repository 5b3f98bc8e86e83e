"""One engine behind a pipe: lines of JSON in on stdin, lines of JSON out on what was stdout.

Whatever the engine and its libraries print goes to stderr. Times count from the moment a run's requests were read.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Engine(Protocol):
    """An engine with requests going in and tokens coming out, a step at a time."""

    def add(self, index: int, request: dict[str, Any]) -> None: ...

    def step(self) -> Iterator[tuple[int, list[int], bool]]:
        """Per request that moved: its index, the new tokens, whether it has ended."""
        ...

    def forget_prompts(self) -> None:
        """Empties its prefix cache, where it has one."""
        ...


def serve(make: Callable[[dict[str, Any]], tuple[Engine, str]]) -> None:
    """`make` gets the setting and returns the engine and its version. Ends with stdin."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # from here on a print is no reply
    engine: Engine | None = None
    max_num_seqs = 0
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if engine is None:
                engine, version = make(asked)
                max_num_seqs = asked["max_num_seqs"]
                reply: dict[str, Any] = {"version": version}
            elif asked.get("forget"):
                engine.forget_prompts()
                reply = {}
            else:
                reply = {"answers": run(engine, asked["requests"], max_num_seqs)}
        except Exception as error:
            traceback.print_exc()
            reply = {"failed": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def run(engine: Engine, requests: list[dict[str, Any]], max_num_seqs: int) -> list[dict[str, Any]]:
    """Each request is handed over when it is due and a place is free, between two steps: not every engine keeps the limit
    itself (OpenVINO's does not while it splits prompts)."""
    started = time.perf_counter()
    due = sorted(range(len(requests)), key=lambda index: requests[index]["arrival_s"])
    answers: list[dict[str, Any]] = [
        {"index": index, "output_ids": [], "token_times_s": [], "ended_s": None} for index in range(len(requests))
    ]
    running: set[int] = set()
    while due or running:
        now_s = time.perf_counter() - started
        while due and len(running) < max_num_seqs and requests[due[0]]["arrival_s"] <= now_s:
            engine.add(due[0], requests[due[0]])
            running.add(due.pop(0))
        if not running:
            time.sleep(max(requests[due[0]]["arrival_s"] - now_s, 0))
            continue
        for index, tokens, has_ended in list(engine.step()):
            now_s = time.perf_counter() - started
            answers[index]["output_ids"] += tokens
            answers[index]["token_times_s"] += [now_s] * len(tokens)
            if has_ended:
                answers[index]["ended_s"] = now_s
                running.discard(index)
    return answers
