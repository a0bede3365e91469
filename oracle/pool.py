"""Runs checks in worker processes: a kernel that crashes costs its own verdict and nothing else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from .case import Case
from .confinement import GIVE_UP, LOOK, Confinement, worker_threads
from .environment import cpu_count
from .guests import known
from .queues import ByImplementation, Longest, Queue
from .verdict import Verdict
from .worker import Judge, Pair, Worker

OnResult = Callable[[int, Verdict], None]
OnDone = Callable[[Verdict], None]


def default_jobs(device: str) -> int:
    """Workers where nobody says: every CPU up to eight, one where a GPU is shared."""
    return 1 if device.startswith("cuda") else min(cpu_count(), 8)


def judge(case: Case, implementation: str, device: str) -> Verdict:
    """The verdict on an implementation that is known by name."""
    from .check import check

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
    """Worker processes; ``start`` them early to overlap their start with other work."""

    def __init__(
        self,
        *,
        jobs: int,
        device: str,
        timeout: float | None = None,
        judge: Judge = judge,
        confinement: Confinement | None = None,
    ) -> None:
        """``confinement``: workers have limits, and each serves one implementation, as long as that behaves."""
        self._jobs = jobs
        self._device = device
        self._timeout = timeout if timeout is None or math.isfinite(timeout) else None
        self._judge = judge
        self._confinement = confinement
        self._workers: list[Worker] = []
        self._here_only = jobs == 1 and timeout is None and confinement is None
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

    def start(self, count: int | None = None) -> None:
        """Have ``count`` workers, at most ``jobs``; none where this process does the work itself."""
        if self._here_only:
            return
        while len(self._workers) < (self._jobs if count is None else min(self._jobs, count)):
            threads = worker_threads(self._jobs)
            self._workers.append(Worker(self._judge, self._device, threads, self._confinement))

    def run(self, pairs: Sequence[Pair], *, on_result: OnResult, on_done: OnDone | None = None) -> list[Verdict]:
        """See the function ``run``."""
        verdicts: dict[int, Verdict] = {}
        reported = 0
        for i, verdict in self._here(pairs) if self._here_only else self._spread(pairs):
            verdicts[i] = verdict
            if on_done is not None:
                on_done(verdict)
            while reported in verdicts:
                on_result(reported, verdicts[reported])
                reported += 1
        return [verdicts[i] for i in range(len(pairs))]

    def _here(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Verdict]]:
        for i, (case, implementation) in enumerate(pairs):
            yield i, self._judge(case, implementation, self._device)

    def _spread(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Verdict]]:
        order = Longest if self._confinement is None else ByImplementation
        queue: Queue = order(pairs, range(len(pairs)), cost)
        left = len(pairs)
        while left:
            self.start(left)
            for worker in list(self._workers):
                if worker.idle and queue:
                    job = queue.take(worker.serves)
                    if job is None:
                        self._retire(worker)
                    else:
                        worker.assign(job, pairs[job])
            self.start(left)
            Worker.wait(self._workers, self._patience())
            for worker in list(self._workers):
                for job, verdict in self._answers(worker, pairs):
                    left -= 1
                    yield job, verdict
                    for lost in self._given_up(queue, verdict):
                        left -= 1
                        reason = f"not run: {GIVE_UP} checks in a row before it ended their worker"
                        yield lost, self._error(pairs[lost], reason)

    def _given_up(self, queue: Queue, verdict: Verdict) -> list[int]:
        """Jobs of an implementation that ends one worker after another; where it is confined alone, they cost it."""
        if self._confinement is None or self._ended.get(verdict.implementation, 0) < GIVE_UP:
            return []
        return queue.drop(verdict.implementation)

    def _patience(self) -> float | None:
        """Seconds until the next job runs out of time, or until the next look at the memory of workers."""
        busy = [worker.busy_for for worker in self._workers if worker.job is not None]
        left = max(0.0, self._timeout - max(busy)) if self._timeout is not None and busy else None
        if self._confinement is None or not busy:
            return left
        return LOOK if left is None else min(LOOK, left)

    def _answers(self, worker: Worker, pairs: Sequence[Pair]) -> Iterator[tuple[int, Verdict]]:
        """What a worker has sent, and an ERROR verdict for its job if it died or went beyond its limits."""
        since = time.monotonic() - worker.busy_for
        for job, verdict in worker.receive():
            self._ended[verdict.implementation] = 0
            if self._confinement is not None and _leaves_traces(verdict):
                self._retire(worker)
            yield job, verdict
        if worker not in self._workers:
            return
        lost = worker.death() or worker.excess()
        if lost is None and self._timeout is not None and worker.job is not None and worker.busy_for >= self._timeout:
            lost = f"no answer after {self._timeout:g} s; worker stopped"
        if lost is None:
            return
        self._retire(worker)
        if worker.job is not None:
            implementation = pairs[worker.job][1]
            self._ended[implementation] = self._ended.get(implementation, 0) + 1
            yield worker.job, self._error(pairs[worker.job], lost, time.monotonic() - since)

    def _retire(self, worker: Worker) -> None:
        """End a worker at once: nothing in it is needed any more."""
        self._workers.remove(worker)
        worker.dismiss()
        worker.bury(patience=0.0)

    def _error(self, pair: Pair, reason: str, seconds: float = 0.0) -> Verdict:
        case, implementation = pair
        return Verdict(
            case=case,
            implementation=implementation,
            status="ERROR",
            reason=reason,
            seconds=seconds,
            device=self._device,
            origin=known.origin(case.geometry, implementation),
        )


def _leaves_traces(verdict: Verdict) -> bool:
    """Whether its process may no longer be what it was: a poisoned CUDA context is never used again."""
    return verdict.status == "ERROR" or any(f.check in ("structure", "memory") for f in verdict.findings)
