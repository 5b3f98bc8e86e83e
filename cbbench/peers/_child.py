"""A peer that lives in an environment of its own: its interpreter runs one of _children/*.py, spoken to through a pipe."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from cbbench.atomic import filled_once
from cbbench.clock import RealClock
from cbbench.errors import UserError
from cbbench.folders import cache_dir
from cbbench.peers.base import Answer, HfModel, Peer
from cbbench.request import Request
from cbbench.strategy import StrictOptions

CHILDREN = Path(__file__).parent / "_children"


class ChildOptions(StrictOptions):
    python: Path | None = Field(None, strict=False, exclude=True, description="interpreter of its environment; --peer-python says it too")


class ChildPeer(Peer):
    """What such peers share. Subclasses name their `module` (what to import), `child` (the script) and `how_to_get` it."""

    module: ClassVar[str]
    child: ClassVar[str]
    how_to_get: ClassVar[str]
    is_in_process = False

    Options = ChildOptions
    options: ChildOptions

    @classmethod
    def cannot_run(cls, device: str, dtype: str, options: StrictOptions) -> str | None:
        assert isinstance(options, ChildOptions)
        if options.python is None:
            return None if importlib.util.find_spec(cls.module) else f"{cls.module} is not installed here: {cls.how_to_get}"
        if not has_module(options.python, cls.module):
            return f"{options.python} cannot import {cls.module}: {cls.how_to_get}"
        return None

    def start(self, requests: list[Request]) -> None:
        setting = self.setting
        longest = max((r.max_kv_tokens for r in requests), default=1) + 1
        kv_tokens = setting.max_num_seqs * longest
        environment = {**os.environ, "OMP_NUM_THREADS": str(setting.num_threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.log = (cache_dir() / "peers" / f"{self.name()}.log").absolute()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [self.options.python or sys.executable, CHILDREN / self.child], env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.version = self._ask(
            model_dir=str(model_folder(setting.model_digest, setting.model)), dtype=setting.dtype, device=setting.device,
            num_threads=setting.num_threads,
            max_num_seqs=setting.max_num_seqs, longest=longest, kv_tokens=kv_tokens, kv_bytes=kv_tokens * setting.bytes_per_token,
            max_num_batched_tokens=max([512, *(len(r.prompt_ids) for r in requests)]), eos_ids=sorted(setting.eos_ids),
            options=self.options.model_dump(),
        )["version"]  # fmt: skip

    def run(self, requests: list[Request], clock: RealClock) -> list[Answer]:
        asked = [
            {"prompt_ids": list(r.prompt_ids), "max_new_tokens": r.max_new_tokens, "ignore_eos": r.ignore_eos or not self.setting.eos_ids,
             "arrival_s": r.arrival_s} for r in requests
        ]  # fmt: skip
        return [Answer(**answer) for answer in self._ask(requests=asked)["answers"]]

    def forget_prompts(self) -> None:
        self._ask(forget=True)

    def processes(self) -> list[int]:
        return [self.process.pid]

    def stop(self) -> None:
        if hasattr(self, "process"):
            with suppress(ProcessLookupError, PermissionError):  # gone already
                os.killpg(self.process.pid, signal.SIGKILL)  # with whatever it started: it leads a group of its own
            self.process.communicate()

    def _ask(self, **question: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            reply: dict[str, Any] = json.loads(self.process.stdout.readline())
        except (OSError, ValueError) as error:
            raise RuntimeError(f"{self.name()} ended by itself; its last words are in {self.log}") from error
        if "failed" in reply:
            raise RuntimeError(f"{self.name()}: {reply['failed']}")
        return reply


@cache
def has_module(python: Path, module: str) -> bool:
    """Whether that interpreter would find the module; it is not imported."""
    code = f"import importlib.util; print(importlib.util.find_spec({module!r}) is not None)"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.endswith("True\n")
    except OSError as error:
        raise UserError(f"--peer-python {python}: {error.strerror}") from error


def model_folder(digest: str, model: Callable[[], HfModel]) -> Path:
    """The model as a Hugging Face folder of safetensors, written once per digest of its weights."""
    return filled_once(cache_dir() / "peers" / digest / "hf", lambda folder: model().hf.save_pretrained(folder))
