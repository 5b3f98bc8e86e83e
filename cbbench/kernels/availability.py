"""Whether our kernels can run in this process, and why not. Imports numba only when it is asked."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec


@cache
def missing() -> str | None:
    """Why our kernels cannot run here; None where they can."""
    if find_spec("numba") is None:
        return "numba is not installed: pip install numba"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "NUMBA_DISABLE_JIT is set"
    try:
        from cbbench.kernels import vectors

        return None if vectors.HAS_FMA else "this CPU has no fused multiply-add"
    except Exception as error:  # a numba that does not go with this Python, this LLVM or this CPU
        return f"numba cannot be used: {type(error).__name__}: {error}"
