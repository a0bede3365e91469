"""Graph makers: real, emulated, and none at all, behind one small protocol.

``capture`` warms a function up by running it, then captures it without running it, as an engine does at start-up. The
function takes no argument and works on memory that stays; ``buffers`` names that memory. A graph's ``outputs`` are what
the function returned: memory of the pool, valid until another graph of the pool is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from ...optimized import triton_runtime
from ..errors import BadInput
from .pool import Pool
from .recording import Op, Recording

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


def maker(device: str) -> Maker:
    """Real graphs on ``cuda``, the emulator on ``cpu``. Raises BadInput for another device."""
    if device == "cuda":
        from .cuda import CudaMaker

        return CudaMaker()
    if device == "cpu":
        return EmulatedMaker()
    raise BadInput(f"device: expected cpu or cuda, got {device!r}")


class _EmulatedGraph:
    def __init__(self, outputs: Any, ops: Sequence[Op]) -> None:
        self.outputs, self.ops = outputs, ops

    def replay(self) -> None:
        for op in self.ops:
            if op.again is not None:
                op.again()

    launch = replay


class EmulatedMaker:
    """On the CPU: host values, addresses and control flow frozen, a private pool, device reads refused.

    Every tensor counts as one of the device but those that a capture makes without naming a device.
    """

    name = "emulated"

    def __init__(self) -> None:
        triton_runtime.prepare_if_available()  # torch's dispatch modes would import Triton compiled
        self.pool = Pool()

    def capture(self, what: str, function: Function, buffers: Buffers) -> Graph:
        function()
        self.pool.touched.clear()
        recording = Recording(what, buffers, strict=True, pool=self.pool)
        try:
            with recording:
                outputs = function()
        finally:
            self.pool.poison()
        return _EmulatedGraph(outputs, recording.ops)


class _EagerGraph:
    def __init__(self, what: str, function: Function, buffers: Buffers) -> None:
        self._what, self._function, self._buffers = what, function, buffers
        self.outputs: Any = None
        self.ops: Sequence[Op] = ()

    def replay(self) -> None:
        real = any(buffer.device.type != "cpu" for buffer in self._buffers.values())
        with Recording(self._what, self._buffers, strict=False, real=real) as recording:
            self.outputs = self._function()
        self.ops = recording.ops

    launch = replay


class EagerMaker:
    """No graph: a replay runs the function anew, and records what it would have been."""

    name = "eager"

    def __init__(self) -> None:
        triton_runtime.prepare_if_available()  # torch's dispatch modes would import Triton compiled

    def capture(self, what: str, function: Function, buffers: Buffers) -> Graph:
        return _EagerGraph(what, function, buffers)
