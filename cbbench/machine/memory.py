"""How much memory a round took."""

from __future__ import annotations

from pathlib import Path

import psutil

from cbbench.machine.malloc import give_back_freed_memory

PROCESS = Path("/proc/self")


class PeakMemory:
    """Highest memory of this process above a level that is taken first: CUDA's own count, else resident memory.

    What the process keeps of freed memory is given back before either is read: a round that took its memory from there would
    seem to take none. On Linux the kernel's high-water mark is reset at `start`; where that is not possible the value is None."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.level = self._now()
        self.is_watched = False

    def _now(self) -> int:
        if self.device == "cuda":
            import torch

            return torch.cuda.memory_allocated()
        give_back_freed_memory()
        return int(psutil.Process().memory_info().rss)

    def start(self) -> None:
        """From now on the highest counts."""
        if self.device == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
            self.is_watched = True
            return
        give_back_freed_memory()
        try:
            (PROCESS / "clear_refs").write_text("5")
            self.is_watched = True
        except OSError:
            self.is_watched = False

    def grown_bytes(self) -> int | None:
        """The highest since `start`, above the level."""
        if not self.is_watched:
            return None
        if self.device == "cuda":
            import torch

            return torch.cuda.max_memory_allocated() - self.level
        lines = (PROCESS / "status").read_text().splitlines()
        peak_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        return max(peak_kib * 1024 - self.level, 0)
