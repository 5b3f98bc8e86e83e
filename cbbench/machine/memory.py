"""How much memory a round took."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


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
