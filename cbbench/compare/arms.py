"""Arms against a base: within one run round by round, or a run against a stored baseline.

The rows that must be there come from the configuration, not from what was found, so nothing that is missing passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from cbbench.compare.baselines import Baseline, describe_key, key_of
from cbbench.compare.verdicts import Outcome, Subject, Values, Verdict, judge_exact, judge_history, judge_paired, middle
from cbbench.compare.work import arm_work, changed_defaults, difference, work_difference
from cbbench.errors import UserError
from cbbench.results.base_arm import natural_base
from cbbench.results.compared_metrics import BUSY_FRAC, DEFAULT_MARGIN, EXACT, METRICS, TIMED, Metric
from cbbench.results.store import Cell, Run

ONE_PROCESS = "all rounds ran in one process, whose luck counts as a difference (run --isolate, or --allow process)"
SAME_AMOUNT = 0.01  # of output tokens: in half precision rounding ends requests earlier or later


@dataclass(frozen=True)
class Rules:
    """How to judge. `allow_machine` labels results of other machines instead of refusing them; `allow_process` lets a gate rely on
    rounds that shared one process."""

    margins: dict[str, float] = field(default_factory=dict)
    allow_machine: bool = False
    allow_process: bool = False

    def margin(self, metric: Metric) -> float:
        return self.margins.get(metric.key, self.margins.get("", DEFAULT_MARGIN))


def compare_within(run: Run, base_label: str | None, rules: Rules) -> list[Verdict]:
    """Every arm against the base: the one named, else the natural one (marked, static, or the first). An arm of another
    revision, or a copy, is the base of the arm that it is another of."""
    arms = {arm["label"]: arm for arm in run.info["arms"]}
    if base_label is not None and base_label not in arms:
        raise UserError(f"--baseline {base_label}: {run.name} has no such arm; it has {', '.join(arms)}")
    base = base_label or natural_base(run.info["arms"])
    verdicts: list[Verdict] = []
    twins = {arm["base_of"]: label for label, arm in arms.items() if arm.get("base_of")}
    for label, arm in arms.items():
        other = None if arm.get("base_of") else twins.get(label, base)
        subject = Subject(run.info["workload"]["name"], run.name, label, other or label, same_strategy=label in twins)
        cells = _cells(run, label)
        if other is not None and other != label:
            verdicts += _of_pair(subject, run, _cells(run, other), cells, rules)
        verdicts += _wrong(subject, cells)  # of a base too
    return verdicts


def _cells(run: Run, label: str) -> list[Cell]:
    return [cell for cell in run.cells if cell.arm == label and not cell.interrupted]


def _of_pair(subject: Subject, run: Run, base: list[Cell], new: list[Cell], rules: Rules) -> list[Verdict]:
    if absent := _absent(subject, {subject.base: base, subject.arm: new}):
        return absent
    found: list[Verdict | None] = []
    if subject.same_strategy:
        found += [judge_exact(subject, metric, values(base, metric), values(new, metric)) for metric in exact_metrics(run.info)]
    quiet_base, quiet_new = (_quiet(cells) for cells in (base, new))
    for metric in TIMED if run.info["model"]["digest"] else []:
        if quiet_base.keys() & quiet_new.keys():
            sides = [[*quiet.values()] for quiet in (quiet_base, quiet_new)]
            found.append(judge_paired(subject, metric, values(sides[0], metric), values(sides[1], metric), rules.margin(metric)))
        elif any(cell.metrics.get(metric.key) is not None for cell in new):
            why = f"other processes took more than {BUSY_FRAC:.0%} of the machine in every round"
            found.append(Verdict(subject, metric, Outcome.not_comparable, why, values(base, metric), values(new, metric)))
    tokens = METRICS["output_tokens"]
    judged = _unlike_outputs([v for v in found if v is not None], run.info, values(base, tokens), values(new, tokens))
    num_busy = len({cell.round for cell in (*base, *new)} - (quiet_base.keys() & quiet_new.keys()))
    judged = [replace(v, why=f"{v.why}; {num_busy} more on a busy machine") if num_busy and v.is_open and v.why else v for v in judged]
    if run.info.get("isolated") or rules.allow_process:
        return judged
    return [v if v.metric.exact else replace(v, doubt=ONE_PROCESS) for v in judged]


def _quiet(cells: list[Cell]) -> dict[int, Cell]:
    """The rounds in which other processes left the machine alone, as far as is known: only those say something about time."""
    return {cell.round: cell for cell in cells if (cell.metrics.get("others_cpu_frac") or 0.0) <= BUSY_FRAC}


def _wrong(subject: Subject, cells: list[Cell]) -> list[Verdict]:
    """Tokens that are not those of plain greedy generation: no speed makes up for that."""
    worst = max((cell.metrics.get("exact_wrong") or 0 for cell in cells), default=0)
    return [Verdict(subject, METRICS["exact_wrong"], Outcome.regressed, f"{worst} requests with wrong tokens")] if worst else []


def _unlike_outputs(verdicts: list[Verdict], info: dict[str, Any], base: Values, new: Values) -> list[Verdict]:
    """Who produced other amounts of tokens did other work: its times say nothing. In half precision, where rounding may end a
    request earlier or later, neither do its counts, and its times do up to a small difference."""
    counts = [sorted({n for n in tokens.values() if n is not None}) for tokens in (base, new)]
    if counts[0] == counts[1]:
        return verdicts
    why = f"{counts[1]} output tokens against {counts[0]}"
    if info["model"]["dtype"] != "float32":
        before, after = middle(base), middle(new)
        verdicts = [v for v in verdicts if not v.metric.exact]
        if before and after and abs(after - before) <= SAME_AMOUNT * before:
            return [replace(v, why=f"{v.why}; {why}" if v.why else why) for v in verdicts]
    return [v if v.metric.exact else Verdict(v.subject, v.metric, Outcome.not_comparable, why, v.base_values, v.values) for v in verdicts]


def values(cells: list[Cell], metric: Metric) -> Values:
    return {cell.round: cell.metrics.get(metric.key) for cell in cells if cell.metrics}


def exact_metrics(info: dict[str, Any]) -> list[Metric]:
    """The counts that the strategies alone decide: none with arrivals on a real clock, where time decides who shares a
    batch; the tokens and their number only in float32, where they do not depend on the batch."""
    if info["workload"].get("arrivals") != "offline" and info["model"]["digest"]:
        return []
    return [metric for metric in EXACT if metric.key not in ("output_digest", "output_tokens") or info["model"]["dtype"] == "float32"]


def _absent(subject: Subject, sides: dict[str, list[Cell]]) -> list[Verdict]:
    """One verdict for a pair of which a side failed or is not there."""
    headline = METRICS["output_tok_per_s"]
    for label, cells in sides.items():
        if failed := next((cell.failed for cell in cells if cell.failed), None):
            return [Verdict(subject, headline, Outcome.failed, f"{label}: {failed}")]
        if not cells:
            return [Verdict(subject, headline, Outcome.missing, f"{label}: no whole round")]
    return []


def compare_with_baseline(run: Run, baseline: Baseline, rules: Rules) -> list[Verdict]:
    """Each arm against the same arm as stored: exact metrics with the newest run, times with all runs of this machine."""
    verdicts: list[Verdict] = []
    arms = {arm["label"]: arm for arm in run.info["arms"]}
    for label in dict.fromkeys([*baseline.arms, *arms]):
        subject = Subject(run.info["workload"]["name"], run.name, label, baseline.name, same_strategy=True)
        cells = _cells(run, label)
        verdicts += _wrong(subject, cells)
        if label not in baseline.arms:
            verdicts.append(Verdict(subject, METRICS["output_tok_per_s"], Outcome.missing, "not in the baseline"))
        elif absent := _absent(subject, {label: cells}):
            verdicts += absent
        elif why := _no_measure(baseline, label, arm_work(run.info, arms[label])):
            verdicts.append(Verdict(subject, METRICS["output_tok_per_s"], Outcome.not_comparable, why))
        else:
            said = changed_defaults(baseline.arms[label], arm_work(run.info, arms[label]))
            verdicts += _said(_against_stored(subject, run, baseline, label, cells, rules), said)
    return verdicts


def _no_measure(baseline: Baseline, label: str, work: dict[str, Any]) -> str:
    """Why a baseline says nothing about an arm."""
    if label in baseline.broken:
        return f"the base one: {baseline.broken[label]}"
    differing = work_difference(baseline.arms[label], work)
    return f"other work: {differing}" if differing else ""


def without_baseline(run: Run, name: str) -> list[Verdict]:
    """A run of whose workload the baseline has nothing."""
    why = f"{name} has no {describe_key(key_of(run.info), run.info['model']['name'])}"
    subjects = [Subject(run.info["workload"]["name"], run.name, arm["label"], name, True) for arm in run.info["arms"]]
    return [Verdict(subject, METRICS["output_tok_per_s"], Outcome.missing, why) for subject in subjects]


def _against_stored(subject: Subject, run: Run, baseline: Baseline, label: str, cells: list[Cell], rules: Rules) -> list[Verdict]:
    found: list[Verdict | None] = [
        judge_exact(subject, metric, baseline.newest(label, metric.key), values(cells, metric)) for metric in exact_metrics(run.info)
    ]
    machine = run.info["machine"]
    differing = "" if baseline.knows(machine) else difference(baseline.machine, machine)
    for metric in TIMED if run.info["model"]["digest"] else []:
        before, now = baseline.newest(label, metric.key), values(cells, metric)
        if not any(before.values()):
            continue
        if differing and not rules.allow_machine:
            found.append(Verdict(subject, metric, Outcome.not_comparable, f"other machine: {differing}", before, now))
            continue
        history, num_longer = baseline.history(label, metric.key, None if rules.allow_machine else machine, len(now))
        found.append(judge_history(subject, metric, history, before, now, rules.margin(metric), num_longer))
    judged = _said([v for v in found if v is not None], f"other machine: {differing}" if differing else "", of_times=True)
    return _unlike_outputs(judged, run.info, baseline.newest(label, "output_tokens"), values(cells, METRICS["output_tokens"]))


def _said(verdicts: list[Verdict], label: str, of_times: bool = False) -> list[Verdict]:
    """The verdicts with something to say beside each; `of_times`: not beside counts."""
    if not label:
        return verdicts
    silent = [v.why == label or (of_times and v.metric.exact) for v in verdicts]
    return [v if quiet else replace(v, why=f"{v.why}; {label}" if v.why else label) for v, quiet in zip(verdicts, silent, strict=True)]


def only(verdicts: list[Verdict], kind: str) -> list[Verdict]:
    """Those on counts (`exact`) or on times (`times`). A row for an arm that is not there at all is no more a time than a count."""
    return [v for v in verdicts if (v.metric.exact is (kind == "exact")) or not (v.values or v.base_values or v.metric.exact)]
