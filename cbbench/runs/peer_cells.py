"""A peer run once, in the place of an arm."""

from __future__ import annotations

import gc
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbbench.clock import RealClock
from cbbench.machine.busy import OthersTime
from cbbench.machine.memory import PeakMemory
from cbbench.peers.base import Answer, Peer, Setting, describe_answer, shortfall
from cbbench.request import Request, refusal
from cbbench.results.store import write_records
from cbbench.runs.config import PeerArm
from cbbench.runs.job import Prepared
from cbbench.runs.runner import Progress, judged, warmup_requests

if TYPE_CHECKING:
    from cbbench.model.model import Model

SAID_FAILURES = 3  # of a round; the others are in its records


class PeerCells:
    """Runs each peer in this process (which may start others), on the model as it comes."""

    def __init__(self, prepared: Prepared, progress: Progress) -> None:
        self.prepared = prepared
        self.progress = progress
        self._model: Model | None = None

    def model(self) -> Model:
        """A second copy, with nothing fused or packed: what a peer's users run."""
        if self._model is None:
            from cbbench.model.load import load

            job = self.prepared.job
            self._model = load(job.model, job.dtype, job.device, job.model_dir, job.trust_remote_code, prepare=False)
        return self._model

    def run(self, arm: PeerArm, folder: Path) -> dict[str, Any]:
        job = self.prepared.job
        model = self.prepared.model
        assert model is not None  # job.py refuses peers without one
        refused = {i: why for i, request in enumerate(self.prepared.requests) if (why := refusal(request, model.max_positions))}
        places = [i for i in range(len(self.prepared.requests)) if i not in refused]
        requests = [self.prepared.requests[i] for i in places]
        setting = Setting(
            arm.max_num_seqs, job.dtype, job.device, job.num_threads, self.model, model.digest, model.eos_ids, model.spec.bytes_per_token
        )  # fmt: skip
        peer: Peer = arm.chosen.cls(setting, arm.chosen.options)  # type: ignore[call-arg,assignment]
        peak = None
        try:
            if peer.is_in_process:
                self.model()  # loaded before the level is taken, as an arm's is
                gc.collect()
                peak = PeakMemory(job.device)
            peer.start(requests)
            for _ in range(job.warmup):
                peer.run(strangers(warmup_requests(requests, arm.max_num_seqs)), RealClock())
            peer.forget_prompts()
            gc.collect()
            if peak is not None:
                peak.start()
            own = peer.processes()
            others = OthersTime(own)
            answers = peer.run(requests, RealClock())
            cell: dict[str, Any] = {"peer": arm.chosen.name, "peer_version": peer.version, "interrupted": False}
            cell["others_cpu_frac"] = others.frac() if peer.is_in_process or own else None
            cell["notes"] = list(peer.notes)
            cell["peak_memory_bytes"] = None if peak is None else peak.grown_bytes()
        finally:
            peer.stop()
        answers = [_whole(answer, requests[answer.index], model.eos_ids) for answer in answers]
        self._say_failures(arm.label, answers, requests)
        answers = [replace(answer, index=places[answer.index]) for answer in answers]
        lines = _lines(self.prepared.requests, [*answers, *(Answer(i, failed=why) for i, why in refused.items())], refused)
        return write_records(folder, cell, [], judged(self.prepared, lines, self.progress))

    def _say_failures(self, label: str, answers: list[Answer], requests: list[Request]) -> None:
        failed = [answer for answer in answers if answer.failed]
        for answer in failed[:SAID_FAILURES]:
            self.progress.say(f"{label}: request {requests[answer.index].id} failed: {answer.failed}")
        if len(failed) > SAID_FAILURES:
            self.progress.say(f"{label}: {len(failed) - SAID_FAILURES} more failed; requests.jsonl of the round says why")


def _whole(answer: Answer, request: Request, eos_ids: frozenset[int]) -> Answer:
    """Failed where it is not what was asked, whichever system gave it."""
    return replace(answer, failed=answer.failed or shortfall(answer, request, eos_ids))


def strangers(requests: list[Request]) -> list[Request]:
    """Requests of the same lengths and tokens whose prompts begin otherwise: a peer that keeps what it has computed of a prompt must
    not find the measured ones there. (An arm starts with an empty cache.)"""
    return [replace(request, prompt_ids=tuple(reversed(list(request.prompt_ids))), output_ids=None) for request in requests]


def _lines(requests: list[Request], answers: list[Answer], refused: Collection[int]) -> list[dict[str, Any]]:
    """Records in the order of the requests. What no arm could run is refused for a peer, too: it is not asked."""
    lines = [describe_answer(answer, requests[answer.index]) for answer in sorted(answers, key=lambda a: a.index)]
    return [line | {"state": "refused"} if line["index"] in refused else line for line in lines]
