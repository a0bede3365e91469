"""Runs checks in worker processes: a kernel that crashes costs its own verdict and nothing else."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from ..case import Case
from ..environment import cpu_count
from ..guests import known
from ..verdict import Verdict
from .confinement import GIVE_UP, LOOK, Confinement, ensure_server, forked, worker_threads
from .feed import OnDone, OnResult, drive
from .protocol import Answer, Lost
from .queues import ByImplementation, Longest, Queue
from .worker import Judge, Pair, Worker


def default_jobs(device: str) -> int:
    """Workers where nobody says: every CPU up to eight, one where a GPU is shared."""
    return 1 if device.startswith("cuda") else min(cpu_count(), 8)


def judge(case: Case, implementation: str, device: str) -> Verdict:
    """The verdict on an implementation that is known by name."""
    from ..check import check

    found = known.find(implementation)
    # State kept between calls is a fault of its own, and nobody else looks for it in a kernel that is not ours.
    return check(case, found, device=device, sequence=True) if found.origin else check(case, found, device=device)


def cost(case: Case) -> int:
    """Rough relative cost: scores of the case. Decides only which job starts first, never what is reported."""
    selected = case.topk if case.operator == "sparse_mqa" and case.topk else None
    return case.heads * sum(q * min(k, selected or k) for q, k in zip(case.q_lens, case.k_lens, strict=True))


def run(
    pairs: Sequence[Pair],
    *,
    jobs: int,
    device: str,
    on_result: OnResult,
    on_done: OnDone | None = None,
    timeout: float | None = None,
    judge: Judge = judge,
    confinement: Confinement | None = None,
) -> list[Verdict]:
    """Verdicts in the order of ``pairs``.

    ``on_result(i, verdict)`` is called in that order, as early as it can be; ``on_done(verdict)`` as they come.
    ``jobs=1`` without a timeout runs in this process. Otherwise a worker that dies, or needs more than ``timeout``
    seconds for one check, costs an ERROR verdict for it, and a fresh worker goes on. An exception of the check itself
    ends the run and is raised here.
    """
    with Pool(jobs=jobs, device=device, timeout=timeout, judge=judge, confinement=confinement) as pool:
        return pool.run(pairs, on_result=on_result, on_done=on_done)


class Pool:
    """Worker processes, the local engine (``fleet/protocol.py``); ``start`` them early to overlap their start with
    other work."""

    def __init__(
        self,
        *,
        jobs: int,
        device: str,
        timeout: float | None = None,
        judge: Judge = judge,
        confinement: Confinement | None = None,
        tries: int = 1,
        apart: bool = False,
    ) -> None:
        """``confinement``: workers have limits, and each serves one implementation, as long as that behaves.

        ``tries``: workers that a job may cost by dying before it is an ERROR. ``apart``: a worker even for one job at
        a time.
        """
        self._jobs = jobs
        self._device = device
        self._timeout = timeout if timeout is None or math.isfinite(timeout) else None
        self._judge = judge
        self._confinement = confinement
        self._tries = tries
        self._workers: list[Worker] = []
        self._here_only = jobs == 1 and timeout is None and confinement is None and not apart
        self._pairs: dict[int, Pair] = {}
        """Jobs that are not answered."""
        self._queue: Queue = (
            Longest(lambda case: 0)  # in this process they keep their order
            if self._here_only
            else (Longest if confinement is None else ByImplementation)(cost)
        )
        self._ended: dict[str, int] = {}
        """Implementation -> checks in a row that ended their worker."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            worker.dismiss()
        for worker in self._workers:
            worker.bury()
        self._workers.clear()

    @property
    def device(self) -> str:
        return self._device

    @property
    def slots(self) -> int:
        return self._jobs

    @property
    def depth(self) -> int:
        return 2 * self._jobs

    @property
    def tries(self) -> int:
        return self._tries

    def start(self, count: int | None = None) -> None:
        """Have ``count`` workers, at most ``jobs``; none where this process does the work itself.

        Where nobody says how many, and they are forked, what they are forked from: waiting for it would be no overlap.
        """
        if self._here_only:
            return
        if count is None and forked(self._device):
            ensure_server()
            return
        while len(self._workers) < (self._jobs if count is None else min(self._jobs, count)):
            threads = worker_threads(self._jobs)
            self._workers.append(Worker(self._judge, self._device, threads, self._confinement))

    def run(self, pairs: Sequence[Pair], *, on_result: OnResult, on_done: OnDone | None = None) -> list[Verdict]:
        """See the function ``run``."""
        return drive(self, pairs, on_result=on_result, on_done=on_done)

    def put(self, job: int, pair: Pair) -> None:
        self._pairs[job] = pair
        self._queue.add(job, pair)

    def get(self, patience: float | None = None) -> list[tuple[int, Answer]]:
        until = None if patience is None else time.monotonic() + patience
        while self._pairs:
            answers = list(self._here() if self._here_only else self._there(until))
            for job, _ in answers:
                del self._pairs[job]
            if answers or (until is not None and time.monotonic() >= until):
                return answers
        return []

    def _here(self) -> Iterator[tuple[int, Answer]]:
        job = self._queue.take(None)
        assert job is not None
        yield job, self._judge(*self._pairs[job], self._device)

    def _there(self, until: float | None) -> Iterator[tuple[int, Answer]]:
        """One look at the workers: hand out jobs, wait for one of them, collect."""
        self.start(len(self._pairs))
        for worker in list(self._workers):
            if worker.idle and self._queue:
                job = self._queue.take(worker.serves)
                if job is None:
                    self._retire(worker)
                else:
                    worker.assign(job, self._pairs[job])
        self.start(len(self._pairs))
        Worker.wait(self._workers, self._patience(until))
        for worker in list(self._workers):
            for job, answer in self._answers(worker):
                yield job, answer
                yield from self._given_up(self._pairs[job][1])

    def _given_up(self, implementation: str) -> Iterator[tuple[int, Answer]]:
        """Jobs of an implementation that ends one worker after another; where it is confined alone, they cost it."""
        if self._confinement is None or self._ended.get(implementation, 0) < GIVE_UP:
            return
        for job in self._queue.drop(implementation):
            yield job, Lost(f"not run: {GIVE_UP} checks in a row before it ended their worker", final=True)

    def _patience(self, until: float | None) -> float | None:
        """Seconds until the next job runs out of time, the next look at the memory of workers, or ``until``."""
        busy = [worker.busy_for for worker in self._workers if worker.job is not None]
        limits = [] if until is None else [until - time.monotonic()]
        if self._timeout is not None and busy:
            limits.append(self._timeout - max(busy))
        if self._confinement is not None and busy:
            limits.append(LOOK)
        return max(0.0, min(limits)) if limits else None

    def _answers(self, worker: Worker) -> Iterator[tuple[int, Answer]]:
        """What a worker has sent, and that its job is lost if it died or went beyond its limits."""
        for job, verdict in worker.receive():
            self._ended[self._pairs[job][1]] = 0
            if self._confinement is not None and _leaves_traces(verdict):
                self._retire(worker)
            yield job, verdict
        if worker not in self._workers:
            return
        held, busy = worker.job, worker.busy_for
        lost = self._loss(worker)
        if lost is None:
            return
        self._retire(worker)
        if held is not None:
            implementation = self._pairs[held][1]
            self._ended[implementation] = self._ended.get(implementation, 0) + 1
            yield held, Lost(lost.reason, busy, lost.final)

    def _loss(self, worker: Worker) -> Lost | None:
        died = worker.death()
        if died is not None:
            return Lost(died)
        beyond = worker.excess()
        if beyond is None and self._timeout is not None and worker.job is not None and worker.busy_for >= self._timeout:
            beyond = f"no answer after {self._timeout:g} s; worker stopped"
        return None if beyond is None else Lost(beyond, final=True)

    def _retire(self, worker: Worker) -> None:
        """End a worker at once: nothing in it is needed any more."""
        self._workers.remove(worker)
        worker.dismiss()
        worker.bury(patience=0.0)


def _leaves_traces(verdict: Verdict) -> bool:
    """Whether its process may no longer be what it was: a poisoned CUDA context is never used again."""
    return verdict.status == "ERROR" or any(f.check in ("structure", "memory") for f in verdict.findings)
