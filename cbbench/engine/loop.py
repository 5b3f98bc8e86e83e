"""The loop: the only owner of the order of events and of the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from cbbench.clock import Clock
from cbbench.engine.arrival_queue import ArrivalQueue
from cbbench.engine.contract import check_plan
from cbbench.engine.executor import Executor, StepResult
from cbbench.engine.record import RequestRecord, RunRecord, Slots, StepRecord, describe_pass, describe_rows
from cbbench.errors import CacheError, StuckError
from cbbench.kvcache.base import KVCache
from cbbench.plan import Plan
from cbbench.request import Request, Sequence, State, refusal
from cbbench.schedulers.base import Scheduler

LONGEST_WAIT_S = 600.0
MOST_WAITS = 1000


class CacheRoom:
    """The cache as schedulers see it (`plan.Room`); keeps what a preemption means for a sequence in one place."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.preempted: list[int] = []  # sequence indices, of the plan in the making

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        is_new = sequence.index not in self.cache.written
        has_room = self.cache.reserve(sequence, num_tokens)
        if has_room and is_new:
            sequence.num_computed = self.cache.written[sequence.index]  # what the cache knows already
        return has_room

    def preempt(self, sequence: Sequence) -> None:
        self.cache.release(sequence)
        sequence.state = State.WAITING
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        self.preempted.append(sequence.index)

    def release(self, sequence: Sequence) -> None:
        self.cache.release(sequence)


class Engine:
    """Runs requests to their end on one scheduler, cache and executor (which holds the attention). Used once.

    `check` verifies the cache and the queues after every step. Raises StuckError when nothing moves any more.
    """

    def __init__(self, scheduler: Scheduler, cache: KVCache, executor: Executor, clock: Clock, check: bool = False) -> None:
        self.scheduler = scheduler
        self.cache = cache
        self.executor = executor
        self.clock = clock
        self.checks = check
        self.room = CacheRoom(cache)
        self.sequences: list[Sequence] = []
        self.arrivals = ArrivalQueue([])
        self.submitted_s: dict[int, float] = {}
        self.to_cancel: set[str] = set()
        self.slots = Slots()
        self.steps: list[StepRecord] = []
        self.idle_steps = 0  # steps since a sequence last reached a position it had not reached before
        self.idle_waits = 0  # empty plans in a row that asked to be woken
        self.high_water: dict[int, int] = {}
        self.mark_s = 0.0  # where the step in progress began
        self.num_output_tokens = 0
        self.on_step: Callable[[], None] = lambda: None  # whoever watches

    def run(self, requests: list[Request]) -> None:
        """Returns when every request has ended with a reason; see `record`."""
        self.sequences = [Sequence(request, index) for index, request in enumerate(requests)]
        self.arrivals = ArrivalQueue(self.sequences)
        while self.arrivals.next_s is not None or self.scheduler.has_work:
            self.take_arrivals()
            self.take_cancellations()
            plan = self.scheduler.plan(self.clock.now(), self.room)
            if self.checks:
                check_plan(plan, self.scheduler, self.cache, len(self.steps))
            if not plan.live:
                self.wait(plan)
                continue
            self.begin(plan)
            result = self.executor.step(plan, self.clock)
            ended = self.take_tokens(plan, result)
            self.write_record(plan, result)
            for sequence in ended:
                self.scheduler.finish(sequence, self.room)
                self.arrivals.ended(sequence, sequence.token_times_s[-1])
            self.on_step()
            if self.checks:
                self.check()
        if self.cache.written:
            raise CacheError(f"{self.scheduler.name()} left the memory of sequences {sorted(self.cache.written)} reserved")

    def cancel(self, request_id: str) -> None:
        """The request leaves before the next step, with the tokens it has. Unknown and ended ones are ignored."""
        self.to_cancel.add(request_id)

    def take_arrivals(self) -> None:
        now_s = self.clock.now()
        while sequence := self.arrivals.pop(now_s):
            self.submitted_s[sequence.index] = now_s
            sequence.reason = self.refusal(sequence)
            if sequence.reason:
                sequence.state = State.REFUSED
                self.arrivals.ended(sequence, now_s)
            else:
                self.scheduler.add(sequence)

    def refusal(self, sequence: Sequence) -> str | None:
        """The one rule of admission: what can never run is refused at once, with both numbers."""
        return refusal(sequence.request, self.executor.max_positions) or self.cache.refusal(sequence)

    def take_cancellations(self) -> None:
        for sequence in self.sequences if self.to_cancel else []:
            if sequence.request.id not in self.to_cancel or sequence.is_over:
                continue
            if not self.arrivals.remove(sequence):
                self.scheduler.cancel(sequence, self.room)
            sequence.state, sequence.reason = State.CANCELLED, "cancelled"
            self.arrivals.ended(sequence, self.clock.now())
        self.to_cancel.clear()

    def wait(self, plan: Plan) -> None:
        """Until the next arrival, or the moment the scheduler named."""
        moments = [m for m in (self.arrivals.next_s, plan.wake_s) if m is not None]
        if plan.wake_s is not None and self.scheduler.has_work:
            self.check_wake(plan.wake_s)
        if moments:
            self.clock.wait_until(min(moments))
            self.mark_s = self.clock.now()
        elif self.scheduler.has_work:
            raise StuckError(f"{self.scheduler.name()} plans nothing although there is work:\n{self.dump()}")

    def check_wake(self, wake_s: float) -> None:
        """Whoever has work and asks to be woken must name a moment that is not far away, and then do something."""
        self.idle_waits += 1
        if wake_s - self.clock.now() <= LONGEST_WAIT_S and self.idle_waits <= MOST_WAITS:
            return  # NaN is not
        who = f"{type(self.scheduler).__name__}.plan, step {len(self.steps)}"
        when = f"at {wake_s:.6g} s, now is {self.clock.now():.6g} s"
        raise StuckError(f"{who}: there is work, and it only asks to be woken ({when}, {self.idle_waits} times in a row):\n{self.dump()}")

    def begin(self, plan: Plan) -> None:
        self.idle_waits = 0
        now_s = self.clock.now()
        for row in plan.live:
            row.sequence.state = State.RUNNING
            if row.sequence.first_scheduled_s is None:
                row.sequence.first_scheduled_s = now_s
                row.sequence.cached_tokens = row.start

    def take_tokens(self, plan: Plan, result: StepResult) -> list[Sequence]:
        """Books what the step computed; returns the sequences it ended."""
        now_s = self.clock.now()
        progress = False
        for row in plan.live:
            self.cache.advance(row)
            row.sequence.num_computed = row.stop
            reached = self.high_water.get(row.sequence.index, 0)
            row.sequence.recomputed_tokens += max(min(row.stop, reached) - row.start, 0)
            if row.stop > reached:
                self.high_water[row.sequence.index] = row.stop
                progress = True
        self.guard(progress)
        ended = []
        self.num_output_tokens += len(result.tokens)
        for sequence, token in result.tokens:
            sequence.output_ids.append(token)
            sequence.token_times_s.append(now_s)
            if self.executor.said_eos(sequence) and not sequence.request.ignore_eos:
                sequence.reason = "eos"
            elif len(sequence.output_ids) == sequence.request.max_new_tokens:
                sequence.reason = "length"
            if sequence.reason:
                sequence.state = State.FINISHED
                ended.append(sequence)
        return ended

    def guard(self, progress: bool) -> None:
        """Recomputing what was preempted takes a bounded number of steps; more than that is a livelock."""
        self.idle_steps = 0 if progress else self.idle_steps + 1
        if self.idle_steps > 100 + 2 * sum(s.num_tokens for s in self.scheduler.running):
            raise StuckError(f"{self.scheduler.name()} computes nothing new for {self.idle_steps} steps:\n{self.dump()}")

    def write_record(self, plan: Plan, result: StepResult) -> None:
        end_s = self.clock.now()
        scheduler = self.scheduler
        sharing = self.cache.sharing()
        seats = self.slots.seat(scheduler.running)
        slot_of = {sequence.index: seat for sequence, seat in zip(scheduler.running, seats, strict=True)}
        num_held = sum(row.is_held for row in plan.rows)
        self.steps.append(
            StepRecord(
                step=len(self.steps), start_s=self.mark_s, end_s=end_s, model_s=result.model_s,
                slots=scheduler.num_slots, live=len(scheduler.running) - num_held, held=num_held, waiting=len(scheduler.waiting),
                passes=[describe_pass(p) for p in result.passes], rows=describe_rows(plan, slot_of), kv=self.cache.resident(),
                free_tokens=self.cache.free_tokens(),
                external_tokens=self.cache.external_tokens(scheduler.waiting[0]) if scheduler.waiting else 0,
                copied_bytes=self.cache.copied_bytes,
                copied_tokens=self.cache.copied_layer_tokens // self.cache.spec.num_layers, preempted=self.room.preempted,
                **asdict(sharing),
            )
        )  # fmt: skip
        self.mark_s, self.cache.copied_bytes, self.cache.copied_layer_tokens, self.room.preempted = end_s, 0, 0, []

    def record(self, interrupted: bool = False) -> RunRecord:
        ideal = self.cache.ideal_tokens
        requests = [RequestRecord.of(s, self.submitted_s.get(s.index), ideal.get(s.index)) for s in self.sequences]
        return RunRecord(self.steps, requests, interrupted)

    def check(self) -> None:
        """Every unfinished sequence is in exactly one queue, and the cache's own invariants hold."""
        self.cache.check()
        queued = [s.index for s in [*self.scheduler.waiting, *self.scheduler.running, *self.arrivals]]
        expected = {s.index for s in self.sequences if not s.is_over}
        if len(queued) != len(set(queued)) or not expected <= set(queued):
            raise CacheError(f"queues hold {sorted(queued)}, unfinished are {sorted(expected)}")

    def dump(self) -> str:
        lines = [
            f"  {s.index} {s.request.id}: {s.state}, {s.num_computed} of {s.num_tokens} computed" for s in self.sequences if not s.is_over
        ]
        return "\n".join([f"  free {self.cache.free_tokens()} tokens", *lines[:20]])
