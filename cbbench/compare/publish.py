"""Where a comparison goes beside the terminal: files by their suffix, and GitHub's summary and annotations."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from cbbench.atomic import replacing
from cbbench.compare import verdict_report
from cbbench.compare.verdict_report import Comparison
from cbbench.compare.verdicts import Outcome, Verdict
from cbbench.errors import UserError

SUMMARY_BYTES = (1 << 20) - 1024  # GitHub refuses a whole summary above 1 MiB
MAX_ANNOTATIONS = 10  # GitHub shows ten of a kind a step

RENDERERS: dict[str, Callable[[Comparison], str]] = {
    "markdown": verdict_report.as_markdown,
    "csv": lambda found: str(verdict_report.as_frame(found).to_csv(index=False)),
    "json": verdict_report.as_json,
    "junit": verdict_report.as_junit,
}
SUFFIXES = {".md": "markdown", ".csv": "csv", ".json": "json", ".xml": "junit"}


def check_outs(outs: list[Path]) -> None:
    for path in outs:
        if path.suffix not in SUFFIXES:
            raise UserError(f"--out {path}: should end in {', '.join(SUFFIXES)}")
        if path.is_dir():
            raise UserError(f"--out {path}: is a folder; name a file")
        if not path.parent.is_dir():
            raise UserError(f"--out {path}: there is no folder {path.parent}")


def write_all(outs: list[Path], found: Comparison) -> list[str]:
    """Files, and what GitHub reads; one that cannot be written keeps no other from being so. Returns what was not written."""
    failed = []
    for path in outs:
        try:
            with replacing(path) as half:
                half.write_text(RENDERERS[SUFFIXES[path.suffix]](found), encoding="utf-8")
        except OSError as error:
            failed.append(f"--out {path}: {error.strerror or error}")
    try:
        to_github(found)
    except OSError as error:
        failed.append(f"GITHUB_STEP_SUMMARY {error.filename}: {error.strerror or error}")
    return failed


def to_github(found: Comparison, environment: Mapping[str, str] = os.environ) -> None:
    """The summary where a step has one, and a line a finding where GitHub reads them (on stderr, as all that is no data)."""
    if environment.get("GITHUB_ACTIONS") == "true":
        judgement = found.judgement
        unknown = (*judgement.holes, *judgement.undecided) if judgement.exit_code == 3 else ()
        named = {id(verdict) for _, verdict in judgement.hits} | {id(v) for v in unknown}
        errors = [v for v in found.verdicts if id(v) in named]
        alarming = (Outcome.regressed, Outcome.missing, Outcome.failed)
        warnings = [v for v in found.verdicts if id(v) not in named and v.outcome in alarming]
        for kind, listed in (("error", errors), ("warning", warnings)):
            for verdict in listed[:MAX_ANNOTATIONS]:
                print(f"::{kind} title={escaped(_title(verdict), property=True)}::{escaped(_sentence(verdict))}", file=sys.stderr)
    if path := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(cut(found, SUMMARY_BYTES - file.tell()))


def cut(found: Comparison, limit_bytes: int = SUMMARY_BYTES) -> str:
    """Markdown below GitHub's limit: the best rows go first where not all fit."""
    kept, num = len(found.verdicts), len(found.verdicts)
    while True:
        text = verdict_report.as_markdown(replace(found, verdicts=found.verdicts[:kept]), found.verdicts)
        if kept < num:
            text += f"\n{num - kept} of {num} rows are left out here, the worst are shown.\n"
        if len(text.encode()) <= limit_bytes or kept <= 1:
            return text
        kept = int(kept * min(0.9, max(limit_bytes, 1) / len(text.encode())))


def _title(v: Verdict) -> str:
    return f"{v.subject.workload} {v.subject.arm} {v.metric.title}"


def _sentence(v: Verdict) -> str:
    change = f" {verdict_report.change_text(v.ratio())}" if v.shift else ""
    return f"{v.outcome}{change} against {v.subject.base}" + (f": {v.doubt or v.why}" if v.doubt or v.why else "")


def escaped(text: str, property: bool = False) -> str:
    """As GitHub's workflow commands ask for."""
    for raw, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), *(((":", "%3A"), (",", "%2C")) if property else ())):
        text = text.replace(raw, code)
    return text
