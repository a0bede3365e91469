"""Work beside the judgements, in a process that may die: looking into a failure runs the kernel that failed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol

from ..guests import known


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
                    max_workers=1, mp_context=get_context("spawn"), initializer=_begin, initargs=(known.snapshot(),)
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


def _begin(guests: known.Guests) -> None:
    import os

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(10)  # the search goes first
    os.dup2(2, 1)  # what a kernel prints must not get into a report on stdout
    torch.set_num_threads(1)
    known.adopt(guests)
