"""Looking into a run while it goes on: a deterministic clock, hooks around each step, what the records say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cbbench.clock import Clock
from cbbench.engine.executor import Executor, StepResult
from cbbench.engine.loop import Engine
from cbbench.model.model import Model
from cbbench.plan import Plan, Row
from cbbench.request import Request, Sequence
from tests.support.engines import build

Before = Callable[[Engine, Plan], None]
After = Callable[[Engine, Plan, StepResult], None]


class TickClock:
    """Every look at it costs `tick_s`, so that arrivals fall between steps, at the same ones on any machine."""

    def __init__(self, tick_s: float = 0.001) -> None:
        self.tick_s = tick_s
        self.now_s = 0.0

    def now(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def wait_until(self, moment_s: float) -> None:
        self.now_s = max(self.now_s, moment_s)


class Watched:
    """An executor that calls `before` and `after` around each step of another one."""

    def __init__(self, engine: Engine, before: Before | None, after: After | None) -> None:
        self.engine = engine
        self.inner: Executor = engine.executor
        self.max_positions = self.inner.max_positions
        self.before = before
        self.after = after

    def step(self, plan: Plan, clock: Clock) -> StepResult:
        if self.before:
            self.before(self.engine, plan)
        result = self.inner.step(plan, clock)
        if self.after:
            self.after(self.engine, plan, result)
        return result

    def said_eos(self, sequence: Sequence) -> bool:
        return self.inner.said_eos(sequence)


def run_watched(
    model: Model, requests: list[Request], *arm: str, before: Before | None = None, after: After | None = None, **options: Any
) -> Engine:
    """`engines.run` with hooks around each step."""
    engine = build(model, requests, *arm, **options)
    engine.executor = Watched(engine, before, after)
    with model.serving():
        engine.run(requests)
    return engine


def forget_on_release(engine: Engine) -> list[int]:
    """From now on memory that a sequence gives back is filled with NaN at once; returns the list of those that did."""
    cache: Any = engine.cache
    release, forgotten = cache.release, []

    def forget(sequence: Sequence) -> None:
        written = cache.written[sequence.index]
        view = cache.view([Row(sequence, written, 0)])
        table = view.entries
        entries = [int(table.first_RM[0, p // table.run]) + p % table.run for p in range(written)]
        release(sequence)
        cache.pool.keys[:, entries] = torch.nan
        cache.pool.values[:, entries] = torch.nan
        forgotten.append(sequence.index)

    cache.release = forget
    return forgotten


def split_chunks(engine: Engine) -> int:
    """How many rows computed a part of a prompt and left the rest to a later step."""
    rows = [(engine.sequences[index], start + new) for step in engine.steps for _, index, start, new in step.rows if new]
    return sum(stop < sequence.num_prompt for sequence, stop in rows)


def queued_for_memory(engine: Engine) -> bool:
    """Some step ran with an empty slot although a request waited: there was no room for it."""
    return any(step.waiting and step.live + step.held < engine.scheduler.max_num_seqs for step in engine.steps)


def first_step_of(engine: Engine, index: int) -> int:
    """The step, counted from 1, in which a sequence first computed something."""
    return 1 + next(step.step for step in engine.steps if any(row[1] == index and row[3] for row in step.rows))


def last_step_of(engine: Engine, index: int) -> int:
    """The step, counted from 1, in which a sequence last computed something."""
    return 1 + max(step.step for step in engine.steps if any(row[1] == index and row[3] for row in step.rows))


def nan_seen(model: Model) -> tuple[list[bool], list[Any]]:
    """Whether each output of a layer and of the head holds a NaN, and the hooks that find out."""
    seen: list[bool] = []

    def look(_: object, __: object, output: Any) -> None:
        seen.append(bool((output[0] if isinstance(output, tuple) else output).isnan().any()))

    parts = [*model.hf.model.layers, model.hf.get_output_embeddings()]
    return seen, [part.register_forward_hook(look) for part in parts]
