"""The command line called in this process, and small things to call it on. Shared by the tests of commands."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cbbench.cli import main
from cbbench.errors import UserError
from tests.support.engines import LLAMA_LIKE

SUBPROCESS = [sys.executable, "-c", "from cbbench.cli import main; main()"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Ended:
    """What a command left: its exit code, its data and what it said beside."""

    code: int
    out: str
    err: str

    @property
    def mistake(self) -> str:
        """The one line of a command that was refused: exit code 2, no data, no traceback. Progress may stand before it."""
        *before, last = self.err.splitlines()
        assert (self.code, self.out) == (2, ""), self
        assert last.startswith("cbbench: ") and all(line.startswith("loading ") for line in before), self.err
        return last.removeprefix("cbbench: ")

    @property
    def data(self) -> Any:
        """What --format json printed; NaN and Infinity are no JSON."""
        return json.loads(self.out, parse_constant=lambda word: (_ for _ in ()).throw(ValueError(word)))

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Of --format json: `run` prints the list, `compare` puts it behind its verdicts."""
        found: list[dict[str, Any]] = self.data["runs"] if isinstance(self.data, dict) else self.data
        return found

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Of --format json: the metrics of each arm's first round in the first run."""
        return {cell["arm"]: cell["metrics"] for cell in self.runs[0]["cells"] if cell["round"] == 1}


def command(*words: str | Path) -> Ended:
    """`cbbench WORDS`, and how it ended. With one thread, like all tests: the first compiled kernel may have changed that."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def few_objects() -> Iterator[None]:
    """Each measured cell collects garbage; what is alive by now (torch, pytest) need not be walked each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def write_config(folder: Path, name: str = "tiny", **config: Any) -> str:
    """A model configuration on disk, as `--model` takes it."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config or dict(LLAMA_LIKE, model_type="llama")))
    return f"random:{path}"


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_folder(out: Path) -> Path:
    """The one run saved below."""
    (found,) = out.glob("*/run.json")
    return found.parent


SOURCE = [
    {"id": "short", "prompt_ids": [11, 12, 13], "max_new_tokens": 7, "ignore_eos": True},
    {"id": "long", "prompt_ids": list(range(20, 45)), "max_new_tokens": 5, "ignore_eos": True},
    {"id": "one", "prompt_ids": [99], "max_new_tokens": 1},
    {"id": "last", "prompt_ids": [7, 8, 9, 10, 11], "max_new_tokens": 12, "ignore_eos": True},
]


@contextlib.contextmanager
def recorded_workload(folder: Path) -> Iterator[Path]:
    """SOURCE with the reference tokens of a tiny random model."""
    with pytest.MonkeyPatch.context() as patch, few_objects():
        patch.setenv("CBBENCH_CACHE", str(folder / "cache"))
        source = write_lines(folder / "source.jsonl", SOURCE)
        ended = command("workload", "record", source, "-o", folder / "w.yaml", "--model", write_config(folder))
        assert (ended.code, ended.out) == (0, f"{folder / 'w.yaml'}\n"), ended.err
        yield folder / "w.yaml"


def run(workload: Path, tmp_path: Path, *words: str) -> Ended:
    """One round, saved below `tmp_path`."""
    return command("run", workload, "--rounds", "1", "--warmup", "0", "--out", tmp_path / "results", *words)


def run_json(workload: Path, tmp_path: Path, *words: str) -> Ended:
    return run(workload, tmp_path, "--format", "json", *words)


GOOD = {"id": "a", "prompt_ids": [1, 2, 3], "max_new_tokens": 4}
Write = Callable[..., Path]


def write_workload(folder: Path, text: str = "requests: w.jsonl\n", lines: str | list[Any] | None = None) -> Path:
    """The .yaml with that text; beside it the .jsonl with those lines, as text or as rows, or with GOOD alone."""
    rows = lines if isinstance(lines, str) else "".join(json.dumps(row) + "\n" for row in lines or [GOOD])
    (folder / "w.jsonl").write_bytes(rows.encode())
    (folder / "w.yaml").write_bytes(text.encode())
    return folder / "w.yaml"


def refusal(act: Callable[[], Any]) -> str:
    """The message, checked to be one line in the words of the file: no class or type of the program."""
    with pytest.raises(UserError) as caught:
        act()
    message = str(caught.value)
    assert [leak for leak in ("\n", "pydantic", "instance of", "literal[", ".str:") if leak in message] == [], message
    return message
