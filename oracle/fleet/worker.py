"""One worker process and the pipe to it."""

from __future__ import annotations

import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from ..case import Case
from ..guests import known
from ..verdict import Verdict
from .confinement import Confinement, Said, confine, context, interrupts_held, resident
from .threads import limit_threads

Pair = tuple[Case, str]
#: (case, implementation name, device) -> verdict; importable by name, since workers unpickle it.
Judge = Callable[[Case, str, str], Verdict]


class Worker:
    """A process that judges one pair at a time.

    Not a fork of this one: CUDA and threads do not survive that. With a confinement it has limits, and what it prints
    goes no further than its last words.
    """

    def __init__(self, judge: Judge, device: str, threads: int, confinement: Confinement | None = None) -> None:
        start = context(device)
        self._pipe, theirs = start.Pipe()
        self._ear, self._said = None, None
        if confinement is None:
            # What it is forked from may have another stderr than this process has by now.
            mouth = Connection(os.dup(2), readable=False)
        else:
            self._ear, mouth = start.Pipe(duplex=False)
            self._said = Said(self._ear.fileno())
        job = (dict(os.environ), theirs, judge, device, threads, known.snapshot(), mouth, confinement)
        self._process = start.Process(target=_work, args=job)
        with interrupts_held():
            self._process.start()
        theirs.close()
        mouth.close()
        self._confinement = confinement
        self._base = 0
        self.serves: str | None = None
        """Implementation of its last job."""
        self._ready = False
        self._closed = False
        self._since = 0.0
        self.job: int | None = None

    @property
    def idle(self) -> bool:
        return self._ready and self.job is None

    @property
    def busy_for(self) -> float:
        """Seconds since it got its job; 0 without one."""
        return time.monotonic() - self._since if self.job is not None else 0.0

    @staticmethod
    def wait(workers: Iterable[Worker], patience: float | None) -> None:
        """Until one of them sends something or dies, or for ``patience`` seconds."""
        wait([source for worker in workers for source in worker._sources()], patience)

    def _sources(self) -> list[Any]:
        told = [self._said] if self._said is not None and self._said.open else []
        return [self._pipe, self._process.sentinel, *told]

    def assign(self, job: int, pair: Pair) -> None:
        self.job, self._since, self.serves = job, time.monotonic(), pair[1]
        with suppress(OSError):  # it is dead, which death() will tell
            self._pipe.send(pair)

    def receive(self) -> Iterator[tuple[int, Verdict]]:
        """The verdicts it has sent. Raises what its check raised, as opposed to what the checked kernel raised."""
        if self._said is not None:
            self._said.drain()
        try:
            while not self._closed and self._pipe.poll():
                kind, value = self._pipe.recv()
                if not self._ready:
                    self._ready, self._base = True, resident(self._process.pid)
                if kind == "raised":
                    raise value
                if kind in ("verdict", "last") and self.job is not None:
                    job, self.job = self.job, None
                    self._closed = kind == "last"
                    yield job, value
        except (EOFError, ConnectionError):
            self._closed = True

    def death(self) -> str | None:
        """How it ended; None while it lives. Raises RuntimeError if it never got as far as its first job."""
        if not self._closed and self._process.is_alive():
            return None
        self._process.join(1.0)
        silent, words = self._process.is_alive(), self._last_words()
        self.bury()
        told = "worker closed its connection" if silent else f"worker died: {_ending(self._process.exitcode)}"
        told += words
        if not self._ready:
            raise RuntimeError(f"a worker process did not start: {told}")
        return told

    def excess(self) -> str | None:
        """What it holds above its memory limit, in words; None below it."""
        if self._confinement is None or self.job is None:
            return None
        held = resident(self._process.pid) - self._base
        if held <= self._confinement.memory:
            return None
        allowed = self._confinement.memory / 2**30
        return f"took {held / 2**30:.2f} GiB of memory, allowed are {allowed:.2f}; worker stopped"

    def _last_words(self) -> str:
        if self._said is None:
            return ""
        self._said.drain()
        line = self._said.last_line()
        return f"; its last words: {line}" if line else ""

    def dismiss(self) -> None:
        """Let it go: at once if it is at work, by itself if it is idle."""
        self._pipe.close()
        self._closed = True
        if not self.idle:
            self._process.terminate()

    def bury(self, patience: float = 5.0) -> None:
        """Wait until it has ended, and end it if that takes longer."""
        if patience > 0.0:
            self._process.join(patience)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        if self._ear is not None and self._closed:
            self._ear.close()
            self._ear = self._said = None


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    names = {member.value: member.name for member in signal.Signals}
    return f"signal {-code} ({names[-code]})" if -code in names else f"signal {-code}"


def _work(
    environment: dict[str, str],
    pipe: Connection,
    judge: Judge,
    device: str,
    threads: int,
    guests: known.Guests,
    mouth: Connection,
    confinement: Confinement | None,
) -> None:
    """The worker's side: one verdict a message, until the parent closes the pipe."""
    os.environ.clear()  # what it is forked from may have another
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a kernel prints must not get between the lines of a report on stdout.
    os.dup2(mouth.fileno(), 2)
    mouth.close()
    os.dup2(2, 1)
    if confinement is not None:
        confine(confinement, device)
    limit_threads(threads)
    known.adopt(guests)
    with suppress(EOFError, ConnectionError):
        pipe.send(("ready", None))
        while True:
            case, implementation = pipe.recv()
            kind, value = _answer(judge, case, implementation, device)
            pipe.send((kind, value))
            if kind == "last":
                return


def _answer(judge: Judge, case: Case, implementation: str, device: str) -> tuple[str, Any]:
    """A verdict, the last one where it has cost the process its device, or what the check itself raised."""
    try:
        verdict = judge(case, implementation, device)
        return ("last" if verdict.status == "ERROR" and not _usable(device) else "verdict"), verdict
    except Exception as error:
        told = f"while checking {case.id} with {implementation}, in a worker:\n{traceback.format_exc()}"
        error.add_note(told)
        return "raised", portable(error, told)


def _usable(device: str) -> bool:
    import torch

    from ..calling.call import usable

    return usable(torch.device(device))


def portable(error: Exception, told: str) -> Exception:
    """The exception, or one like it where it does not survive the pipe."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}\n{told}")
    return error
