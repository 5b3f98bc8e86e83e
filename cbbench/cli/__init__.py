"""The command line. `main` is the entry point."""

from cbbench.cli.app import main

__all__ = ["main"]
