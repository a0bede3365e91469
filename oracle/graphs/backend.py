"""What a graph and its maker are: one small protocol for real, emulated and no graphs (``makers``).

``capture`` warms a function up by running it, then captures it without running it, as an engine does at start-up. The
function takes no argument and works on memory that stays; ``buffers`` names that memory. A graph's ``outputs`` are what
the function returned: memory of the pool, valid until another graph of the pool is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from .recording import Op

Function = Callable[[], Any]
Buffers = Mapping[str, Tensor]


class Graph(Protocol):
    """Something captured."""

    outputs: Any
    ops: Sequence[Op]

    def replay(self) -> None:
        """Run the captured operations on whatever the memory holds now."""

    def launch(self) -> None:
        """The same without waiting for the device."""


class Maker(Protocol):
    """Captures functions; all its graphs share one pool."""

    name: str

    def capture(self, what: str, function: Function, buffers: Buffers) -> Graph:
        """Raises CaptureFailed, which names the call that stood against it; the process stays usable."""


#: One line a maker for the output of commands.
Capturing = {
    "cuda": "real graphs: torch.cuda.CUDAGraph",
    "emulated": "no GPU: graphs are emulated on the CPU",
    "eager": "no graphs",
}
