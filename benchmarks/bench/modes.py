"""The words of ``attnoracle bench``: crossover, whole, decode; each measured, printed and written."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...oracle.cli.terminal import console, write
from ...oracle.config import load
from ...oracle.errors import BadInput


@dataclass(frozen=True, slots=True)
class Asked:
    """What the words have in common."""

    command: Sequence[str]
    geometry: str
    sizes: tuple[int, ...]
    """Tensor-parallel sizes."""
    device: str
    seconds: float
    json: str | None = None
    png: str | None = None

    def written(self, summary: dict[str, Any], **lists: Any) -> None:
        from ...oracle.environment import environment
        from ...oracle.reports.json_report import document, dumps

        known = {"geometry": self.geometry, "tensor_parallel": list(self.sizes), "device": self.device}
        write(self.json, lambda: dumps(document("bench", self.command, environment(), known | summary, **lists)))

    def where(self) -> str:
        """The machine in words, and that a CPU says nothing of a GPU."""
        from ...oracle.environment import environment

        name = str(environment()["device"]["name"])
        return name if self.device.startswith("cuda") else f"{name}: CPU figures; they say nothing of a GPU"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What kernels print goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def crossover(asked: Asked, policy: str | None) -> int:
    """Where masked MHA stops winning, the cost of another machine's table, and the policy file."""
    from . import crossover as crossing
    from .crossover_report import draw, print_crossover

    geometry = load(asked.geometry)
    with _quiet():
        rows, text = crossing.run(asked.geometry, asked.sizes, device=asked.device, seconds=asked.seconds)
    asked.written({}, **crossing.as_lists(geometry, rows))
    write(policy, lambda: text)
    if asked.png:
        draw(geometry, rows, asked.where(), Path(asked.png))
    print_crossover(console(stderr="-" in (asked.json, policy)), geometry, rows)
    return 0


def whole(asked: Asked, batches: Sequence[str], routes: Sequence[str]) -> int:
    """Every route on every prompt; 2 if nothing was timed."""
    from . import whole as wholes
    from .whole_report import print_whole

    if not batches:
        raise BadInput("bench whole: expected batches of one request such as q4k or q512s8k")
    if asked.png:
        raise BadInput("--png: bench whole draws nothing; take --json")
    with _quiet():
        found = wholes.run(
            batches, load(asked.geometry), asked.sizes, routes, device=asked.device, seconds=asked.seconds
        )
    asked.written({"routes": list(routes)}, results=[one.as_dict() for one in found])
    print_whole(console(stderr=asked.json == "-"), asked.geometry, found, asked.where())
    return 0 if any(one.total for one in found) else 2


def decode(asked: Asked, requests: Sequence[int], steps: int) -> int:
    """A decode step with and without the skip, at each number of requests."""
    from . import decode as decoding
    from .whole_report import print_decode

    if asked.png:
        raise BadInput("--png: bench decode draws nothing; take --json")
    size = asked.sizes[0] if len(asked.sizes) == 1 else 4
    with _quiet():
        found = decoding.measure(load(asked.geometry), size, requests, steps, device=asked.device)
    asked.written({"tensor_parallel": [size]}, results=[one.as_dict() for one in found])
    print_decode(console(stderr=asked.json == "-"), asked.geometry, size, found, asked.where())
    return 0
