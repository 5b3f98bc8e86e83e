"""The hardware and the versions that a timing belongs to."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("cbbench", "torch", "transformers", "numba", "numpy", "flash-attn")


def fingerprint(device: str, num_threads: int) -> dict[str, Any]:
    """The hardware that a timing belongs to; nothing that changes between two runs on it."""
    gpu = None
    if device == "cuda":
        import torch

        gpu = torch.cuda.get_device_name()
    return {
        "cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30), "gpu": gpu, "os": platform.system(), "threads": num_threads,
    }  # fmt: skip


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
