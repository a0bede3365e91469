"""Work beside the judgements, in a process that may die: looking into a failure runs the kernel that failed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol

from ..guests import known
from ..threads import limit_threads

#: Seconds between two looks whether the process that started this one lives.
_LOOK = 2.0


class Aside(Protocol):
    """Calls functions that can be imported by name; what they raise is the future's exception."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]: ...

    def close(self) -> None:
        """End what is still at work."""


class LocalAside:
    """One process, started with the first call and again after one that ended it."""

    def __init__(self) -> None:
        self._executor: ProcessPoolExecutor | None = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        for _ in range(2):
            if self._executor is None:
                self._executor = ProcessPoolExecutor(
                    max_workers=1,
                    mp_context=get_context("spawn"),
                    initializer=_begin,
                    initargs=(known.snapshot(), os.getpid()),
                )
            try:
                return self._executor.submit(function, *arguments)
            except BrokenProcessPool:
                self._executor = None
        raise RuntimeError("a process for looking into failures does not stay alive")

    def close(self) -> None:
        if self._executor is None:
            return
        # The executor waits for a call that hangs; its processes are ended first, while it still names them.
        processes = list((self._executor._processes or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
            process.join()
        self._executor = None


def _begin(guests: known.Guests, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(10)  # the search goes first
    os.dup2(2, 1)  # what a kernel prints must not get into a report on stdout
    limit_threads(1)
    known.adopt(guests)


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone: the executor's own would wait for it for ever."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)
