"""What runs have shown, in the sentences that a person would say: which arm is best at what, by how much against which
baseline, whether the tokens are right, and where the waste went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cbbench.compare import findings
from cbbench.compare.contenders import Contender, Ratio, contenders, named, ratio
from cbbench.results.base_arm import natural_base
from cbbench.results.store import Run
from cbbench.results.units import Format, number, percent, seconds


@dataclass(frozen=True)
class Goal:
    """What an arm can be best at."""

    key: str
    best: str
    show: Format
    higher_is_better: bool = False
    is_time: bool = True

    def winner(self, able: list[Contender]) -> Contender | None:
        having = [one for one in able if self.value(one) is not None]
        choose = max if self.higher_is_better else min
        return choose(having, key=lambda one: self.value(one) or 0.0, default=None)

    def value(self, one: Contender) -> float | None:
        return one.middle(self.key, quiet_only=self.is_time)

    def text(self, one: Contender) -> str:
        value = self.value(one)
        return "-" if value is None else self.show(value)

    def ratio(self, one: Contender, other: Contender) -> Ratio | None:
        return ratio(one, other, self.key, self.is_time)


THROUGHPUT = Goal("output_tok_per_s", "is the fastest", lambda value: f"{number(value)} output tok/s", higher_is_better=True)
STEPS = Goal("steps", "needs the fewest steps", number, is_time=False)
LATENCIES = (
    Goal("ttft_s_p50", "has the lowest median TTFT", seconds),
    Goal("itl_s_p99", "has the shortest gaps between tokens (ITL p99)", seconds),
)


def answer(runs: list[Run], base: str | None = None) -> list[str]:
    """`runs` computed the same thing (see `tables.groups`); `base` is the label of the arm that the others are held against. The
    first sentence is the answer, or says why there is none."""
    everyone = contenders(runs)
    entered = [one for one in everyone if one.cells and not one.twin_of]
    most = max((one.most("requests_completed") for one in entered), default=0)
    able = [one for one in entered if most and one.most("requests_completed") == most and one.is_right]
    label = base or natural_base([one.arm for one in able])
    against = next((one for one in able if one.arm["label"] == label), None)
    outcomes = [
        *findings.wrong(entered), *_best(able, against), *findings.twins(everyone), *findings.tokens(able, len(able) == len(entered)),
        *findings.waste(_counted(able), against), *findings.incomplete(everyone, most),
        *findings.unfinished(runs), *findings.versions(runs),
    ]  # fmt: skip
    return outcomes or ["There is no whole round."]


def _counted(able: list[Contender]) -> Contender | None:
    """Of the arms whose steps are known the best one, to hold the baseline's waste against."""
    own = [one for one in able if not one.is_peer]
    return THROUGHPUT.winner(own) or STEPS.winner(own) if own and own[0].has_times else STEPS.winner(own)


def _best(able: list[Contender], base: Contender | None) -> Iterator[str]:
    """The winner of throughput, or of steps where times say nothing; and who wins a latency."""
    has_times = any(one.has_times and one.quiet for one in able)
    if able and able[0].has_times and not has_times:
        taken = max((cell.metrics.get("others_cpu_frac") or 0.0 for one in able for cell in one.cells), default=0.0)
        yield f"Other processes took up to {percent(taken)} of the machine in every round: times are not comparable, counts are."
    goal = THROUGHPUT if has_times else STEPS
    best = goal.winner(able)
    if best is None:
        return
    yield _alone(best, goal) if len(able) == 1 else _first(best, able, base, goal)
    if has_times and len(able) > 1:
        yield from (text for latency in LATENCIES if (text := _latency(able, best, base, latency)))
        yield from _beside_peer(able, best)


def _alone(one: Contender, goal: Goal) -> str:
    if not goal.is_time:
        return f"{one.name} needs {goal.text(one)} steps."
    return f"{one.name} makes {goal.text(one)} ({one.spread(goal.key)}), TTFT p50 {LATENCIES[0].text(one)}."


def _first(best: Contender, able: list[Contender], base: Contender | None, goal: Goal) -> str:
    said = f"{best.name} {goal.best} of {len(able)} arms: {goal.text(best)}"
    if base is None:
        return f"{said}. The baseline has no whole round to compare with."
    leader = best
    if best is base:
        leader = goal.winner([one for one in able if one is not base]) or base
    found = goal.ratio(leader, base)
    if best is base and (found is None or found.is_clear or not goal.is_time):
        return f"{said}; the baseline is not beaten" + (f", {leader.name} comes next with {goal.text(leader)}." if found else ".")
    if found is None:
        return f"{said}; {base.name} has no time to compare with."
    if not goal.is_time:
        return f"{said}, against {goal.text(base)} of {base.name} ({1 / found.value:.2f} x as many).{_alike(best, able, goal)}"
    if not found.is_clear:
        behind = f"{base.name} ({goal.text(base)})"
        return f"No arm is clearly faster than {behind}: the best other, {leader.name}, has {found}."
    return f"{said}, {found.value:.2f} x {base.name} ({found.spread}).{_alike(best, able, goal)}"


def _alike(best: Contender, able: list[Contender], goal: Goal) -> str:
    """Who may be as good."""
    ratios = [(one, goal.ratio(one, best)) for one in able if one is not best]
    alike = [one.name for one, found in ratios if found is not None and not found.is_clear]
    if not alike:
        return ""
    verb = "is" if len(alike) == 1 else "are"
    return f" {named(alike)} {f'{verb} not clearly slower' if goal.is_time else f'{verb} even with it'}."


def _latency(able: list[Contender], fastest: Contender, base: Contender | None, goal: Goal) -> str | None:
    """Who has the best latency: always said of the first one, of others where another arm than the fastest has it."""
    winner = goal.winner(able)
    if winner is None or goal.value(fastest) is None:
        return None
    found = goal.ratio(winner, fastest)
    if winner is fastest or found is None or not found.is_clear:
        if goal is not LATENCIES[0] or base is None or base is fastest or goal.value(base) is None:
            return None
        return f"Its median TTFT is {goal.text(fastest)}, against {goal.text(base)} of {base.name}."
    return f"{winner.name} {goal.best}: {goal.text(winner)}, against {goal.text(fastest)} of {fastest.name}."


def _beside_peer(able: list[Contender], best: Contender) -> Iterator[str]:
    """The best other system beside the best arm, whichever of them won."""
    own = THROUGHPUT.winner([one for one in able if not one.is_peer])
    peer = THROUGHPUT.winner([one for one in able if one.is_peer])
    if own is None or peer is None or (found := THROUGHPUT.ratio(own, peer)) is None:
        return
    if best is own:
        first = f"Of the other systems {peer.name} is the fastest ({THROUGHPUT.text(peer)})"
        yield f"{first}: {own.name} has {found.value:.2f} x its throughput ({found.spread})."
    else:
        yield f"Of the arms of cbbench {own.name} is the fastest: {THROUGHPUT.text(own)}, {found.value:.2f} x {peer.name} ({found.spread})."
