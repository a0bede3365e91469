"""Processes that a call in a thread has started, so that they can be ended from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_here = threading.local()


class Children:
    """Of one call. Once ended, what it starts is ended at once, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: set[int] = set()
        self._ended = False

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The call itself, in this thread."""
        _here.children = self
        try:
            return function(*arguments)
        finally:
            _here.children = None

    def end(self) -> None:
        """Kill what runs, with all that it started."""
        with self._lock:
            self._ended = True
            for group in self._live:
                _kill(group)

    def add(self, group: int) -> None:
        with self._lock:
            self._live.add(group)
            if self._ended:
                _kill(group)

    def remove(self, group: int) -> None:
        with self._lock:
            self._live.discard(group)


@contextmanager
def watched(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Count a process, which leads a process group of its own, among those of the call that this thread runs."""
    children: Children | None = getattr(_here, "children", None)
    if children is not None:
        children.add(process.pid)
    try:
        yield
    finally:
        if children is not None:
            children.remove(process.pid)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
