"""Calls beside the judgements: looking into a failure, which may end its process, and the looks of a bisection."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol

from ..guests import known
from .children import Children
from .threads import limit_threads

#: Seconds between two looks whether the process that started this one lives.
_LOOK = 2.0


class Calls(Protocol):
    """Calls functions that can be imported by name; what they raise is the future's exception."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]: ...

    def close(self) -> None:
        """End what is still at work."""


class StoppableCalls(Calls, Protocol):
    """Several at once, each of which does its work in processes that it starts and that end with it."""

    slots: int
    """Calls that run at once; more of them wait."""
    away: bool
    """Whether calls run in other processes, perhaps on other machines: arguments are copied, files stay there."""

    def stop(self, future: Future[Any]) -> None:
        """Nobody waits for this call any more: end it with what it started."""

    def lost(self, error: BaseException) -> bool:
        """Whether a call ended for a reason that is not its own: its worker or node is gone."""


class ThreadCalls:
    """Stoppable calls in threads of this process: the work is in the processes that they start."""

    away = False

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="look")
        self._children: dict[Future[Any], Children] = {}

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        children = Children()
        future: Future[Any] = self._threads.submit(children.run, function, *arguments)
        self._children[future] = children
        return future

    def stop(self, future: Future[Any]) -> None:
        future.cancel()
        self._children[future].end()

    def lost(self, error: BaseException) -> bool:
        return False

    def close(self) -> None:
        for future in self._children:
            self.stop(future)
        self._threads.shutdown(wait=True, cancel_futures=True)


class ProcessCalls:
    """Calls in one process, started with the first and again after one that ended it."""

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
