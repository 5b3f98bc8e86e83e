"""What schedulers, attentions and KV caches have in common: a name, options, a docstring in three parts.

The name is the file's name. The docstring's first paragraph says what the strategy does on the path; `Cost:` what it
wastes; `Use when:` who should pick it. `cbbench list` prints them.
"""

from __future__ import annotations

from typing import ClassVar

from cbbench.strict import Strict


class StrictOptions(Strict):
    """Options of a strategy."""


class Strategy:
    """Base of the three strategy kinds. A strategy nests its own `Options` where it has any."""

    Options: ClassVar[type[StrictOptions]] = StrictOptions

    @classmethod
    def name(cls) -> str:
        """The file's name: `cbbench/kvcache/paged.py` is `paged`."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def cannot_run(cls, device: str, dtype: str, options: StrictOptions) -> str | None:
        """Why this strategy cannot run on a device type and dtype; None where it can."""
        return None
