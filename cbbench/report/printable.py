"""Text of a file, safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """Control characters, halves of characters and the like as escapes: what a file says must not steer a terminal, and
    a table of text cannot hold it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
