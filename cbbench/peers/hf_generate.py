"""transformers' own `generate`, in static batches."""

from __future__ import annotations

from typing import Any

import torch

from cbbench.clock import RealClock
from cbbench.peers.base import Answer, Peer, until_end
from cbbench.request import Request


class HfGenerate(Peer):
    """`model.generate` on left-padded batches: up to max_num_seqs of the requests that have arrived, each batch run to its longest.

    Cost: rows that have ended are computed until the last one has; requests that arrive later wait for the whole batch.
    Tokens count for a request until its own length or end-of-sequence, and are stamped as each step ends.
    Use when: you want to know what batching costs without any engine (the usual way to write it).
    """

    def start(self, requests: list[Request]) -> None:
        self.setting.model()

    def run(self, requests: list[Request], clock: RealClock) -> list[Answer]:
        """Batches as the scheduler `static` makes them."""
        waiting = sorted(range(len(requests)), key=lambda index: requests[index].arrival_s)
        answers: list[Answer] = []
        while waiting:
            clock.wait_until(requests[waiting[0]].arrival_s)
            now_s = clock.now()
            batch = [index for index in waiting[: self.setting.max_num_seqs] if requests[index].arrival_s <= now_s]
            waiting = waiting[len(batch) :]
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
        longest = max(request.max_new_tokens for request in chosen)
        config = GenerationConfig(max_new_tokens=longest, do_sample=False, num_beams=1, pad_token_id=0, eos_token_id=None)
        stamps: list[float] = []

        class OwnEnds(StoppingCriteria):  # type: ignore[misc]
            """Sees every step, and ends each row by its own request: at its length, or its end-of-sequence token where that counts."""

            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
                newest = input_ids[:, -1].tolist()  # waits for the device
                stamps.append(clock.now())
                ended = [
                    len(stamps) >= request.max_new_tokens or (not request.ignore_eos and token in model.eos_ids)
                    for request, token in zip(chosen, newest, strict=True)
                ]
                return torch.tensor(ended, device=input_ids.device)

        begun_s = clock.now()
        ids = torch.tensor(rows, device=model.device)
        output: Any = model.hf.generate(
            ids, attention_mask=torch.tensor(mask, device=model.device), generation_config=config, stopping_criteria=[OwnEnds()]
        )
        answers = []
        for index, request, line in zip(batch, chosen, output[:, width:].tolist(), strict=True):
            own = until_end(line, request, model.eos_ids)
            times = stamps[: len(own)]
            answers.append(Answer(index, own, times, begun_s, times[-1] if times else None))
        return answers
