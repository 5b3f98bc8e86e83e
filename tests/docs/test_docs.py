"""The documentation is true: links lead somewhere, commands parse, code runs exactly, tables and pictures are up to date."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import matplotlib as mpl
import pytest

from cbbench import plugins
from cbbench.report.figure.kinds import METADATA
from cbbench.results import tables
from cbbench.results.definitions import DEFINITIONS
from cbbench.results.metrics import summarize
from cbbench.runs.config import Overrides, build_arms
from cbbench.workload.file import read_workload
from tests.docs import pages, pictures
from tests.docs.test_shipped import parsed
from tests.support.commands import ENVIRONMENT
from tests.support.engines import assert_exact, num_preemptions, requests, run, tiny

ROOT, DOCS, PAGES = pages.ROOT, pages.DOCS, pages.PAGES
FOLDERS = {"scheduler": "schedulers", "attn": "attention", "kv": "kvcache"}
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))


def blocks(page: Path, language: str = "") -> list[str]:
    """The fenced blocks of a page in that language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def commands(page: Path) -> list[str]:
    """Each `cbbench ...` of a page, in blocks and in lines."""
    written = [line for block in blocks(page) for line in block.splitlines()] + re.findall(r"`(cbbench [^`\n]+)`", page.read_text())
    return [line for line in written if line.startswith("cbbench ")]


PAGES_OF = [(kind, page.stem) for kind, folder in FOLDERS.items() for page in sorted((DOCS / folder).glob("*.md"))]


@pytest.mark.parametrize(("kind", "name"), PAGES_OF)
def test_a_page_of_a_strategy_prints_what_the_code_says_of_it(kind: str, name: str) -> None:
    text = (DOCS / FOLDERS[kind] / f"{name}.md").read_text()
    assert f"<!-- made: strategy {kind} {name} -->" in text and "<!-- made: measured " in text
    assert name in plugins.files(kind)
    assert "**Cost:**" in text and "**Use when:**" in text and f"{FOLDERS[kind]}/{name}.md" in (DOCS / "index.md").read_text()


def test_every_strategy_of_the_readme_has_a_page() -> None:
    """A new file needs none: it is listed, run and tested as it is."""
    table = re.findall(r"^\| (?:`--\w+`)? *\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    written = {name for _, name in PAGES_OF}
    assert len(table) >= 10 and {*table} == written


@every_page
def test_what_is_made_from_records_and_code_is_up_to_date(page: Path) -> None:
    """Not? `make pictures`."""
    assert pages.renewed(page.read_text()) == page.read_text()
    assert len(pages.MADE.findall(page.read_text())) == page.read_text().count("<!-- made:"), "each has its end"


def test_measured_tables_say_the_machine_the_versions_and_values_of_the_record() -> None:
    text = pages.measured("tutorial", "arms: static+varlen+paged, continuous+varlen+paged", "columns: steps, vs base, slots idle")
    assert re.search(r"^\| static\+varlen\+paged +\| 8/8 exact +\| +88 \| +1.00 x \| +59.1 % \|$", text, re.MULTILINE), text
    info = pages.record("tutorial").info
    for fact in (info["machine"]["cpu"], info["versions"]["torch"], info["versions"]["transformers"], info["workload"]["digest"]):
        assert str(fact) in text
    measured = [page for page in PAGES if "<!-- made: measured" in page.read_text()]
    assert len(measured) >= 12 and all("*Measured: `" in page.read_text() for page in measured)


def test_every_metric_and_every_column_is_defined_and_nothing_else() -> None:
    defined = [definition for definitions in DEFINITIONS.values() for definition in definitions]
    assert all(d.unit and len(d.meaning) > 10 and d.source for d in defined)
    rows = {d.name: ", ".join(pages.titles_of(d.name)) for d in defined}
    assert len(rows) == len(defined)
    names = {name: re.sub(r"_(mean|p50|p90|p99|max)$", "_*", name) for name in [*summarize([], [], {}), "vs_base", "output_spread_frac"]}
    families = {family for family in names.values() if f"{family[:-1]}mean" in names}
    wanted = {family if family in families else name for name, family in names.items()}
    assert {*rows} == wanted
    for column in (column for columns in tables.TABLES.values() for column in columns):
        row = rows[names[column.key] if names[column.key] in families else column.key]
        assert column.title in row.split(", "), column
    shown = {title for cell in rows.values() for title in cell.split(", ") if title}
    assert shown == {c.title for columns in tables.TABLES.values() for c in columns} | {"requests"}
    page = (DOCS / "metrics.md").read_text()
    assert all(f"<!-- made: metrics {section} -->" in page for section in DEFINITIONS)


STANDARD = {
    "output tok/s", "total tok/s", "duration", "steps", "decode step p50", "TTFT p50", "TTFT p90", "TPOT p50", "TPOT p90", "ITL p99",
    "ITL max", "E2E p50", "E2E p90", "KV peak", "prefill padding", "decode padding", "preempted",
}  # fmt: skip


def test_a_heading_that_is_no_standard_term_is_explained_under_its_table() -> None:
    columns = [column for columns in tables.TABLES.values() for column in columns]
    assert {column.title for column in columns if not column.legend} == STANDARD
    text = tables.as_plain(tables.grids(tables.table_rows([pages.record("tutorial")]))[2])
    assert "drained: slots empty while none waits" in text and "preempted:" not in text


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The strategies of the three pages as files that Python finds, under the names that the pages' commands use."""
    folder = tmp_path_factory.mktemp("written")
    for page in sorted((DOCS / "write").glob("*.md")):
        (code,) = blocks(page, "python")
        (folder / f"{strategy_of(page).partition(':')[0]}.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


def strategy_of(page: Path) -> str:
    (name,) = {word for line in commands(page) for word in re.findall(r"\b(\w+:[A-Z]\w+)", line)}
    return str(name)


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_strategy_on_a_page_runs_and_its_tokens_are_exact(written: Path, kind: str) -> None:
    page = DOCS / "write" / f"{FOLDERS[kind].removesuffix('s')}.md"
    name, model = strategy_of(page), tiny()
    made = requests(model, "5/9@0 17/12@0 30/7@0 3/14@0 8/10@0")
    for scheduler, attn, kv in (("continuous", "padded", "paged"), ("static", "varlen", "cat"), ("chunked", "serial", "preallocated")):
        arm = {"scheduler": scheduler, "attn": attn, "kv": kv, kind: name}
        engine = run(model, made, *arm.values(), budget_tokens=96, options={"kv.block_size": 4, "scheduler.max_num_batched_tokens": 7})
        assert_exact(engine)
    tight = run(model, made, **{"attn": "padded", "kv": "paged", kind: name}, budget_tokens=48, options={"kv.block_size": 4})
    assert num_preemptions(tight) > 0
    assert_exact(tight)


def test_the_scheduler_on_its_page_does_what_it_says(written: Path) -> None:
    model = tiny()
    engine = run(model, requests(model, "5/9@0 17/6@0 30/7@0 3/14@0 8/10@0"), strategy_of(DOCS / "write" / "scheduler.md"))
    first = [min(step.step for step in engine.steps for row in step.rows if row[1] == s.index) for s in engine.sequences]
    assert len({*first}) == len(first), "no two requests entered in one step"


@pytest.mark.parametrize("line", {line: None for page in PAGES for line in commands(page)})
def test_a_command_of_the_pages_parses_and_names_what_exists(written: Path, line: str) -> None:
    words = shlex.split(line)[1:]
    name, values = parsed(words if len(words) > 1 or words[0] in ("list", "doctor") else [*words, "--help"])
    if name == "run" and values["workload"] and "traffic.yaml" not in line:  # test_ci_page.py follows ci.md
        axes = {axis: values[axis] for axis in plugins.AXES}
        read = read_workload(ROOT / values["workload"])
        assert build_arms(read, Overrides(axes, values["arm"], values["set_"], values["memory_budget"], values["max_num_seqs"]))
    for path in re.findall(r"\b(?:docs/records|workloads)/[\w./-]+", line):
        assert (ROOT / path).exists(), path


def test_there_are_commands_and_pages_to_check() -> None:
    assert len(PAGES) > 20 and len({line for page in PAGES for line in commands(page)}) > 35
    assert {"plot", "run", "compare", "report", "show", "export", "calibrate"} <= {c.split()[1] for page in PAGES for c in commands(page)}


@every_page
def test_a_picture_stands_under_the_command_that_draws_it(page: Path) -> None:
    drawn = {(ROOT / path).resolve() for path, words in pictures.commands().items() if shlex.join(words) in normal(page)}
    for alt, target in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text()):
        assert (page.parent / target).resolve() in drawn, target
        assert len(alt) > 20, "says what there is to see"
        assert (page.parent / target).stat().st_size < 150_000


def normal(page: Path) -> list[str]:
    return [shlex.join(shlex.split(line)[1:]) for line in commands(page)]


def test_the_pictures_of_the_pages_are_those_of_the_records(tmp_path: Path) -> None:
    """Not? `make pictures`."""
    committed = {path.name for path in (DOCS / "pictures").iterdir()}
    assert committed == {path.name for path in pictures.commands()}
    for path, words in pictures.commands().items():
        old = (ROOT / path).read_text()
        if str(METADATA["svg"]["Creator"]) not in old:
            pytest.skip(f"{path.name} was drawn by another matplotlib than {mpl.__version__}")
        pictures.draw(words, tmp_path / path.name)
        assert (tmp_path / path.name).read_text() == old, path


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "workloads/README.md"))],
                         ids=lambda page: str(page.relative_to(ROOT)))  # fmt: skip
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_file(), target
        assert not anchor or anchor in anchors(found), target


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    if not (find_spec("mkdocs") and find_spec("material")):
        pytest.skip("mkdocs-material is not installed")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir"]
    done = subprocess.run([*words, str(tmp_path)], capture_output=True, text=True, env={**ENVIRONMENT, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    built = list(tmp_path.rglob("*.html"))
    assert len(built) == len(PAGES) + 1, "every page, and the one for what is not found"
    for path in built:
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]* src=\"([^\"]*)\"|<link[^>]* href=\"([^\"]*)\"", path.read_text())
        assert not [url for pair in loaded for url in pair if "//" in url], path.name
    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".jsonl"], "records are no part of the site"
