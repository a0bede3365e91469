"""Limits of a worker process, and how its end is told: what a kernel does to its process costs its own verdict."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, get_context, resource_tracker
from pathlib import Path
from typing import Any

from ..environment import cpu_count, total_memory

#: Seconds for one check where nobody says: no check of the suites takes a tenth of it on one core.
TIMEOUT = 120.0
#: Checks in a row that may end their worker before the rest of an implementation is given up: a kernel that hangs on
#: three cases hangs on the others, and each costs the whole time limit.
GIVE_UP = 3
#: Address space beyond the memory limit. Caches far past element 2**31 are addresses that nobody touches.
ADDRESSES = 12 << 30
#: Share of the machine's memory that all workers may have together.
SHARE = 0.8
#: Seconds between two looks at the memory of the workers.
LOOK = 0.25
#: Bytes kept of what a kernel printed.
SAID = 4096
_PRELOAD = ["attnoracle.oracle.fleet.preload"]


@dataclass(frozen=True, slots=True)
class Confinement:
    """What one worker may take."""

    memory: int
    """Bytes of main memory beyond what an idle worker has."""

    @classmethod
    def of(cls, gigabytes: float | None, jobs: int) -> Confinement:
        """``gigabytes`` (2**30 bytes) for each worker; None: an equal part of most of the machine's memory."""
        if gigabytes is not None:
            return cls(int(gigabytes * 2**30))
        return cls(int(SHARE * total_memory() / jobs))


def forked(device: str) -> bool:
    """Whether worker processes are forked from a server that has imported everything and has no threads.

    Each would otherwise import torch and triton anew, three seconds of a core. CUDA does not survive a fork.
    """
    return device == "cpu" and sys.platform.startswith("linux")


def context(device: str) -> Any:
    """How worker processes start: forked, or spawned."""
    if not forked(device):
        return get_context("spawn")
    ensure_server()
    return get_context("forkserver")


def ensure_server() -> None:
    """Start the server, if it does not run, with this process's search path, wherever that has moved meanwhile."""
    forkserver.set_forkserver_preload(_PRELOAD)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        with interrupts_held():
            forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Children started here do not see Ctrl-C, which ends the whole run through the parent."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Started along with the first child otherwise, and that start unblocks SIGINT again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def confine(confinement: Confinement, device: str) -> None:
    """Limit this process. Called in the worker, before it does anything."""
    try:
        import resource
    except ImportError:  # not on this platform
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if device == "cpu":
        # CUDA reserves terabytes of addresses that are no memory.
        most = _addresses() + confinement.memory + ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _addresses() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def resident(pid: int | None) -> int:
    """Bytes of main memory that a process holds; 0 where that cannot be known."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


class Said:
    """The last bytes that a worker wrote to its stdout and stderr, read without waiting."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._parts: deque[bytes] = deque()
        self._size = 0
        self.open = True

    def fileno(self) -> int:
        return self._fd

    def drain(self) -> None:
        """Read what is there; a kernel that prints a million lines waits for nobody."""
        while self.open:
            try:
                part = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return
            except OSError:
                part = b""
            if not part:
                self.open = False
                return
            self._parts.append(part)
            self._size += len(part)
            while self._size - len(self._parts[0]) >= SAID:
                self._size -= len(self._parts.popleft())

    def last_line(self) -> str:
        """The last line that is not empty."""
        lines = b"".join(self._parts)[-SAID:].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def worker_threads(jobs: int) -> int:
    """Threads of torch in each of so many workers."""
    return max(1, cpu_count() // jobs)
