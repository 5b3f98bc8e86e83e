"""transformers' own `generate`, in static batches."""

from __future__ import annotations

from typing import Any

import torch

from cbbench.clock import RealClock
from cbbench.peers.base import Answer, Peer, until_end
from cbbench.request import Request


class HfGenerate(Peer):
    """`model.generate` on left-padded batches of max_num_seqs requests in order of arrival, each run to its longest.

    Cost: rows that have ended are computed until the last one has; a batch begins when all its requests have arrived.
    Tokens count for a request until its own length or end-of-sequence, and are stamped as each step ends.
    Use when: you want to know what batching costs without any engine (the usual way to write it).
    """

    def start(self, requests: list[Request]) -> None:
        self.setting.model()

    def run(self, requests: list[Request], clock: RealClock) -> list[Answer]:
        order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_s)
        answers: list[Answer] = []
        size = self.setting.max_num_seqs
        for first in range(0, len(order), size):
            batch = order[first : first + size]
            clock.wait_until(max(requests[index].arrival_s for index in batch))
            answers += self._batch(batch, requests, clock)
        return answers

    @torch.inference_mode()
    def _batch(self, batch: list[int], requests: list[Request], clock: RealClock) -> list[Answer]:
        from transformers import GenerationConfig, StoppingCriteria

        model = self.setting.model()
        chosen = [requests[index] for index in batch]
        width = max(len(request.prompt_ids) for request in chosen)
        rows = [[0] * (width - len(request.prompt_ids)) + list(request.prompt_ids) for request in chosen]
        mask = [[0] * (width - len(request.prompt_ids)) + [1] * len(request.prompt_ids) for request in chosen]
        stops = model.eos_ids and not any(request.ignore_eos for request in chosen)
        config = GenerationConfig(
            max_new_tokens=max(request.max_new_tokens for request in chosen), do_sample=False, num_beams=1, pad_token_id=0,
            eos_token_id=sorted(model.eos_ids) if stops else None,
        )  # fmt: skip
        stamps: list[float] = []

        class Stamp(StoppingCriteria):  # type: ignore[misc]
            """Sees every step, ends none."""

            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
                stamps.append(clock.now())
                return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

        begun_s = clock.now()
        ids = torch.tensor(rows, device=model.device)
        output: Any = model.hf.generate(
            ids, attention_mask=torch.tensor(mask, device=model.device), generation_config=config, stopping_criteria=[Stamp()]
        )
        answers = []
        for index, request, line in zip(batch, chosen, output[:, width:].tolist(), strict=True):
            own = until_end(line, request, model.eos_ids)
            times = stamps[: len(own)]
            answers.append(Answer(index, own, times, begun_s, times[-1] if times else None))
        return answers
