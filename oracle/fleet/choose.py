"""Which engine a command runs on, by the names on its command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..device import settle
from ..errors import BadInput
from .calls import Calls, ProcessCalls, StoppableCalls, ThreadCalls
from .confinement import Confinement
from .protocol import Engine
from .worker import Judge

ENGINES = ("local", "ray")


@dataclass(frozen=True, slots=True)
class Place:
    """Where judgements run: settled before anything heavy is done."""

    name: str
    device: str
    """``cpu`` or ``cuda``."""
    ray: Any = None

    @classmethod
    def of(cls, name: str, address: str | None, device: str) -> Place:
        """Raises BadInput or Unsupported for what is not there: Ray, a cluster at the address, a GPU."""
        if name == "local":
            if address is not None:
                raise BadInput(f"--address {address}: goes with --engine ray")
            return cls(name, settle(device))
        from .cluster import connect, device_of

        ray = connect(address)
        where = device_of(ray, device)
        if where == "cpu":
            settle("cpu")
        return cls(name, where, ray)

    @property
    def seen_from(self) -> str | None:
        """The device to ask an implementation about before it runs; None where it is another machine's."""
        if self.device == "cpu":
            return "cpu"
        import torch

        return "cuda" if torch.cuda.is_available() else None

    @contextmanager
    def engine(
        self,
        judge: Judge,
        *,
        jobs: int | None = None,
        timeout: float | None = None,
        confinement: Confinement | None = None,
        tries: int = 1,
        kind: str = "",
    ) -> Iterator[Engine]:
        """Workers that judge; ``jobs``: at most so many. ``confinement`` and ``tries``: of the local engine only.

        Where nobody says how many, no kernel runs in this process: one that divides by zero on the host would end it.

        ``kind``: of the devices of a cluster, those of this kind alone.
        """
        if self.ray is None:
            from .pool import Pool, default_jobs

            count = jobs or default_jobs(self.device)
            with Pool(
                jobs=count,
                device=self.device,
                timeout=timeout,
                judge=judge,
                confinement=confinement,
                tries=tries,
                apart=jobs is None,
            ) as pool:
                yield pool
            return
        if confinement is not None:
            raise BadInput("--isolate: goes with --engine local; on Ray every worker is a process that may die")
        from .cluster import RayEngine

        with RayEngine(self.ray, device=self.device, judge=judge, timeout=timeout, workers=jobs, kind=kind) as engine:
            yield engine

    def kinds(self) -> tuple[str, ...]:
        """Kinds of devices that can be compared. Raises BadInput where there are not two."""
        if self.ray is None:
            raise BadInput("--per-device: goes with --engine ray, on a cluster with several kinds of devices")
        from .kinds import kinds

        return tuple(kinds(self.ray))

    def aside(self) -> Calls:
        """For looking into failures."""
        if self.ray is None:
            return ProcessCalls()
        from .ray_calls import RayCalls

        return RayCalls.aside(self.ray, self.device)

    def hands(self, jobs: int | None = None) -> StoppableCalls:
        """For calls that start processes of their own; ``jobs``: at most so many at once, here 1 if not said."""
        if self.ray is None:
            return ThreadCalls(jobs or 1)
        from .ray_calls import RayCalls

        return RayCalls.hands(self.ray, self.device, jobs)
