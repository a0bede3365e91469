"""Several calls at once, each of which does its work in processes that it starts: the looks of a bisection."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from .children import Children

#: Seconds that calls which were told to stop have to clean up.
_LEAVE = 10.0


class Hands(Protocol):
    """Calls functions that can be imported by name; what they raise is the future's exception."""

    slots: int
    """Calls that run at once; more of them wait."""
    away: bool
    """Whether calls run in other processes, perhaps on other machines: arguments are copied, files stay there."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]: ...

    def stop(self, future: Future[Any]) -> None:
        """Nobody waits for this call any more: end it with what it started."""

    def lost(self, error: BaseException) -> bool:
        """Whether a call ended for a reason that is not its own: its worker or node is gone."""

    def close(self) -> None:
        """End what is still at work."""


class LocalHands:
    """Threads of this process: the work is in the processes that calls start."""

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


class RayHands:
    """Tasks of a Ray cluster, each with a CPU or a GPU of its own."""

    away = True

    def __init__(self, ray: Any, device: str, slots: int | None = None) -> None:
        """``slots``: at most so many; None: one for each GPU or CPU that the cluster has."""
        self._ray = ray
        self._needs = {"num_gpus": 1, "num_cpus": 0} if device == "cuda" else {"num_cpus": 1}
        has = int(ray.cluster_resources().get("GPU" if device == "cuda" else "CPU", 0))
        self.slots = max(1, min(has, slots or has))
        self._called: dict[Future[Any], Any] = {}

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
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
        running = [future for future in self._called if not future.done()]
        for future in running:
            self.stop(future)
        for future in wait(running, _LEAVE).not_done:
            self._ray.cancel(self._called[future], force=True)
        self._called.clear()
