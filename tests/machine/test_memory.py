"""The peak of memory is at least what was written, in a process that has just begun and in one that has freed much before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cbbench.machine.memory import PeakMemory
from cbbench.results.metrics import peak_memory
from tests.support.commands import ENVIRONMENT
from tests.support.places import ROOT

MEASURE = """
import sys, torch
from cbbench.machine.malloc import keep_freed_memory
from cbbench.machine.memory import PeakMemory
keep_freed_memory()
def work(mib):
    blocks = [torch.ones(1 << 18) for _ in range(mib)]  # a MiB each, on the heap
    return len(blocks)
if sys.argv[1] == "warmed-up": work(200)
peak = PeakMemory("cpu")
peak.start()
work(40)
print(peak.grown_bytes())
"""


@pytest.mark.parametrize("process", ["fresh", "warmed-up"])
def test_known_allocations_are_seen(process: str) -> None:
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", MEASURE, process], env=environment, capture_output=True, text=True, check=True)
    if done.stdout.strip() == "None":
        pytest.skip("this kernel does not reset its high-water mark")
    a_page_or_two = 64 << 10  # the kernel counts pages in batches
    assert (40 << 20) - a_page_or_two <= int(done.stdout) < 60 << 20


def test_nothing_is_known_before_it_is_started() -> None:
    assert PeakMemory("cpu").grown_bytes() is None


def test_less_than_what_was_written_is_a_dash() -> None:
    steps = [{"kv": [(0, 16, 10), (1, 16, 3)]}, {"kv": [(1, 16, 4)]}]
    for seen, shown in ((None, None), (1299, None), (1300, 1300), (5000, 5000)):
        assert peak_memory(steps, {"peak_memory_bytes": seen, "bytes_per_token": 100}) == shown
    assert peak_memory([], {"peak_memory_bytes": 7}) == 7, "of a peer nothing is known to have been written"
