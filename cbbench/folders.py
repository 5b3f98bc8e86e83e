"""Where cbbench keeps what it makes once: models, references, rates, compiled kernels, logs of peers."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """$CBBENCH_CACHE, else the platform's cache directory for cbbench."""
    return Path(os.environ.get("CBBENCH_CACHE") or platformdirs.user_cache_dir("cbbench"))
