"""vLLM's offline engine."""

from __future__ import annotations

from pydantic import Field

from cbbench.peers._child import ChildOptions, ChildPeer


class Vllm(ChildPeer):
    """The engine behind vLLM's `LLM` class, stepped, with its own defaults: paged cache, chunked prefill, prefix cache (empty at the
    start of each round), compiled model.

    Cost: a process of its own; it compiles when it starts; on a CPU it takes memory for its cache in whole GiB.
    Use when: you want to know what the engine that made these ideas common does with the same requests.
    """

    class Options(ChildOptions):
        eager: bool = Field(False, description="run the model as it is, not compiled (enforce_eager)")
        prefix_cache: bool = Field(True, description="requests share the keys and values of equal beginnings")

    options: Options
    module = "vllm"
    child = "with_vllm.py"
    how_to_get = "make peer-vllm, then --peer-python vllm=.venv-vllm/bin/python (its CPU build needs an environment of its own)"
