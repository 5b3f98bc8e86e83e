"""The files of a trace: found in folders, unpacked, and hashed as they are read."""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from cbbench.errors import UserError


def files_of(paths: list[Path], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Files as named; of a folder those with the suffixes, by name."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(p for p in path.iterdir() if p.is_file() and p.name.removesuffix(".gz").endswith(suffixes) and p.name[0] != ".")
        if not inside:
            raise UserError(f"{path}: no {' or '.join(suffixes)} in this folder")
        yield from inside


class HashedFile(io.RawIOBase):
    """A file that knows what was read of it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.sha = hashlib.sha256()
        self.num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        size = self._file.readinto(view) or 0
        self.sha.update(view[:size])
        self.num_bytes += size
        return size

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()


def opened(path: Path) -> tuple[BinaryIO, HashedFile]:
    try:
        raw = HashedFile(path)
    except OSError as error:
        raise UserError(f"{path}: {'no such file' if isinstance(error, FileNotFoundError) else error.strerror}") from error
    buffered = io.BufferedReader(raw, 1 << 18)
    return cast(BinaryIO, gzip.GzipFile(fileobj=buffered) if path.suffix == ".gz" else buffered), raw
