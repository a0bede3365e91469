"""Makers of graphs: emulated on the CPU, real ones (``cuda``), and none at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...optimized import triton_runtime
from ..errors import BadInput
from .backend import Buffers, Function, Graph, Maker
from .pool import Pool
from .recording import Op, Recording


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
