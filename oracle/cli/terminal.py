"""Where output goes: people's to stdout or stderr, documents to a file or stdout."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from ..errors import BadInput


class PipeClosed(Exception):
    """Nobody reads stdout any more.

    Not an OSError: typer ends the process with 1 on those, which here means that a fault was found.
    """


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise PipeClosed


def console(*, stderr: bool = False) -> Console:
    """A console that never highlights or interprets markup: names and reasons come from outside."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    """Text to stdout as it is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise PipeClosed from None


def close_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's last flush does not fail."""
    try:
        target = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, target)
    os.close(nowhere)


def open_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr (``>&-``) ones that lead nowhere.

    Otherwise the next file it opened would get the number of the missing one, and what is printed would land in it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 -- stays open


def leave(code: int) -> NoReturn:
    """End the program. What it did is done, so that torch need not be taken apart, which takes a second of a core.

    Not where another thread is at work, or a profiler wants to see the end.
    """
    if threading.active_count() == 1 and sys.gettrace() is None and sys.getprofile() is None:
        atexit._run_exitfuncs()
        _flush_printf()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            sys.exit(code)
        os._exit(code)
    sys.exit(code)


def _flush_printf() -> None:
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).fflush(None)


@contextmanager
def clean_stdout() -> Iterator[None]:
    """What a kernel writes to stdout, by print or by descriptor, goes to stderr: it must not get into a document."""
    sys.stdout.flush()
    try:
        real = sys.stdout.fileno() == 1
    except (OSError, ValueError):
        real = False
    kept = os.dup(1) if real else None
    if real:
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            _flush_printf()
            os.dup2(kept, 1)
            os.close(kept)


def check_target(option: str, target: str | None) -> None:
    """Raises BadInput where a document could not be written, before the work of an hour is lost to it."""
    if target is None or target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise BadInput(f"{option} {target}: expected a file name, got a folder")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{option} {target}: no folder {path.absolute().parent}; make it first")


def write(target: str | None, text: Callable[[], str]) -> None:
    """Write a document to a file, or to stdout for ``-``; makes no text for None."""
    if target == "-":
        say(text())
    elif target is not None:
        try:
            Path(target).write_text(text(), encoding="utf-8")
        except OSError as error:
            raise BadInput(f"cannot write {target}: {error.strerror}") from None
