"""What is shipped works as it is written: workloads read, commands in documents parse, strategies say what they cost."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from inspect import getdoc
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cbbench import plugins
from cbbench.cli.app import app
from cbbench.runs.config import Overrides, build_arms
from cbbench.workload.file import digest, read_workload, resolve
from tests.support.engines import ATTENTIONS, CACHES, SCHEDULERS
from tests.support.places import ROOT

WORKLOADS = sorted((ROOT / "workloads").glob("*.yaml"))
STRATEGIES = [(kind, name) for kind, names in {"scheduler": SCHEDULERS, "attn": ATTENTIONS, "kv": CACHES}.items() for name in names]


def test_there_are_workloads_and_documents_to_check() -> None:
    assert {"mixed", "tutorial"} <= {path.stem for path in WORKLOADS}
    assert len(COMMANDS) > 10 and len({command.split()[1] for command in COMMANDS}) >= 4


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_a_shipped_workload_reads_and_its_reference_is_whole(path: Path) -> None:
    workload = read_workload(path)
    assert build_arms(workload, Overrides()) and workload.file.description
    assert len(digest(resolve(workload, None))) == 16
    reference = workload.file.reference
    assert reference is not None and re.fullmatch(r"[0-9a-f]{16}", reference.digest)
    assert (reference.model, reference.dtype) == (workload.file.model, workload.file.dtype) == ("smollm2-135m", "float32")
    for row in workload.rows.rows:
        assert row.prompt_ids and row.output_ids and len(row.output_ids) <= row.max_new_tokens, row.id
        assert not row.ignore_eos or len(row.output_ids) == row.max_new_tokens, row.id
        assert max(*row.prompt_ids, *row.output_ids) < 49152, "SmolLM2's vocabulary"
        assert len(row.prompt_ids) + row.max_new_tokens - 1 <= 8192, "its positions"


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_a_shipped_workload_was_made_from_its_source(path: Path) -> None:
    from cbbench.workload.jsonl import read_jsonl

    source = [data for _, data in read_jsonl(path.parent / "sources" / f"{path.stem}.jsonl")]
    rows = read_workload(path).rows.rows
    kept = ("id", "max_new_tokens", "arrival_s", "ignore_eos")
    asked = [[line.get(key, {"arrival_s": 0, "ignore_eos": False}.get(key)) for key in kept] for line in source]
    assert [[getattr(row, key) for key in kept] for row in rows] == asked


@pytest.mark.parametrize(("kind", "name"), STRATEGIES)
def test_a_strategy_says_what_it_does_what_it_costs_and_when_to_use_it(kind: str, name: str) -> None:
    cls = plugins.find(kind, name)
    assert cls.name() == name
    does, cost, use = re.split(r"^Cost: |^Use when: ", getdoc(cls) or "", flags=re.MULTILINE)
    assert cls.__doc__ and min(len(does.strip()), len(cost.strip()), len(use.strip())) > 15
    assert all(field.description for field in cls.Options.model_fields.values()), "options say what they do"


def commands() -> dict[str, str]:
    """Each `cbbench ...` of the documents' code and of docstrings, and where it stands."""
    found: dict[str, str] = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "workloads").glob("*.md"))]:
        text = path.read_text() if path.exists() else ""
        blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
        lines = [*blocks.splitlines(), *re.findall(r"^    (.*)$", text, re.MULTILINE), *re.findall(r"`(cbbench [^`]+)`", text)]
        found |= {line.strip().removeprefix("$ "): path.name for line in lines if re.match(r"\s*(\$ )?cbbench [\w-]", line)}
    for path in sorted((ROOT / "cbbench").rglob("*.py")):
        found |= dict.fromkeys(re.findall(r"`(cbbench [^`\n]+)`", path.read_text()), str(path.relative_to(ROOT)))
    return found


COMMANDS = commands()


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command and the values that it would run with; raises where there is no such command or option. Nothing is run."""
    calls: list[tuple[str, dict[str, Any]]] = []
    if words[0].startswith("--"):  # carried out at once; --install-completion changes the user's shell
        assert words[0] in ("--help", "--version", "--install-completion", "--show-completion")
        return "help", {}

    def watch(name: str) -> Callable[..., None]:
        return lambda **values: calls.append((name, values))

    def stub(group: Any) -> None:
        for name, inner in group.commands.items():
            if hasattr(inner, "commands"):
                stub(inner)
            else:
                inner.callback = watch(name)

    group = get_command(app)
    stub(group)
    group.main(words, standalone_mode=False)
    return calls[0] if calls else ("help", {})


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: f"{COMMANDS[line]}: {line.partition('#')[0].strip()}")
def test_a_command_of_the_documents_parses_and_names_what_exists(line: str) -> None:
    words = shlex.split(re.split(r" [|>&]", line)[0], comments=True)[1:]
    if not [word for word in words if not word.isalpha()] and words[0] != "list":  # a mention: no arguments
        parsed([*words, "--help"])
        return
    name, values = parsed(words)
    shipped = [word for word in words if word.startswith("workloads/") and "NAME" not in word]
    assert all((ROOT / word).exists() for word in shipped)
    if name == "run" and shipped and not any(":" in (values[axis] or "") for axis in ("scheduler", "attn", "kv")):
        workload = read_workload(ROOT / values["workload"])
        axes = {axis: values[axis] for axis in ("scheduler", "attn", "kv")}
        assert build_arms(workload, Overrides(axes, values["arm"], values["set_"], values["memory_budget"], values["max_num_seqs"]))


def test_the_readme_is_short_and_names_every_folder() -> None:
    """A folder that is not in the tree has no line that says what it is for."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 420
    tree = {found for line in lines for found in re.findall(r"^  (\w+)/ ", line)}
    assert tree == {path.name for path in (ROOT / "cbbench").iterdir() if (path / "__init__.py").exists()}


def test_contributing_says_where_each_folder_s_things_go() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in (ROOT / "cbbench").iterdir():
        if (path / "__init__.py").exists() and path.name != "engine":
            assert f"`cbbench/{path.name}/" in text, path.name
    assert "engine/loop.py" in text
