"""Timing several functions fairly: in turn, from a cold cache, each call by itself; medians and quartiles.

On a GPU the figures are the device's time, the host's work hidden behind a queue; the host's time stands beside it
(``clock.py``).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .clock import Call, Clock, Cuda, DeviceClock, HostClock, HostWork

_LEAST, _MOST = 3, 200


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one function, in seconds: of the device where there is one, else of the host."""

    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    calls: int
    host_seconds: float | None = None
    """Median until a call returned, without waiting for the device; None where there is none."""
    host_work: HostWork = ""
    """Whether it was hidden from the other figures."""

    @property
    def spread(self) -> float:
        """Distance of the quartiles, relative to the median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    @property
    def host_bound(self) -> bool:
        """Whether calls in a row take as long as the host, not the device, takes for them."""
        if self.host_seconds is None:
            return False
        return self.host_work == "waits" or self.host_seconds > self.median

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))

    @classmethod
    def of_calls(cls, calls: Sequence[Call], work: HostWork) -> Timing:
        low, median, high = statistics.quantiles([call.device for call in calls], n=4, method="inclusive")
        if work == "hidden" and 4 * sum(call.hidden for call in calls) < 3 * len(calls):
            work = "exposed"  # the host was slower than when the queue was chosen
        host = statistics.median(call.host for call in calls) if work else None
        return cls(median, low, high, len(calls), host, work)


def interleaved(
    functions: Sequence[Callable[[], Any]], device: torch.device, *, seconds: float, least: int = _LEAST
) -> list[Timing]:
    """Timings of all functions, called in turn for about ``seconds`` each, ``least`` calls at any rate.

    Every function is called before: compilation and first allocations are not timed.
    """
    for function in functions:
        function()
    return in_turn(clock_for(functions, device), seconds=seconds, least=least)


def clock_for(functions: Sequence[Callable[[], Any]], device: torch.device) -> Clock:
    """The clock of a device; it calls each function several times first."""
    if device.type == "cuda":
        return DeviceClock(Cuda(device), functions)
    for function in functions:
        function()
    return HostClock(functions)


def in_turn(clock: Clock, *, seconds: float, least: int = _LEAST) -> list[Timing]:
    """The same by a clock that has its functions."""
    count = len(clock.host_work)
    began = time.perf_counter()
    for which in range(count):
        clock(which)
    each = (time.perf_counter() - began) / max(1, count)  # queue included
    return rounds(clock, max(least, min(_MOST, int(seconds / max(1e-9, each)))))


def rounds(clock: Clock, number: int) -> list[Timing]:
    """Each function called so often, in turn: they share clocks, temperature and neighbours.

    The order rotates, so that no function always follows the same other.
    """
    count = len(clock.host_work)
    calls: list[list[Call]] = [[] for _ in range(count)]
    for turn in range(number):
        for step in range(count):
            which = (turn + step) % count
            calls[which].append(clock(which))
    return [Timing.of_calls(taken, work) for taken, work in zip(calls, clock.host_work, strict=True)]


def once(function: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    """What the function returns, and the seconds by the clock until the device is done with it."""
    started = time.perf_counter()
    result = function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, time.perf_counter() - started
