"""Where cbbench keeps what it makes once: models, references, rates, compiled kernels, logs of peers."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from cbbench.errors import UserError


def cache_dir() -> Path:
    """$CBBENCH_CACHE, else the platform's cache directory for cbbench. Raises UserError where that is a file."""
    found = Path(os.environ.get("CBBENCH_CACHE") or platformdirs.user_cache_dir("cbbench"))
    for place in (found, *found.parents):
        if place.exists():
            if not place.is_dir():
                raise UserError(f"the cache folder {found} cannot be made: {place} is a file; set CBBENCH_CACHE to a folder")
            break
    return found
