"""Real CUDA graphs.

Illegal calls are refused before CUDA sees them, so that a capture that fails ends like one that went well. What slips
through invalidates the capture: the allocator is told that it ended, and a trivial capture puts the state of the random
generator right, which PyTorch leaves capturing.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .backend import Buffers, Function, Graph
from .recording import Op, Recording
from .violation import CaptureFailed


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Any, ops: Sequence[Op]) -> None:
        self._graph, self.outputs, self.ops = graph, outputs, ops

    def replay(self) -> None:
        self.launch()
        torch.cuda.synchronize()

    def launch(self) -> None:
        self._graph.replay()


class CudaMaker:
    """``torch.cuda.CUDAGraph``, all graphs in one pool. ``strict`` False lets CUDA itself object."""

    name = "cuda"

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self.pool = torch.cuda.graph_pool_handle()

    def capture(self, what: str, function: Function, buffers: Buffers) -> Graph:
        self._warm_up(function)
        graph = torch.cuda.CUDAGraph()
        recording = Recording(what, buffers, strict=self.strict, real=True)
        try:
            # Only this thread's unsafe calls count: another thread's must not end our capture.
            with (
                _no_collection(),
                torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"),
                recording,
            ):
                outputs = function()
        except Exception as error:
            first = _first(error)
            if isinstance(first, CaptureFailed):
                # Refused before CUDA saw it: the capture ended in order.
                self.pool = torch.cuda.graph_pool_handle()
                raise first from None
            self._recover()
            told = f"{type(first).__name__}: {str(first).strip().splitlines()[0]}"
            raise CaptureFailed(what, recording.illegal, told) from error
        return _CudaGraph(graph, outputs, recording.ops)

    def _warm_up(self, function: Function) -> None:
        """Compile, load and allocate workspaces on a side stream, which a capture may not do."""
        torch.cuda.synchronize()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def _recover(self) -> None:
        ended = getattr(torch._C, "_cuda_endAllocateToPool", None)
        if ended is not None:
            with contextlib.suppress(Exception):
                ended(torch.cuda.current_device(), self.pool)
        with contextlib.suppress(Exception):
            torch.cuda.synchronize()
        with contextlib.suppress(Exception):
            trivial = torch.cuda.CUDAGraph()
            with torch.cuda.graph(trivial, capture_error_mode="thread_local"):
                torch.zeros(1, device="cuda")
        # A pool whose capture broke off is not used again.
        self.pool = torch.cuda.graph_pool_handle()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection meanwhile: an earlier graph that it frees in a capture invalidates that capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _first(error: BaseException) -> BaseException:
    """What was raised inside the capture; ending a broken capture raises once more and hides it."""
    chain = [error]
    while chain[-1].__context__ is not None and len(chain) < 32:
        chain.append(chain[-1].__context__)
    return next((one for one in chain if isinstance(one, CaptureFailed)), chain[-1])
