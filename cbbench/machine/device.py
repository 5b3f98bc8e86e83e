"""Which device and how many threads a run gets."""

from __future__ import annotations

import os

from cbbench.errors import UserError


def choose_device(device: str) -> str:
    """`auto` takes cuda where there is one. Raises UserError for a device that this machine lacks."""
    import torch

    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return "cuda" if available["cuda"] else "cpu"
    if not available.get(device, False):
        here = ", ".join(name for name, there in available.items() if there)
        raise UserError(f"--device {device}: not on this machine, which has {here}")
    return device


def default_threads() -> int:
    import torch

    return torch.get_num_threads()


def check_threads(num_threads: int) -> int:
    """Raises UserError for more threads than this process has cores: they would wait for each other at every barrier."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if num_threads > cores:
        raise UserError(f"--threads {num_threads}: this machine has {cores} cores")
    return num_threads
