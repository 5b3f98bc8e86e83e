"""Imports point one way, heavy libraries wait until they are needed, and the engine knows no strategy by name."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cbbench
from cbbench import plugins
from tests.support.commands import ENVIRONMENT, command
from tests.support.engines import ATTENTIONS, CACHES, SCHEDULERS

ROOT = Path(cbbench.__path__[0])
FILES = {".".join(("cbbench", *path.relative_to(ROOT).with_suffix("").parts)): path for path in sorted(ROOT.rglob("*.py"))}
MODULES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}
HEAVY = ("torch", "transformers", "numba", "flash_attn", "accelerate", "safetensors", "gguf")
STRATEGIES = [f"{plugins.KINDS[kind]}.{name}" for kind, names in
              {"scheduler": SCHEDULERS, "attn": ATTENTIONS, "kv": CACHES}.items() for name in names]  # fmt: skip


def imported(module: str, at_start: bool = False) -> Iterator[str]:
    """The modules that a file names in imports; `at_start`: only those that importing it carries out."""

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        yield node
        if at_start and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if at_start and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    for node in walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if f"{node.module}.{alias.name}" in MODULES)


def reached(module: str) -> set[str]:
    """Everything that `import module` imports: files of cbbench, and the top-level names of other packages."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in MODULES:
            parents = [name.rpartition(".")[0]] if "." in name else []
            todo += [*imported(name, at_start=True), *parents]
    return {name if name in MODULES else name.partition(".")[0] for name in seen}


def place(module: str) -> str:
    """The folder below cbbench/, or the file at its root."""
    return module.removeprefix("cbbench").removeprefix(".").partition(".")[0]


def own(module: str) -> set[str]:
    """The files of cbbench that a file names in any import."""
    return {name for name in imported(module) if name in MODULES and name != "cbbench"}


def test_the_walk_sees_what_is_there() -> None:
    assert len(MODULES) > 30 and len(STRATEGIES) >= 10
    assert {"torch", "cbbench.kvcache.base", "cbbench.plan"} <= reached("cbbench.engine.loop")
    assert "transformers" in reached("cbbench.runs.runner") | reached("cbbench.model.model")
    assert "cbbench.model.model" in set(imported("cbbench.runs.job")) and "torch" not in reached("cbbench.errors")


@pytest.mark.parametrize("module", STRATEGIES)
def test_a_strategy_imports_its_base_and_never_another_strategy_the_engine_or_the_config(module: str) -> None:
    folder = module.rpartition(".")[0]
    allowed = {f"{folder}.base", folder, *(f"cbbench.{name}" for name in ("request", "plan", "strategy", "errors"))}
    allowed |= {name for name in MODULES if name.startswith(f"{folder}._")}
    if folder == "cbbench.attention":
        allowed |= {"cbbench.kvcache", "cbbench.kvcache.base", "cbbench.kernels", "cbbench.kernels.availability"}
    assert own(module) <= allowed, own(module) - allowed


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(tuple(plugins.KINDS.values())) and m not in STRATEGIES])
def test_bases_and_helpers_import_no_strategy_and_nothing_above_them(module: str) -> None:
    above = ("engine", "runs", "cli", "model", "plugins", "workload", "results")
    assert not own(module) & {*STRATEGIES} and not [name for name in own(module) if name.split(".")[1] in above]
    if module != "cbbench.attention.base":
        other = {package for package in plugins.KINDS.values() if not module.startswith(package)}
        allowed = {"cbbench.attention.base", "cbbench.kvcache.base"} if ".attention." in module else set()
        assert {name for name in own(module) if name.rpartition(".")[0] in other} <= allowed


ASKS_TORCH = "cbbench.report.doctor"  # what torch can do here is what it tells
READING = ("results", "compare", "report", "workload", "importing", "importers", "cli")


@pytest.mark.parametrize("module", [m for m in MODULES if (place(m) in READING and m != ASKS_TORCH) or m == "cbbench.runs.config"])
def test_reading_results_and_workloads_starts_without_torch(module: str) -> None:
    assert not reached(module) & {*HEAVY}, sorted(reached(module))


def test_only_the_model_folder_knows_transformers() -> None:
    knowing = {name for name in MODULES if any(found.split(".")[0] == "transformers" for found in imported(name))}
    peers = {f"cbbench.peers.{name}" for name in plugins.names("peer")}
    assert knowing - peers == {
        f"cbbench.model.{name}" for name in ("load", "model", "attention_interface", "self_test", "reference", "gguf")
    }


# From the top down. What stands on one line does not import each other; "" is the files at the root of cbbench/.
ORDER = (
    ("__main__",),
    ("cli",),
    ("report",),
    ("runs",),
    ("recording", "engine"),
    ("model",),
    ("attention", "compare", "importing"),
    ("schedulers", "kvcache", "peers", "importers"),
    ("workload", "results", "kernels", "machine"),
    ("clock", "plan", "atomic", "plugins"),
    ("request", "strategy", "folders"),
    ("errors", "strict", ""),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


@pytest.mark.parametrize("module", MODULES)
def test_an_import_points_into_its_own_folder_or_one_further_down(module: str) -> None:
    here = place(module)
    wrong = [name for name in own(module) if place(name) != here and RANK[place(name)] <= RANK[here]]
    assert not wrong, f"{module} stands on line {RANK[here]} of ORDER and imports {wrong}"


def test_the_order_names_every_folder_and_file_and_the_root_stays_small() -> None:
    assert {place(name) for name in MODULES} == {*RANK}
    assert len([*ROOT.glob("*.py")]) <= 12


def test_strategies_are_found_by_name() -> None:
    assert not [name for name in MODULES if own(name) & {*STRATEGIES}]


def test_the_engine_branches_on_no_strategy() -> None:
    tree = ast.parse(MODULES["cbbench.engine.loop"].read_text())
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert "isinstance" not in names and not texts & {*SCHEDULERS, *ATTENTIONS, *CACHES}


def test_72_the_wall_clock_is_read_for_dates_alone() -> None:
    calls = {(name, ast.unparse(node.func)) for name, path in MODULES.items() for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("time.", "datetime."))}  # fmt: skip
    assert {call for _, call in calls} <= {
        "time.perf_counter", "time.sleep", "time.strftime", "time.gmtime", "datetime.fromisoformat", "datetime.now",
    }  # fmt: skip
    assert {name for name, call in calls if call == "time.perf_counter"} == {
            "cbbench.clock", "cbbench.peers._children.serve",  # the second runs where cbbench is not installed
        }  # fmt: skip


def python(code: str, *words: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=ENVIRONMENT, check=True).stdout


LOADED = f"""
import sys
from cbbench.cli import main
try: main()
except SystemExit as ended: assert not ended.code, ended
print("LOADED", sorted({{name.split(".")[0] for name in sys.modules}} & {{{", ".join(map(repr, HEAVY))}}}))
"""


def test_help_loads_nothing_that_takes_long() -> None:
    """Half a second at most; `make perf` measures it."""
    out = python(LOADED, "--help")
    assert out.endswith("LOADED []\n") and all(name in out for name in ("run", "compare", "list", "workload", "doctor"))


def test_comparing_saved_runs_loads_no_torch(tmp_path: Path) -> None:
    """A gate in CI does not wait for it."""
    (tmp_path / "w.yaml").write_text("requests: [{id: a, prompt_ids: [1, 2], max_new_tokens: 3}]\nmodel: none\n")
    assert command("run", tmp_path / "w.yaml", "--rounds", "1", "--out", tmp_path / "r").code == 0
    out = python(LOADED, "compare", str(tmp_path / "r"))
    assert "continuous+varlen+paged" in out and out.endswith("LOADED []\n")
