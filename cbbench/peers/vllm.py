"""vLLM's offline engine."""

from __future__ import annotations

from cbbench.peers._child import ChildPeer


class Vllm(ChildPeer):
    """The engine behind vLLM's `LLM` class, stepped: paged cache, chunked prefill, no prefix cache, eager.

    Cost: a process of its own; on a CPU it takes memory for its cache in whole GiB.
    Use when: you want to know what the engine that made these ideas common does with the same requests.
    """

    module = "vllm"
    child = "with_vllm.py"
    how_to_get = "make peer-vllm, then --peer-python vllm=.venv-vllm/bin/python (its CPU build needs an environment of its own)"
