"""`make pictures`: draws docs/pictures/ by the commands that stand in the pages, and renews the pages' made parts.

`python -m tests.docs.pictures golden` writes tests/docs/golden/ instead: what test_figures.py expects. Look at the difference.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from cbbench.cli import main as cbbench
from cbbench.report.figure.kinds import figure
from cbbench.report.figure.style import RC
from cbbench.results.rounds import choose
from cbbench.results.store import read_run
from tests.docs import pages
from tests.support.figures import geometry

GOLDEN = Path(__file__).parent / "golden"
STATIC, CONTINUOUS = "static+padded+preallocated", "continuous+varlen+paged"
GOLDEN_ARMS = {
    "slots": [STATIC, CONTINUOUS], "memory": ["continuous+varlen+preallocated", CONTINUOUS], "requests": [CONTINUOUS],
    "latency": [STATIC, CONTINUOUS], "throughput": [STATIC, CONTINUOUS], "waste": [STATIC, CONTINUOUS],
}  # fmt: skip


def commands() -> dict[Path, list[str]]:
    """Each picture of the pages, and the words of the command that draws it."""
    found = {}
    for path in pages.PAGES:
        for line in re.findall(r"^cbbench (plot docs/records/.*)$", path.read_text(), re.MULTILINE):
            words = shlex.split(line)
            found[Path(words[words.index("-o") + 1])] = words
    return found


def draw(words: list[str], out: Path) -> None:
    """One of `commands()`, to another place."""
    place = words.index("-o") + 1
    record = pages.ROOT / words[1]
    try:
        cbbench([words[0], str(record), *words[2:place], str(out), *words[place + 1 :]])
    except SystemExit as ended:
        assert not ended.code, words


def tutorial(kind: str, arms: list[str]) -> Figure:
    with mpl.rc_context(RC):
        return figure(choose(read_run(pages.DOCS / "records" / "tutorial"), arms), kind)


def write_golden() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for kind, arms in GOLDEN_ARMS.items():
        lines = [f" {json.dumps(gid)}: {json.dumps(values)}" for gid, values in geometry(tutorial(kind, arms)).items()]
        (GOLDEN / f"{kind}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    if sys.argv[1:] == ["golden"]:
        write_golden()
        return
    for out, words in commands().items():
        draw(words, pages.ROOT / out)
    pages.main()


if __name__ == "__main__":
    main()
