"""ContinuousBatchingPipeline of openvino-genai. The model is exported once, by optimum-intel in this environment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from serve import serve


def export(source: str, target: Path) -> None:
    """A Hugging Face folder -> OpenVINO's model at equal weights (not the 8 bits that optimum takes for large ones)."""
    from optimum.intel import OVModelForCausalLM

    half = target.with_name(f".{target.name}")
    OVModelForCausalLM.from_pretrained(source, export=True, compile=False, load_in_8bit=False).save_pretrained(half)
    half.rename(target)


class Engine:
    def __init__(self, setting: dict[str, Any]) -> None:
        folder = Path(setting["model_dir"]).with_name("openvino")
        if not folder.exists():
            export(setting["model_dir"], folder)
        scheduling = genai.SchedulerConfig()
        scheduling.max_num_seqs = setting["max_num_seqs"]
        scheduling.max_num_batched_tokens = setting["max_num_batched_tokens"]
        scheduling.num_kv_blocks = -(-setting["kv_tokens"] // BLOCK_SIZE) + setting["max_num_seqs"]
        scheduling.enable_prefix_caching = False
        precision = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[setting["dtype"]]
        hints = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision, "INFERENCE_NUM_THREADS": setting["num_threads"]}
        self.pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduling, "CPU", hints)
        self.eos_ids = setting["eos_ids"]
        self.handles: dict[int, Any] = {}
        self.next_id = 0  # never used twice, also over several runs

    def add(self, index: int, request: dict[str, Any]) -> None:
        config = genai.GenerationConfig(max_new_tokens=request["max_new_tokens"], do_sample=False, ignore_eos=request["ignore_eos"])
        if not request["ignore_eos"]:
            config.stop_token_ids = set(self.eos_ids)
            config.include_stop_str_in_output = True
        ids = openvino.Tensor(np.array([request["prompt_ids"]], np.int64))
        self.handles[index] = self.pipeline.add_request(self.next_id, ids, config)
        self.next_id += 1

    def step(self) -> Iterator[tuple[int, list[int], bool]]:
        self.pipeline.step()
        for index, handle in list(self.handles.items()):
            tokens = [token for output in handle.read().values() for token in output.generated_ids] if handle.can_read() else []
            status = handle.get_status()
            if status not in (genai.GenerationStatus.RUNNING, genai.GenerationStatus.FINISHED):
                raise RuntimeError(f"request {index} was dropped ({status}): no room in its cache")  # what it has is no answer
            has_ended = status == genai.GenerationStatus.FINISHED
            if has_ended:
                del self.handles[index]
            if tokens or has_ended:
                yield index, tokens, has_ended

    def forget_prompts(self) -> None:
        pass  # it has no prefix cache


BLOCK_SIZE = 32  # of OpenVINO's cache on a CPU

serve(lambda setting: (Engine(setting), genai.__version__))
