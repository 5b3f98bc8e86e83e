"""A strategy is a file in its folder, an entry point, or `module:Class`: listed, runnable and exact with nothing else changed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cbbench import plugins
from cbbench.errors import UserError
from cbbench.model import ceilings
from tests.support.commands import ENVIRONMENT, command
from tests.support.engines import assert_exact, num_preemptions, requests, run, tiny
from tests.support.places import ROOT

DOC = '"""Does it.\n\n    Cost: a lot.\n    Use when: never.\n    """'
STRATEGIES = {
    "scheduler": f"""
from pydantic import Field
from cbbench.plan import Plan, Room
from cbbench.schedulers.base import Scheduler
from cbbench.strategy import StrictOptions

class Newest(Scheduler):
    {DOC}

    class Options(StrictOptions):
        at_once: int = Field(1, ge=1, description="admitted a step")

    def plan(self, now_s: float, room: Room) -> Plan:
        self.grow(room)
        for _ in range(self.options.at_once):
            if not any(s.num_preemptions for s in self.waiting):
                self.waiting.rotate(1)
            self.admit_one(room)
        return Plan([self.rest_of(sequence) for sequence in self.running])
""",
    "attn": f"""
from cbbench.attention._sdpa import attend_one
from cbbench.attention.base import Attention, packed_pass

class Reversed(Attention):
    {DOC}

    def lay_out(self, plan):
        return [packed_pass([row]) for row in reversed(plan.live)]

    def attend(self, call, queries_BWHD, forward_pass, kv):
        ((keys, values),) = kv.ragged(call.layer)
        return attend_one(queries_BWHD[0], keys, values, call.scale, call.window)[None]
""",
    "kv": f"""
import torch
from cbbench.kvcache.base import KVCache, KVView

class Lists(KVCache):
    {DOC}

    def refusal(self, sequence):
        needed = sequence.request.max_kv_tokens
        return f"needs {{needed}} tokens, the cache has {{self.budget_tokens}}" if needed > self.budget_tokens else None

    def reserve(self, sequence, num_tokens):
        held = self.__dict__.setdefault("held", {{}})
        if num_tokens - held.get(sequence.index, 0) > self.free_tokens():
            return False
        held[sequence.index] = max(num_tokens, held.get(sequence.index, 0))
        self.written.setdefault(sequence.index, 0)
        return True

    def release(self, sequence):
        del self.held[sequence.index], self.written[sequence.index]
        self.stored = {{key: value for key, value in self.__dict__.get("stored", {{}}).items() if key[0] != sequence.index}}

    def reserved_tokens(self):
        return dict(self.__dict__.get("held", {{}}))

    def free_tokens(self):
        return self.budget_tokens - sum(self.__dict__.get("held", {{}}).values())

    def allocate(self, dtype, device):
        self.stored = {{}}

    def view(self, rows):
        return View(self, rows)

class View(KVView):
    def write(self, layer, keys_TKD, values_TKD):
        sizes = [row.num_new for row in self.rows]
        for row, *new in zip(self.rows, keys_TKD.split(sizes), values_TKD.split(sizes)):
            self.cache.stored.setdefault((row.sequence.index, layer), []).append([part.clone() for part in new])

    def ragged(self, layer):
        return [tuple(map(torch.cat, zip(*self.cache.stored[row.sequence.index, layer]))) for row in self.rows]
""",
}
PACKAGES = {kind: importlib.import_module(name) for kind, name in plugins.KINDS.items()}
EXACT_RUN = "5/9@0 17/12@0 30/7@0 3/14@0 8/10@0"


@pytest.fixture
def drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str, str], None]]:
    """drop(kind, name, text): a file `name.py` in the folder of that kind."""
    known = set(sys.modules)

    def drop(kind: str, name: str, text: str) -> None:
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
        monkeypatch.setattr(PACKAGES[kind], "__path__", [*PACKAGES[kind].__path__, str(folder)])
        importlib.invalidate_caches()

    yield drop
    for name in set(sys.modules) - known:
        package, _, module = name.rpartition(".")
        if package in plugins.KINDS.values():
            delattr(sys.modules[package], module)
            del sys.modules[name]


def run_with(kind: str, name: str) -> None:
    """A parity run of that strategy, in a cache so small that somebody has to give way."""
    model = tiny()
    engine = run(
        model, requests(model, EXACT_RUN), **{"attn": "padded", "kv": "paged", kind: name}, budget_tokens=48, options={"kv.block_size": 4}
    )
    assert num_preemptions(engine) > 0
    assert_exact(engine)


def run_virtually(tmp_path: Path, kind: str, name: str) -> list[str]:
    """`cbbench run` with that strategy and no model; the arms that ran."""
    (tmp_path / "w.yaml").write_text("requests: [{id: a, prompt_ids: [1, 2], max_new_tokens: 3}]\nmodel: none\n")
    ended = command("run", tmp_path / "w.yaml", f"--{kind}", name, "--rounds", "1", "--format", "json", "--out", tmp_path / "r")
    assert ended.code == 0, ended.err
    return [*ended.rows]


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_file_dropped_into_the_folder_is_found_listed_runnable_and_exact(
    drop: Callable[[str, str, str], None], tmp_path: Path, kind: str
) -> None:
    before = plugins.names(kind)
    drop(kind, "mine", STRATEGIES[kind])
    assert plugins.names(kind) == sorted([*before, "mine"])
    assert plugins.find(kind, "mine").name() == "mine"
    listed = command("list", kind).out
    assert "\n  mine\n" in listed and listed.count("Cost: a lot.") == 1 and "Use when: never." in listed
    run_with(kind, "mine")
    assert len(run_virtually(tmp_path, kind, "all")) == len(before) + 1
    assert len(run_virtually(tmp_path, kind, "mine")) == 1


def test_its_options_are_listed_set_and_checked(drop: Callable[[str, str, str], None], tmp_path: Path) -> None:
    drop("scheduler", "mine", STRATEGIES["scheduler"])
    assert "option scheduler.at_once=1: admitted a step" in command("list", "schedulers").out
    (tmp_path / "w.yaml").write_text("requests: [{id: a, prompt_ids: [1, 2], max_new_tokens: 3}]\nmodel: none\n")
    words = ("run", tmp_path / "w.yaml", "--scheduler", "mine", "--format", "json", "--out", tmp_path / "r", "--set")
    assert [*command(*words, "scheduler.at_once=2").rows] == ["mine(at_once=2)+varlen+paged"]
    assert "scheduler.at_once" in command(*words, "scheduler.at_once=0").mistake
    assert "did you mean mine?" in command(*words[:3], "minee").mistake


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_class_of_another_module_is_a_strategy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    (tmp_path / f"elsewhere_{kind}.py").write_text(STRATEGIES[kind])
    monkeypatch.syspath_prepend(tmp_path)
    name = f"elsewhere_{kind}:" + {"scheduler": "Newest", "attn": "Reversed", "kv": "Lists"}[kind]
    run_with(kind, name)
    assert name.replace(":", ".") in run_virtually(tmp_path, kind, name)[0]


@pytest.mark.parametrize("kind", STRATEGIES)
def test_an_entry_point_is_a_strategy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    (tmp_path / f"installed_{kind}.py").write_text(STRATEGIES[kind])
    monkeypatch.syspath_prepend(tmp_path)
    value = f"installed_{kind}:" + {"scheduler": "Newest", "attn": "Reversed", "kv": "Lists"}[kind]
    point = EntryPoint("theirs", value, plugins.KINDS[kind])
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == point.group else [])
    assert "theirs" in plugins.names(kind)
    assert all("theirs" not in plugins.names(other) for other in STRATEGIES if other != kind)
    assert "\n  theirs\n" in command("list", kind).out
    run_with(kind, "theirs")
    assert "theirs" in run_virtually(tmp_path, kind, "theirs")[0]


BROKEN = {
    "syntax": ("class (:", "SyntaxError"),
    "missing": ("import no_such_package", "No module named 'no_such_package'"),
    "raising": ("raise RuntimeError('not today')", "RuntimeError: not today"),
    "leaving": ("raise SystemExit('a script')", "a script"),
    "empty": ("x = 1", "exactly one class that extends KVCache, it holds 0"),
    "imported": ("from cbbench.kvcache.paged import Paged", "exactly one class that extends KVCache, it holds 0"),
    "two": ("from cbbench.kvcache.cat import Cat\nclass A(Cat): pass\nclass B(Cat): pass",
            "exactly one class that extends KVCache, it holds 2"),
    "undecided": ("from cbbench.kvcache.base import KVCache\nfrom cbbench.strategy import StrictOptions\n"
                  "class A(KVCache):\n    class Options(StrictOptions):\n        size: int\n", "size"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("listing", ["list", "doctor"])
def test_a_broken_file_takes_no_listing_down(
    drop: Callable[[str, str, str], None], fault: str, listing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, reason = BROKEN[fault]
    drop("kv", "bad", text)
    monkeypatch.setattr(ceilings, "ROUNDS", 2)
    ended = command(listing)
    assert ended.code == 0, ended
    assert all(name in ended.out for name in ("cat", "paged", "preallocated"))
    assert listing == "doctor" or ("\n  bad" in ended.out and reason in ended.out), "and is named in it"


@pytest.mark.parametrize("fault", [name for name in BROKEN if name != "undecided"])
def test_a_broken_file_is_refused_by_name_when_asked_for(drop: Callable[[str, str, str], None], tmp_path: Path, fault: str) -> None:
    text, reason = BROKEN[fault]
    drop("kv", "bad", text)
    with pytest.raises(UserError) as caught:
        plugins.find("kv", "bad")
    assert "cbbench.kvcache.bad" in str(caught.value) and reason in str(caught.value)
    (tmp_path / "w.yaml").write_text("requests: [{id: a, prompt_ids: [1], max_new_tokens: 1}]\nmodel: none\n")
    for names in ("bad", "all"):
        assert "cbbench.kvcache.bad" in command("run", tmp_path / "w.yaml", "--kv", names).mistake
    assert run_virtually(tmp_path, "kv", "paged") == ["continuous+varlen+paged"], "the others run"


def test_helpers_and_bases_are_no_strategies(drop: Callable[[str, str, str], None]) -> None:
    drop("kv", "_helper", STRATEGIES["kv"])
    assert not {"base", "_helper", "_pool", "_arena"} & {*plugins.names("kv")}
    for name in ("base", "_helper", "__init__", "nothing", ""):
        with pytest.raises(UserError, match="no kv named"):
            plugins.find("kv", name)


def test_a_module_of_the_current_folder_is_found_where_python_does_not_look(tmp_path: Path) -> None:
    """A console script has no current folder on its path; `-P` takes it off here."""
    page = (ROOT / "docs" / "write" / "scheduler.md").read_text()
    (tmp_path / "gentle.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    run = "run", str(ROOT / "workloads" / "tutorial.yaml"), "--model", "none", "--rounds", "1", "--scheduler", "gentle:Gentle"
    words = [sys.executable, "-P", "-c", "from cbbench.cli import main; main()", *run]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "gentle.Gentle+varlen+paged" in done.stdout, done.stderr
