"""The engine on Ray: one worker a GPU, or one a CPU for what is interpreted; jobs go out in batches of a few seconds.

Ray starts the workers, finds the nodes and tells who died; nothing of that is done here. A batch that is lost with its
worker is run again job by job, and only a job that was alone with its worker counts as having cost it: what shared a
batch with a kernel that crashes, or a node that went away, is never held to account.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..errors import BadInput, Unsupported
from ..guests import known
from ..verdict import Verdict
from .kinds import ACCELERATOR, kinds
from .protocol import Answer, Lost
from .threads import limit_threads
from .worker import Judge, Pair, portable

#: Seconds of work in one batch, and most jobs in it.
BATCH, MOST = 2.0, 64
#: Batches that a worker has: one at work, one to go on with while the driver takes in the first.
AHEAD = 2
#: Workers that a job may cost.
TRIES = 3
#: Share of its GPU that a worker takes; the rest is for looking into failures.
GPU_SHARE = 0.9
#: Seconds to wait for a connection to an address that is named.
_CONNECT = 3.0


def connect(address: str | None) -> Any:
    """The module ``ray``, connected to the cluster at the address, or to the one that runs here.

    Raises Unsupported without Ray, and BadInput where there is no cluster.
    """
    try:
        import ray
    except ImportError:
        raise Unsupported("--engine ray: Ray is not installed; pip install 'attnoracle[ray]'") from None
    if ray.is_initialized():
        return ray
    _require_listener(address)
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        told = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = address or "this machine"
        raise BadInput(
            f"--engine ray: no cluster at {where}: {told}; start one with `ray start --head`, or name it with --address"
        ) from None
    return ray


def _require_listener(address: str | None) -> None:
    """An address where nothing listens is said at once; Ray would try for a minute."""
    if not address or address in ("auto", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise BadInput(f"--address {address}: expected HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT).close()
    except OSError as error:
        raise BadInput(
            f"--engine ray: no cluster at {address}: {error.strerror or error}; start one with `ray start --head`"
        ) from None


def device_of(ray: Any, wanted: str) -> str:
    """``cuda`` where the cluster has GPUs, unless the CPU is asked for. Raises Unsupported for CUDA without any."""
    gpus = ray.cluster_resources().get("GPU", 0)
    if wanted == "cuda" and not gpus:
        raise Unsupported("--engine ray: device cuda, but no node of the cluster has a GPU; use --device cpu")
    return "cuda" if gpus and wanted != "cpu" else "cpu"


def devices(ray: Any, device: str) -> int:
    """How many GPUs, or CPUs, the cluster has."""
    return int(ray.cluster_resources().get("GPU" if device == "cuda" else "CPU", 0))


def share(device: str, *, gpus: float, cpus: int) -> dict[str, float]:
    """What one task takes of its node: a share of a GPU and no CPU, or CPUs."""
    return {"num_gpus": gpus, "num_cpus": 0} if device == "cuda" else {"num_cpus": cpus}


class Bench:
    """What runs in a worker process of the cluster."""

    def __init__(self, judge: Judge, device: str, guests: known.Guests) -> None:
        begin(device, guests)
        self._judge, self._device = judge, device

    def ready(self) -> bool:
        return True

    def run(self, batch: list[tuple[int, Pair]]) -> list[tuple[int, str, Any, float]]:
        """For each job: its number, ``verdict`` or ``raised``, the verdict or the exception, and the seconds."""
        answers = []
        for job, (case, implementation) in batch:
            started = time.perf_counter()
            try:
                answer: tuple[str, Any] = ("verdict", self._judge(case, implementation, self._device))
            except Exception as error:
                answer = ("raised", portable(error, f"while checking {case.id} with {implementation}, on the cluster"))
            answers.append((job, *answer, time.perf_counter() - started))
        return answers


def begin(device: str, guests: known.Guests) -> None:
    """Make this process what a worker is: before Triton is imported it is settled whether it interprets."""
    import os

    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    limit_threads(1)
    known.adopt(guests)


@dataclass(slots=True)
class _Sent:
    """A batch on its way."""

    reference: Any
    jobs: list[int]
    since: float


@dataclass(slots=True, eq=False)
class _Worker:
    """One actor, and what it was sent."""

    actor: Any
    ready: Any
    """None once it has answered."""
    sent: deque[_Sent] = field(default_factory=deque)


class RayEngine:
    """See ``protocol.Engine``."""

    tries = TRIES

    def __init__(
        self,
        ray: Any,
        *,
        device: str,
        judge: Judge,
        timeout: float | None = None,
        workers: int | None = None,
        kind: str = "",
    ) -> None:
        """``workers``: at most so many; None: one for each GPU or CPU that the cluster has. ``kind``: of this one."""
        self._ray, self._judge, self._timeout, self._kind = ray, judge, timeout, kind
        self.device = device
        has = kinds(ray)[kind] if kind else devices(ray, device)
        if not has:
            raise Unsupported(f"--engine ray: the cluster has no {'GPU' if device == 'cuda' else 'CPU'} to work on")
        self.slots = min(has, workers or has)
        self._guests = ray.put(known.snapshot())
        self._pairs: dict[int, Pair] = {}
        self._waiting: deque[int] = deque()
        self._alone: deque[int] = deque()
        """Jobs whose batch was lost: each is run by itself."""
        self._seconds = BATCH
        """Of one job, lately."""
        self._workers = [self._start() for _ in range(self.slots)]

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers.clear()

    @property
    def depth(self) -> int:
        return self.slots * AHEAD * self._batch()

    def put(self, job: int, pair: Pair) -> None:
        (self._alone if job in self._pairs else self._waiting).append(job)
        self._pairs[job] = pair

    def get(self, patience: float | None = None) -> list[tuple[int, Answer]]:
        until = None if patience is None else time.monotonic() + patience
        while self._pairs:
            self._hand_out()
            answers = self._collect(until)
            for job, answer in answers:
                if isinstance(answer, Verdict) or answer.final:
                    self._pairs.pop(job, None)
            if answers or (until is not None and time.monotonic() >= until):
                return answers
        return []

    def _batch(self) -> int:
        return max(1, min(MOST, int(BATCH / max(self._seconds, 1e-3))))

    def _start(self) -> _Worker:
        needs: dict[str, Any] = share(self.device, gpus=GPU_SHARE, cpus=1)
        if self._kind:
            needs["resources"] = {ACCELERATOR + self._kind: 0.001}
        remote = self._ray.remote(Bench).options(max_restarts=0, **needs)
        actor = remote.remote(self._judge, self.device, self._guests)
        return _Worker(actor, actor.ready.remote())

    def _hand_out(self) -> None:
        """Batches to whoever has room; what is run alone has its worker for itself."""
        for worker in sorted(self._workers, key=lambda one: len(one.sent)):
            while worker.ready is None and len(worker.sent) < AHEAD and (self._alone or self._waiting):
                if self._alone and worker.sent:
                    break
                if self._alone:
                    self._send(worker, [self._alone.popleft()])
                    break
                count = min(self._batch(), -(-len(self._waiting) // (AHEAD * self.slots)))
                self._send(worker, [self._waiting.popleft() for _ in range(max(1, count))])

    def _send(self, worker: _Worker, jobs: list[int]) -> None:
        batch = [(job, self._pairs[job]) for job in jobs]
        worker.sent.append(_Sent(worker.actor.run.remote(batch), jobs, time.monotonic()))

    def _collect(self, until: float | None) -> list[tuple[int, Answer]]:
        """Wait for one worker; what it says, and what was lost with those that are gone."""
        first = {
            worker.sent[0].reference if worker.ready is None else worker.ready: worker
            for worker in self._workers
            if worker.ready is not None or worker.sent
        }
        if not first:
            # Every worker is gone and none has started anew: wait for a node to come back.
            time.sleep(0.1 if until is None else max(0.0, min(0.1, until - time.monotonic())))
            return []
        left = 1.0 if until is None else max(0.0, min(1.0, until - time.monotonic()))
        done, _ = self._ray.wait(list(first), num_returns=1, timeout=left)
        answers: list[tuple[int, Answer]] = []
        for reference in done:
            answers += self._taken(first[reference], reference)
        for worker in list(self._workers):
            answers += self._overdue(worker)
        return answers

    def _taken(self, worker: _Worker, reference: Any) -> list[tuple[int, Answer]]:
        try:
            told = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            return self._lost(worker, f"worker died: {_words(error)}")
        if worker.ready is not None:
            worker.ready = None
            return []
        worker.sent.popleft()
        if worker.sent:
            worker.sent[0].since = time.monotonic()
        answers: list[tuple[int, Answer]] = []
        for job, kind, value, seconds in told:
            if kind == "raised":
                raise value
            self._seconds += 0.1 * (seconds - self._seconds)
            answers.append((job, value))
        return answers

    def _overdue(self, worker: _Worker) -> list[tuple[int, Answer]]:
        """End a worker whose batch takes longer than its jobs may."""
        if self._timeout is None or worker.ready is not None or not worker.sent:
            return []
        batch = worker.sent[0]
        if time.monotonic() - batch.since < self._timeout * len(batch.jobs):
            return []
        return self._lost(worker, f"no answer after {self._timeout:g} s; worker stopped", final=True)

    def _lost(self, worker: _Worker, reason: str, *, final: bool = False) -> list[tuple[int, Answer]]:
        """A worker is gone: a fresh one in its place, and its jobs go round again, those of a larger batch alone."""
        self._ray.kill(worker.actor)
        self._workers[self._workers.index(worker)] = self._start()
        if not worker.sent:
            return []
        at_work, *others = worker.sent
        for batch in others:
            self._waiting.extendleft(reversed(batch.jobs))
        if len(at_work.jobs) > 1:
            self._alone.extend(at_work.jobs)
            return []
        return [(at_work.jobs[0], Lost(reason, time.monotonic() - at_work.since, final))]


def _words(error: Exception) -> str:
    """The line of Ray's message that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "unexpectedly" in line or "node" in line.lower()]
    return (told or lines or [type(error).__name__])[0][:200]
