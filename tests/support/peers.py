"""A script in the place of a peer's engine, in an interpreter of its own. Shared by the tests of such peers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from cbbench.peers import _child
from cbbench.peers._child import ChildOptions, ChildPeer
from cbbench.peers.base import Answer, Setting
from cbbench.request import Request
from tests.support.commands import Ended, read_lines, run_folder, run_json
from tests.support.engines import as_it_comes, tiny

ARM, FAKE, LABEL = "continuous+varlen+paged", "tests.support.peers:FakeEngine", "tests.support.peers.FakeEngine"

# Knows the tokens of each prompt and says one a step; notes what it is told. Each `# at ...` is a place for a test's own lines.
SCRIPT = f"""
import json, os, signal, subprocess, sys, threading, time
sys.path.insert(0, {str(_child.CHILDREN)!r})
# at import
from serve import serve

known = json.loads(open(os.environ["FAKE_KNOWN"]).read())

def note(**said):
    with open(os.environ["FAKE_NOTES"], "a") as notes:
        notes.write(json.dumps(said) + "\\n")

class Engine:
    def __init__(self, setting):
        self.left = {{}}
        note(pid=os.getpid(), setting=setting)
        # at make

    def add(self, index, request):
        note(added=index, at_s=time.perf_counter(), request=request)
        prompt = request["prompt_ids"]
        answer = known.get(str(prompt)) or known[str(prompt[::-1])]  # a warm-up asks backwards
        self.left[index] = answer[: request["max_new_tokens"]]

    def step(self):
        # at step
        for index in list(self.left):
            token, *rest = self.left.pop(index)
            if rest:
                self.left[index] = rest
            yield index, [token], not rest

    def forget_prompts(self):
        note(forgot=True)

serve(lambda setting: (Engine(setting), "1.2.3"))
"""


class FakeEngine(ChildPeer):
    """A script in the place of an engine."""

    module, child, how_to_get = "json", "", "make it"


@dataclass(frozen=True)
class Written:
    """The script in its place."""

    folder: Path

    def __call__(self, known: list[Any], **lines: str) -> None:
        """`known`: rows with prompt and output ids; `lines`: at `make`, at `step`, at `import`."""
        text = SCRIPT
        for place, line in lines.items():
            text = text.replace(f"# at {place.rstrip('_')}", line)
        (self.folder / "engine.py").write_text(text)
        rows = [row if isinstance(row, dict) else {"prompt_ids": row.prompt_ids, "output_ids": row.output_ids} for row in known]
        (self.folder / "known.json").write_text(json.dumps({str(list(row["prompt_ids"])): list(row["output_ids"]) for row in rows}))

    def notes(self, key: str = "") -> list[dict[str, Any]]:
        return [note for note in read_lines(self.folder / "notes.jsonl") if not key or key in note]

    def all_gone(self) -> bool:
        return not any(psutil.pid_exists(note["pid"]) for note in self.notes("pid"))


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    monkeypatch.setenv("CBBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_KNOWN", str(tmp_path / "known.json"))
    monkeypatch.setenv("FAKE_NOTES", str(tmp_path / "notes.jsonl"))
    monkeypatch.setattr(FakeEngine, "child", str(tmp_path / "engine.py"))
    return Written(tmp_path)


@contextmanager
def started(made: list[Request], **changed: Any) -> Iterator[FakeEngine]:
    setting = Setting(4, "float32", "cpu", 1, as_it_comes, tiny().digest, tiny().eos_ids, tiny().spec.bytes_per_token)
    peer = FakeEngine(replace(setting, **changed), ChildOptions())
    try:
        peer.start(made)
        yield peer
    finally:
        peer.stop()


def in_order(answers: list[Answer]) -> list[tuple[int, ...]]:
    return [tuple(answer.output_ids) for answer in sorted(answers, key=lambda answer: answer.index)]


def run_fake(recorded: Path, tmp_path: Path, *words: str) -> Ended:
    return run_json(recorded, tmp_path, "--peer", FAKE, *words)


def rows_of(recorded: Path) -> list[dict[str, Any]]:
    return read_lines(recorded.with_suffix(".jsonl"))


def cell_of(tmp_path: Path) -> dict[str, Any]:
    cell: dict[str, Any] = json.loads((run_folder(tmp_path / "results") / LABEL / "1" / "cell.json").read_text())
    return cell
