"""What this machine is, and how much memory a round took."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from cbbench.errors import UserError

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


class PeakMemory:
    """Highest memory between two moments: CUDA's own count, else the peak of resident memory less its level before.

    On Linux the kernel's high-water mark is reset at the start; where that is not possible the value is None."""

    def __init__(self, device: str, pid: int | None = os.getpid()) -> None:
        """`pid`: whose memory; None where that is out of reach. CUDA counts for this process alone."""
        self.device = device
        self.pid = None if device == "cuda" and pid != os.getpid() else pid
        self.before: int | None = None

    def start(self) -> None:
        if self.pid is None:
            return
        if self.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return
        try:
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")
            self.before = psutil.Process(self.pid).memory_info().rss
        except OSError:
            self.before = None

    def grown_bytes(self) -> int | None:
        if self.before is None:
            return None
        if self.device == "cuda":
            import torch

            return torch.cuda.max_memory_allocated() - self.before
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        peak_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        return max(peak_kib * 1024 - self.before, 0)


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
