"""The parts of the documentation that are made from the code and from docs/records, so that no figure is typed by hand.

A page marks a place with `<!-- made: WHAT -->` and `<!-- end -->`; what stands between them is written anew by `make pictures`.

    measured RECORD; arms: A, B; columns: TITLE, TITLE     a table over the saved run docs/records/RECORD
    strategy KIND NAME                                     the docstring and the options of a strategy
    metrics SECTION                                        what the metrics of a section mean
    published                                              tests/docs/published.py, computed
"""

from __future__ import annotations

import re
from functools import cache
from inspect import getdoc

import pandas as pd

from cbbench import plugins
from cbbench.results import tables
from cbbench.results.definitions import DEFINITIONS
from cbbench.results.store import Run, read_run
from tests.docs import published
from tests.support.places import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "records" not in path.parts)
MADE = re.compile(r"(<!-- made: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
COLUMNS = {column.title: column for columns in tables.TABLES.values() for column in columns}


def renewed(text: str) -> str:
    """The page with every made part as it should be."""
    return MADE.sub(lambda found: f"{found[1]}\n{made(found[2])}\n\n{found[4]}", text)


def made(what: str) -> str:
    kind, _, rest = what.partition(" ")
    if kind == "measured":
        return measured(*(part.strip() for part in rest.split(";")))
    if kind == "metrics":
        return metrics(rest)
    return strategy(*rest.split()) if kind == "strategy" else published.as_markdown()


@cache
def record(name: str) -> Run:
    return read_run(DOCS / "records" / name)


def measured(name: str, arms: str, columns: str) -> str:
    run = record(name)
    chosen = [arm.strip() for arm in arms.removeprefix("arms:").split(",")]
    titles = [title.strip() for title in columns.removeprefix("columns:").split(",")]
    rows = {row.arm: row for row in tables.table_rows([run])}
    base = rows[chosen[0]].values["output_tok_per_s"]
    for row in rows.values():  # the first of this table, not the base of the whole run
        row.values["vs_base"] = row.values["output_tok_per_s"] / base
    lines = [[arm, rows[arm].status, *(COLUMNS[t].text(rows[arm].values.get(COLUMNS[t].key)) for t in titles)] for arm in chosen]
    return f"{as_markdown(['arm', 'requests', *titles], lines)}\n\n{provenance(run)}"


def as_markdown(headers: list[str], lines: list[list[str]], num_text: int = 2) -> str:
    align = ["left"] * num_text + ["right"] * (len(headers) - num_text)
    frame = pd.DataFrame(lines, columns=range(len(headers)))
    return str(frame.to_markdown(index=False, headers=headers, colalign=align, disable_numparse=True))


def provenance(run: Run) -> str:
    """Under each table: what ran where, from run.json."""
    workload, model, machine, versions = (run.info[key] for key in ("workload", "model", "machine", "versions"))
    rounds = "one round (counts are exact, times one sample)" if run.info["rounds"] == 1 else f"medians of {run.info['rounds']} rounds"
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {machine['memory_gib']} GiB, {machine['os']}"
    software = ", ".join(f"{name} {versions[name]}" for name in ("cbbench", "python", "torch", "transformers"))
    return (
        f"*Measured: `{workload['name']}` ({workload['digest']}) on {model['name']} in {model['dtype']}, {rounds}. {where}; {software}.*\n"
        f"*Records: `docs/records/{run.path.name}`.*"
    )


def strategy(kind: str, name: str) -> str:
    cls = plugins.find(kind, name)
    does, cost, use = re.split(r"^Cost: |^Use when: ", getdoc(cls) or "", flags=re.MULTILINE)
    flag = f"`--{kind} {name}`"
    lines = [f"{flag}: {does.strip()}", f"**Cost:** {cost.strip()}", f"**Use when:** {use.strip()}"]
    options = [[f"`{kind}.{key}`", str(field.default), field.description or ""] for key, field in cls.Options.model_fields.items()]
    if options:
        lines.append(as_markdown(["option (`--set`)", "default", "what it says"], options, num_text=3))
    return "\n\n".join(lines)


def metrics(section: str) -> str:
    lines = [[", ".join(titles_of(d.name)), f"`{d.name}`", d.unit, d.meaning, d.source] for d in DEFINITIONS[section]]
    return as_markdown(["in tables", "name", "unit", "meaning", "source"], lines, num_text=5)


def titles_of(name: str) -> list[str]:
    """What the tables call a metric; several where the name stands for several."""
    if name == "exact_matched":
        return ["requests"]
    stem = name.removesuffix("*")
    keys = {column.key: column.title for column in COLUMNS.values()}
    return [title for key, title in keys.items() if key == stem or (stem != name and key.startswith(stem))]


def main() -> None:
    for path in PAGES:
        text = path.read_text()
        if renewed(text) != text:
            path.write_text(renewed(text))
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
