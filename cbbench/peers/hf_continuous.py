"""transformers' own continuous batching."""

from __future__ import annotations

from cbbench.clock import RealClock
from cbbench.peers.base import Answer, Peer
from cbbench.request import Request
from cbbench.strategy import StrictOptions

NO_EOS = -1  # transformers' word for: it never ends by itself


class HfContinuous(Peer):
    """The manager behind `model.generate_batch`: paged cache, packed tokens, requests enter and leave every step, equal prefixes are
    shared. Each round begins with an empty cache.

    Cost: how many tokens share a step is its own choice; its pages are larger than ours; it has a thread of its own, and a
    request is handed over when it arrives. Its cache is made before the clock runs.
    Use when: you want the same idea as continuous+varlen+paged from the library itself.
    """

    @classmethod
    def cannot_run(cls, device: str, dtype: str, options: StrictOptions) -> str | None:
        try:
            from transformers.generation import ContinuousBatchingConfig  # noqa: F401
        except ImportError:
            return "this transformers has no continuous batching: pip install -U transformers"
        return None

    def start(self, requests: list[Request]) -> None:
        from transformers import GenerationConfig
        from transformers.generation import ContinuousBatchingConfig

        model = self.setting.model()
        longest = max((r.max_kv_tokens for r in requests), default=1) + 1
        page = 256
        blocks = self.setting.max_num_seqs * -(-longest // page) + 1
        batching = ContinuousBatchingConfig(
            page_size=page, num_blocks=blocks, max_requests_per_batch=self.setting.max_num_seqs,
            max_batch_tokens=max(512, max((len(r.prompt_ids) for r in requests), default=1)), use_cuda_graph=None,
        )  # fmt: skip
        config = GenerationConfig(do_sample=False, pad_token_id=0, eos_token_id=NO_EOS, max_new_tokens=1)
        self.manager = model.hf.init_continuous_batching(config, batching)
        self.manager.start()

    def forget_prompts(self) -> None:
        """Blocks of prompts that have ended stay in its cache for prompts that begin alike."""
        with self.manager.pause():
            self.manager.batch_processor.cache.evict_cached_blocks()

    def run(self, requests: list[Request], clock: RealClock) -> list[Answer]:
        model = self.setting.model()
        eos = sorted(model.eos_ids) or NO_EOS
        order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_s)
        answers: list[Answer] = []
        for index in order:
            request = requests[index]
            clock.wait_until(request.arrival_s)
            end = NO_EOS if request.ignore_eos else eos
            self.manager.add_request(
                list(request.prompt_ids), str(index), max_new_tokens=request.max_new_tokens, record_timestamps=True, eos_token_id=end
            )
        while len(answers) < len(requests):
            result = self.manager.get_result(timeout=1)
            if result is None:
                if not self.manager.is_running():
                    raise RuntimeError("transformers' continuous batching stopped by itself")
                continue
            if not result.is_finished():
                continue
            index = int(result.request_id)
            if result.error:
                answers.append(Answer(index, failed=str(result.error).splitlines()[0]))
                continue
            times = [clock.at(stamp) for stamp in result.timestamps or []] or None
            begun = clock.at(result.lifespan[0]) if result.lifespan[0] > 0 else None
            answers.append(Answer(index, list(result.generated_tokens), times, begun, clock.at(result.lifespan[1])))
        return answers

    def stop(self) -> None:
        if hasattr(self, "manager"):
            self.manager.stop(block=True)
