"""Calls in a Ray cluster beside its workers: tasks, each with a share of a node for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from ..guests import known
from .cluster import GPU_SHARE, begin, devices, share

#: Seconds that calls which were told to stop have to clean up.
_LEAVE = 10.0


class RayCalls:
    """See ``calls.StoppableCalls``; ``aside`` and ``hands`` make the two kinds that there are."""

    away = True

    def __init__(self, ray: Any, needs: Mapping[str, float], slots: int, ready_for: str = "") -> None:
        """``needs``: what a call takes of its node. ``ready_for``: a device that calls use in the task itself."""
        self._ray, self._needs, self.slots, self._ready_for = ray, needs, slots, ready_for
        self._called: dict[Future[Any], Any] = {}

    @classmethod
    def aside(cls, ray: Any, device: str) -> RayCalls:
        """For looking into failures: what the workers leave of a GPU, or of a node's CPUs."""
        return cls(ray, share(device, gpus=1 - GPU_SHARE, cpus=0), 1, device)

    @classmethod
    def hands(cls, ray: Any, device: str, slots: int | None = None) -> RayCalls:
        """For calls that start processes, each with a CPU or a GPU of its own.

        ``slots``: at most so many; None: one for each GPU or CPU that the cluster has.
        """
        has = devices(ray, device)
        return cls(ray, share(device, gpus=1, cpus=1), max(1, min(has, slots or has)))

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._ready_for:
            function, arguments = _begun, (function, arguments, self._ready_for, known.snapshot())
        reference = self._ray.remote(function).options(max_retries=0, **self._needs).remote(*arguments)
        future: Future[Any] = reference.future()
        self._called[future] = reference
        return future

    def stop(self, future: Future[Any]) -> None:
        # Not by force: the call is interrupted, so it can end the processes that it started.
        self._ray.cancel(self._called[future], force=False)

    def lost(self, error: BaseException) -> bool:
        gone = self._ray.exceptions
        return isinstance(error, (gone.WorkerCrashedError, gone.NodeDiedError, gone.ObjectLostError))

    def close(self) -> None:
        running = {future for future in self._called if not future.done()}
        if not self._ready_for:  # what works in the task itself has nothing to end before it
            for future in running:
                self.stop(future)
            running = wait(running, _LEAVE).not_done
        for future in running:
            self._ray.cancel(self._called[future], force=True)
        self._called.clear()


def _begun(function: Callable[..., Any], arguments: tuple[Any, ...], device: str, guests: known.Guests) -> Any:
    begin(device, guests)
    return function(*arguments)
