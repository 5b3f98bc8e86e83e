"""numba as our kernels use it: how they are compiled, where that is kept, and on how many threads they run."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from cbbench.folders import cache_dir

_PACKAGE = Path(__file__).parent.parent
CHECKED = os.environ.get("CBBENCH_CHECK", "0") not in ("", "0")  # every index into an array is checked; slower
OLD_S = 30 * 86400  # what was compiled for other code and not used since is deleted


def _kept() -> Path | None:
    """Where compiled kernels are kept; None where nothing can be written. numba takes what it compiled to be good until the file of
    that function changes; what that calls lies in others too, so the folder's name is of all of them."""
    sources = sorted([*_PACKAGE.glob("kernels/*.py"), *_PACKAGE.glob("attention/_*.py")])
    name = f"kernels-{hashlib.sha256(b''.join(path.read_bytes() for path in sources)).hexdigest()[:16]}{'-checked' if CHECKED else ''}"
    for parent in (_PACKAGE / "__pycache__", cache_dir()):
        with suppress(OSError):
            (parent / name).mkdir(parents=True, exist_ok=True)
            if os.access(parent / name, os.W_OK):
                os.utime(parent / name)
                _delete_old(parent)
                return parent / name
    return None


def _delete_old(parent: Path) -> None:
    used_s = {other: other.stat().st_mtime for other in parent.glob("kernels-*")}
    for other, moment_s in used_s.items():
        if max(used_s.values()) - moment_s > OLD_S:
            shutil.rmtree(other, ignore_errors=True)


if not numba.config.CACHE_DIR:  # NUMBA_CACHE_DIR
    numba.config.CACHE_DIR = str(_kept() or "")

IS_KEPT = bool(numba.config.CACHE_DIR)
kernel = partial(numba.njit, parallel=True, cache=IS_KEPT, boundscheck=CHECKED, nogil=True)  # its `prange` loops run on all threads
inlined = partial(numba.njit, cache=IS_KEPT, boundscheck=CHECKED, inline="always")  # of a kernel


def must_compile() -> bool:
    """Whether most of the kernels are not compiled here yet: their first calls take some seconds each."""
    return not IS_KEPT or not any(Path(numba.config.CACHE_DIR).rglob("*.before-*.nbi"))


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


def check_width(x: torch.Tensor, width: int) -> None:
    """Raises ValueError for what a kernel would read beside: float32 rows of `width` on a CPU are what it takes."""
    if x.shape[-1] != width or x.dtype is not torch.float32 or x.device.type != "cpu":
        raise ValueError(f"a kernel for float32 rows of {width} on a CPU was given {x.dtype} {[*x.shape]} on {x.device.type}")
