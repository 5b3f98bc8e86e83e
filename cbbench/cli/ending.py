"""How a command ends: its exit code, one line where it failed, and nothing where whoever read its output has left."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from cbbench.errors import UserError
from cbbench.report.printable import printable

BAD_INPUT, INTERNAL, NOT_WRITTEN, INTERRUPTED = 2, 70, 74, 130  # 70 and 74 as in sysexits.h
DEBUG = "CBBENCH_DEBUG"


class Left(SystemExit):
    """Whoever read the output has left, as rich noticed."""


def leave(self: object) -> None:
    """What rich does then; by itself it would end with 1, which is kept for a rule that fired."""
    raise Left(0)


@contextmanager
def decided(code: int) -> Iterator[None]:
    """What a command shows or writes once it is known how it ends. A pipe that was closed takes nothing away from that; a file that
    cannot be written turns a success into NOT_WRITTEN and nothing else."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, Left):
        _leave_stdout()
    except OSError as error:
        _leave_stdout()
        _say(_reason(error))
        code = code or NOT_WRITTEN
    raise typer.Exit(code)


@contextmanager
def one_line() -> Iterator[None]:
    """Every way a command can fail, as one line and an exit code of its own. `CBBENCH_DEBUG=1` shows a traceback instead."""
    try:
        with _flushed():
            yield
    except UserError as error:
        _say(str(error))
        raise typer.Exit(BAD_INPUT) from error
    except KeyboardInterrupt as interrupt:
        _say("interrupted")
        raise typer.Exit(INTERRUPTED) from interrupt
    except (BrokenPipeError, Left) as error:
        _leave_stdout()
        raise typer.Exit(0) from error
    except (typer.Exit, typer.Abort):
        raise
    except OSError as error:
        _fail(error, _reason(error), NOT_WRITTEN)
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own, about the words of the command
            raise
        first = str(error).splitlines()[0] if str(error) else "no message"
        said = f"internal error, a fault of cbbench: {type(error).__name__}: {first} ({DEBUG}=1 shows where)"
        _fail(error, said, INTERNAL)


def end(code: str | int | None) -> NoReturn:
    """The very end: typer has printed all it has to say."""
    try:
        sys.stdout.flush()
    except OSError:
        _leave_stdout()
    sys.exit(code)


@contextmanager
def _flushed() -> Iterator[None]:
    """A full disk or a closed pipe is noticed here, not when Python has ended."""
    try:
        yield
    except typer.Exit as ended:
        with decided(ended.exit_code):
            pass
    sys.stdout.flush()


def _fail(error: Exception, said: str, code: int) -> NoReturn:
    if os.environ.get(DEBUG):
        raise error
    _leave_stdout()
    _say(said)
    raise typer.Exit(code) from error


def _reason(error: OSError) -> str:
    return f"{error.filename or 'the output'}: {error.strerror or error}"


def _say(text: str) -> None:
    print(f"cbbench: {printable(text)}", file=sys.stderr)


def _leave_stdout() -> None:
    """What is left in its buffer would be written, and fail again, as Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
