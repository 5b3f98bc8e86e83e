"""Stand-ins for openvino-genai, optimum-intel and vLLM: the calls that our scripts make, written to $FAKE_NOTES.

Files of a folder for PYTHONPATH, by name.
"""

from __future__ import annotations

# Both stand-ins know what follows each prompt and go on behind an end of sequence that they are not told of.
COMMON = """
import json, os

known = json.loads(open(os.environ["FAKE_KNOWN"]).read())

def note(**said):
    with open(os.environ["FAKE_NOTES"], "a") as notes:
        notes.write(json.dumps(said) + "\\n")

def answer(prompt, length, stops):
    tokens = known[str(prompt)][:length]
    ends = [place for place, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0] + 1] if ends else tokens
"""
FILES = {
    "common_fake.py": COMMON,
    "openvino.py": "class Tensor:\n    def __init__(self, array):\n        self.rows = array.tolist()\n",
    "optimum/intel.py": """
import os
from pathlib import Path
from common_fake import note

class OVModelForCausalLM:
    @classmethod
    def from_pretrained(cls, source, **how):
        note(exported=how, has_weights=(Path(source) / "model.safetensors").exists())
        return cls()

    def save_pretrained(self, folder):
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / "model.xml").write_text("half")
        if os.environ.get("FAKE_FAILS"):
            raise OSError("no space left")
        (Path(folder) / "model.xml").write_text("whole")
""",
    "openvino_genai.py": """
import enum, os
from pathlib import Path
from common_fake import answer, note

__version__ = "2026.4"
GenerationStatus = enum.Enum("GenerationStatus", "RUNNING FINISHED IGNORED")

class Plain:
    def __init__(self, **given):
        vars(self).update(given)

SchedulerConfig = GenerationConfig = GenerationOutput = Plain

class Handle:
    def __init__(self, tokens):
        self.tokens, self.unread = tokens, []

    def can_read(self):
        return bool(self.unread)

    def read(self):
        ids, self.unread = self.unread, []
        return {0: GenerationOutput(generated_ids=ids)}

    def get_status(self):
        if os.environ.get("FAKE_IGNORES"):
            return GenerationStatus.IGNORED
        return GenerationStatus.RUNNING if self.tokens else GenerationStatus.FINISHED

class ContinuousBatchingPipeline:
    def __init__(self, folder, scheduling, device, hints):
        note(scheduling=vars(scheduling), device=device, hints=hints, model=(Path(folder) / "model.xml").read_text())
        self.handles = []

    def add_request(self, number, ids, config):
        stops = getattr(config, "stop_token_ids", set())
        note(number=number, config={**vars(config), "stop_token_ids": sorted(stops)})
        (prompt,) = ids.rows
        self.handles.append(Handle(answer(prompt, config.max_new_tokens, stops)))
        return self.handles[-1]

    def step(self):
        for handle in self.handles:
            handle.unread += handle.tokens[:2]
            handle.tokens = handle.tokens[2:]
""",
    "torch.py": "from common_fake import note\n\ndef set_num_threads(number):\n    note(threads=number)\n",
    "vllm/sampling_params.py": "import enum\nRequestOutputKind = enum.Enum('RequestOutputKind', 'CUMULATIVE DELTA')\n",
    "vllm/platforms.py": "class current_platform:\n    device_type = 'cpu'\n",
    "vllm/__init__.py": """
import os
from common_fake import answer, note
from vllm.sampling_params import RequestOutputKind

__version__ = "0.32"

class Plain:
    def __init__(self, **given):
        vars(self).update(given)

SamplingParams = Plain

class Core:
    def __init__(self):
        self.left = {}

    def add_request(self, number, prompt, params):
        assert params.output_kind is RequestOutputKind.DELTA
        stops = params.stop_token_ids or []
        note(number=number, config={**vars(params), "output_kind": "delta"})
        self.left[number] = answer(prompt["prompt_token_ids"], params.max_tokens, stops)

    def step(self):
        for number in list(self.left):
            ids, self.left[number] = self.left[number][:2], self.left[number][2:]
            yield Plain(request_id=number, outputs=[Plain(token_ids=tuple(ids))], finished=not self.left[number])
            if not self.left[number]:
                del self.left[number]

    def reset_prefix_cache(self):
        note(forgot=True)
        return not os.environ.get("FAKE_KEEPS")

class LLM:
    def __init__(self, **how):
        note(llm=how, gib=os.environ["VLLM_CPU_KVCACHE_SPACE"], in_process=os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0")
        self.llm_engine = Core()
""",
}
