"""No network in tests; one thread, since tiny models gain nothing from two and suffer badly when a machine is shared."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of every process that a test starts; two that spin on two cores hold each other up
os.environ.setdefault("CBBENCH_CHECK", "1")  # kernels with every index checked
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; what is printed to a pipe is not cut

import pytest
import torch

from cbbench.model.model import Model
from tests.support.commands import recorded_workload
from tests.support.engines import tiny

torch.set_num_threads(1)
# A shell starts its background jobs with SIGINT ignored, and a child would inherit that: tests of an interrupt would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model() -> Model:
    """The tiny Llama that most tests run on."""
    return tiny()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workload with the reference tokens of a tiny random model."""
    with recorded_workload(tmp_path_factory.mktemp("recorded")) as path:
        yield path
