"""Freed memory stays in the process, so that a step does not take its pages anew."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.support.commands import ENVIRONMENT

FAULTS = """
import resource, sys, torch
from cbbench.machine.malloc import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()

def work():
    [torch.ones(5_000_000) for _ in range(6)]  # 20 MB each, freed at once

for _ in range(3):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


# glibc begins with this threshold and moves it as blocks are freed; how far depends on what happens to lie at the heap's end.
# Held where it begins, every large block is the system's own, whatever else the process did.
HELD = {"MALLOC_MMAP_THRESHOLD_": "131072"}


def faults(how: str) -> int:
    asked = [sys.executable, "-c", FAULTS, how]
    return int(subprocess.run(asked, env=ENVIRONMENT | HELD, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_blocks_that_were_freed_are_used_again_without_a_page_fault() -> None:
    assert faults("kept") < faults("as it comes") / 10


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from cbbench.machine import malloc

    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", ""))
    assert malloc.keep_freed_memory() is False
