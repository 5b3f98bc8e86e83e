"""numba as our kernels use it: how they are compiled, where that is kept, and on how many threads they run."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from cbbench.folders import cache_dir

_PACKAGE = Path(__file__).parent.parent


def _kept() -> Path:
    """numba takes what it compiled to be good until the file of that function changes; what that calls lies in others too."""
    sources = sorted([*_PACKAGE.glob("kernels/*.py"), *_PACKAGE.glob("attention/_*.py")])
    name = f"kernels-{hashlib.sha256(b''.join(path.read_bytes() for path in sources)).hexdigest()[:16]}"
    beside = _PACKAGE / "__pycache__"
    return (beside if os.access(beside, os.W_OK) else cache_dir()) / name


if not numba.config.CACHE_DIR:  # NUMBA_CACHE_DIR
    numba.config.CACHE_DIR = str(_kept())

kernel = partial(numba.njit, parallel=True, cache=True, boundscheck=False, nogil=True)  # its `prange` loops run on all threads
inlined = partial(numba.njit, cache=True, boundscheck=False, inline="always")  # of a kernel


def share_threads() -> int:
    """Lets the next kernel run on as many threads as torch has, and returns how many that are."""
    threads = torch.get_num_threads()
    shares: int = min(threads, numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != shares:
        numba.set_num_threads(shares)
        torch.set_num_threads(threads)  # both are out of one OpenMP, and numba's first call sets it to all cores
    return shares


def rows_of(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """[..., D] as the next kernel takes it, [T, D] without gaps; that kernel then runs on as many threads as torch has."""
    share_threads()
    return x.reshape(-1, x.shape[-1]).contiguous().numpy()
