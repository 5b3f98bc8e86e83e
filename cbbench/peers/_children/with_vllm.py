"""vLLM's engine, stepped in this process."""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process: its memory is measured here
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from collections.abc import Iterator
from typing import Any

from serve import serve


class Engine:
    def __init__(self, setting: dict[str, Any]) -> None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(max(1, -(-setting["kv_bytes"] // 2**30))))  # GiB, whole ones only
        import torch
        from vllm import LLM
        from vllm.platforms import current_platform

        if current_platform.device_type != setting["device"]:
            raise RuntimeError(f"this vllm is a build for {current_platform.device_type}, the run is on {setting['device']}")
        llm = LLM(
            model=setting["model_dir"], skip_tokenizer_init=True, dtype=setting["dtype"], max_num_seqs=setting["max_num_seqs"],
            max_num_batched_tokens=max(setting["max_num_batched_tokens"], setting["longest"]), max_model_len=setting["longest"],
            enforce_eager=setting["options"]["eager"], enable_prefix_caching=setting["options"]["prefix_cache"],
            generation_config="vllm", disable_log_stats=True,
        )  # fmt: skip
        torch.set_num_threads(setting["num_threads"])
        self.engine = llm.llm_engine
        self.eos_ids = setting["eos_ids"]
        self.index_of: dict[str, int] = {}
        self.next_id = 0

    def add(self, index: int, request: dict[str, Any]) -> None:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0.0, max_tokens=request["max_new_tokens"], ignore_eos=request["ignore_eos"], detokenize=False,
            stop_token_ids=None if request["ignore_eos"] else self.eos_ids, output_kind=self._delta(),
        )  # fmt: skip
        name = str(self.next_id)
        self.next_id += 1
        self.index_of[name] = index
        self.engine.add_request(name, {"prompt_token_ids": request["prompt_ids"]}, params)

    def _delta(self) -> Any:
        from vllm.sampling_params import RequestOutputKind

        return RequestOutputKind.DELTA

    def step(self) -> Iterator[tuple[int, list[int], bool]]:
        for output in self.engine.step():
            yield self.index_of[output.request_id], list(output.outputs[0].token_ids), output.finished

    def forget_prompts(self) -> None:
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vllm did not empty its prefix cache")


def make(setting: dict[str, Any]) -> tuple[Engine, str]:
    import vllm

    return Engine(setting), vllm.__version__


serve(make)
