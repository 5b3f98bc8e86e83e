"""The hardware and the versions that a timing belongs to."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

VECTOR_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve")
PACKAGES = ("cbbench", "torch", "transformers", "numba", "numpy", "flash-attn")


def fingerprint(device: str, num_threads: int) -> dict[str, Any]:
    """The hardware that a timing belongs to; nothing that changes between two runs on it."""
    gpu = None
    if device == "cuda":
        import torch

        gpu = torch.cuda.get_device_name()
    return {
        "cpu": cpu_name(), **cpu_details(), "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30), "gpu": gpu, "os": platform.system(), "threads": num_threads,
    }  # fmt: skip


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def cpu_details() -> dict[str, Any]:
    """What tells CPUs of one marketing name apart: family and model, vector instructions, the last cache. None where unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = {*said.get("flags", said.get("Features", "")).split()}
    model = "/".join(said[key] for key in ("cpu family", "model", "stepping") if key in said) or None
    return {"cpu_model": model, "vector": " ".join(name for name in VECTOR_FLAGS if name in flags) or None, "cache": last_cache()}


def last_cache(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> str | None:
    """The size of the last-level cache, like 32768K. (/proc/cpuinfo has it on Intel, but the second level on AMD.)"""
    sizes = [(index.name, (index / "size").read_text().strip()) for index in caches.glob("index*") if (index / "size").is_file()]
    return max(sizes)[1] if sizes else None


def code() -> dict[str, Any]:
    """The commit of cbbench's own code and whether files differ from it; None where it does not run from a git checkout."""

    root = Path(__file__).parents[2]

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD") if (root / ".git").exists() else None
    return {"commit": commit, "dirty": None if commit is None else bool(git("status", "--porcelain", "--", "cbbench"))}


def threading() -> dict[str, Any]:
    """How many threads torch and our kernels have at this moment, and by which library the kernels' run, where they have run."""
    import torch

    numba: Any = sys.modules.get("numba")
    layer = kernels = None
    if numba is not None:
        with suppress(ValueError):  # no parallel kernel has run
            layer, kernels = numba.threading_layer(), numba.get_num_threads()
    return {"torch": torch.get_num_threads(), "kernels": kernels, "layer": layer}


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
