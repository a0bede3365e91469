"""Timing several functions fairly: in turn, from a cold cache, each call by itself; medians and quartiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: Written before every timed call on a GPU: more than any L2 holds (60 MB on an H200, 126 MB on a B200).
_FLUSH_BYTES = 256 * 2**20
_LEAST, _MOST = 3, 200


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one function, in seconds."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    calls: int

    @property
    def spread(self) -> float:
        """Distance of the quartiles, relative to the median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))


def interleaved(
    functions: Sequence[Callable[[], Any]], device: torch.device, *, seconds: float, least: int = _LEAST
) -> list[Timing]:
    """Timings of all functions, called in turn for about ``seconds`` each, ``least`` calls at any rate.

    They share clocks, temperature and neighbours that way. The order rotates, so that no function always follows the
    same other. Every function is called twice before: compilation and first allocations are not timed.
    """
    clock = _gpu_clock(device) if device.type == "cuda" else _cpu_clock
    for function in functions:
        function()
        function()
    first = [clock(function) for function in functions]
    rounds = max(least, min(_MOST, int(seconds / max(1e-9, statistics.fmean(x() for x in first)))))
    pending: list[list[Callable[[], float]]] = [[] for _ in functions]
    for turn in range(rounds):
        for step in range(len(functions)):
            which = (turn + step) % len(functions)
            pending[which].append(clock(functions[which]))
        if device.type != "cuda" or turn % 16 == 15:
            pending = [[_done(taken()) for taken in each] for each in pending]
    return [Timing.of([taken() for taken in each]) for each in pending]


def once(function: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """What the function returns, and the seconds by the clock until the device is done with it."""
    started = time.perf_counter()
    result = function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, time.perf_counter() - started


def _done(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def _cpu_clock(function: Callable[[], Any]) -> Callable[[], float]:
    started = time.perf_counter()
    function()
    return _done(time.perf_counter() - started)


def _gpu_clock(device: torch.device) -> Callable[[Callable[[], Any]], Callable[[], float]]:
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)

    def clock(function: Callable[[], Any]) -> Callable[[], float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        flush.zero_()
        start.record()
        function()
        end.record()

        def taken() -> float:
            end.synchronize()
            return float(start.elapsed_time(end)) / 1000.0

        return taken

    return clock
