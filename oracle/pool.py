"""Runs checks in worker processes: a kernel that crashes costs its own verdict and nothing else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from .case import Case
from .environment import cpu_count
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
    from .guests import known

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
) -> list[Verdict]:
    """Verdicts in the order of ``pairs``.

    ``on_result(i, verdict)`` is called in that order, as early as it can be; ``on_done(verdict)`` as they come.
    ``jobs=1`` without a timeout runs in this process. Otherwise a worker that dies, or needs more than ``timeout``
    seconds for one check, costs an ERROR verdict for it, and a fresh worker goes on. An exception of the check itself
    ends the run and is raised here.
    """
    with Pool(jobs=jobs, device=device, timeout=timeout, judge=judge) as pool:
        return pool.run(pairs, on_result=on_result, on_done=on_done)


class Pool:
    """Worker processes; ``start`` them early to overlap their start with other work."""

    def __init__(self, *, jobs: int, device: str, timeout: float | None = None, judge: Judge = judge) -> None:
        self._jobs = jobs
        self._device = device
        self._timeout = timeout
        self._judge = judge
        self._workers: list[Worker] = []

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
        if self._jobs == 1 and self._timeout is None:
            return
        while len(self._workers) < (self._jobs if count is None else min(self._jobs, count)):
            threads = max(1, cpu_count() // self._jobs)
            self._workers.append(Worker(self._judge, self._device, threads))

    def run(self, pairs: Sequence[Pair], *, on_result: OnResult, on_done: OnDone | None = None) -> list[Verdict]:
        """See the function ``run``."""
        verdicts: dict[int, Verdict] = {}
        reported = 0
        for i, verdict in self._spread(pairs) if self._jobs > 1 or self._timeout is not None else self._here(pairs):
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
        # The longest first, or one of them would run alone at the end; equal costs keep their order.
        queue = deque(sorted(range(len(pairs)), key=lambda i: -cost(pairs[i][0])))
        left = len(pairs)
        while left:
            self.start(left)
            for worker in self._workers:
                if worker.idle and queue:
                    job = queue.popleft()
                    worker.assign(job, pairs[job])
            Worker.wait(self._workers, self._patience())
            for worker in list(self._workers):
                for job, verdict in self._answers(worker, pairs):
                    left -= 1
                    yield job, verdict

    def _patience(self) -> float | None:
        """Seconds until the next job runs out of time."""
        busy = [worker.busy_for for worker in self._workers if worker.job is not None]
        return max(0.0, self._timeout - max(busy)) if self._timeout is not None and busy else None

    def _answers(self, worker: Worker, pairs: Sequence[Pair]) -> Iterator[tuple[int, Verdict]]:
        """What a worker has sent, and an ERROR verdict for its job if it died or ran out of time."""
        since = time.monotonic() - worker.busy_for
        yield from worker.receive()
        lost = worker.death()
        if lost is None and self._timeout is not None and worker.job is not None and worker.busy_for >= self._timeout:
            worker.bury(patience=0.0)
            lost = f"no answer after {self._timeout:g} s; worker stopped"
        if lost is None:
            return
        self._workers.remove(worker)
        if worker.job is not None:
            case, implementation = pairs[worker.job]
            seconds = time.monotonic() - since
            yield (
                worker.job,
                Verdict(
                    case=case,
                    implementation=implementation,
                    status="ERROR",
                    reason=lost,
                    seconds=seconds,
                    device=self._device,
                ),
            )
