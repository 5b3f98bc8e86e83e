"""OpenVINO GenAI's continuous batching."""

from __future__ import annotations

from cbbench.peers._child import ChildPeer
from cbbench.strategy import StrictOptions


class OpenVino(ChildPeer):
    """`ContinuousBatchingPipeline` of openvino-genai: paged cache, prompts in chunks, the model as one compiled graph.

    Equal weights in the run's dtype: optimum-intel, in the same environment, exports the model once and it is kept in the cache.
    Cost: a process of its own; blocks of 32; a step's tokens are known when the step returns.
    Use when: you want to know how far Python and separate operations are from one graph on this CPU.
    """

    module = "openvino_genai"
    child = "with_openvino.py"
    how_to_get = "make peer-openvino, then --peer-python openvino=.venv-openvino/bin/python"

    @classmethod
    def cannot_run(cls, device: str, dtype: str, options: StrictOptions) -> str | None:
        if device != "cpu":
            return f"this adapter runs OpenVINO on a CPU, not on {device}"
        return super().cannot_run(device, dtype, options)
