"""Files and folders that are there whole or not at all: written beside their place and renamed into it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of `path` when the block ends well. Two processes do not meet in it."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield half
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def filled_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The folder, filled if it is not there yet. Where another process was faster, its copy is as good."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill(half)
        half.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return folder
