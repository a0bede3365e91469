"""What one call takes: the device's time with the host's work hidden, and the host's own.

A kernel of 60 us whose launch takes the host 150 us is two figures. Under a full queue, as in an engine, the device
never waits for the host, so what is compared is the device's time: before each timed call so many flushes of the L2 are
queued that the host has done all its work before the device comes to the call. A call proves that by itself: when it
returned, the device has not yet passed the event at its start. All functions of one comparison get the same queue.

A function that waits for the device inside never has a full queue behind it, here as in an engine. It is found by its
host time, which grows with the queue, and timed after a flush that is waited for: nothing of a queue is in its figures,
and its host work is in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

#: Written before every timed call on a GPU: more than any L2 holds (60 MB on an H200, 126 MB on a B200).
FLUSH_BYTES = 256 * 2**20
#: Most flushes in a queue: 17 ms on an H200, and far from the 1,024 launches that CUDA's own queue holds.
MOST = 256
#: The queue lasts so many times as long as the host takes, for the host's slow moments.
SPARE = 3.0
Function = Callable[[], Any]
#: hidden: the device had work until the host was done; exposed: it had none left, even after the longest queue;
#: waits: the function itself waits for the device; empty: there is no device beside the host.
HostWork = Literal["hidden", "exposed", "waits", ""]


@dataclass(frozen=True, slots=True)
class Call:
    """One call, in seconds."""

    device: float
    """From the device's start of it to its end."""
    host: float
    """Until the function returned."""
    hidden: bool
    """Whether the device had not begun when the function returned."""


class Clock(Protocol):
    """Times calls of its functions, one at a time."""

    host_work: Sequence[HostWork]
    """Of each function."""

    def __call__(self, which: int) -> Call: ...


class Event(Protocol):
    """A place in the device's queue."""

    def record(self) -> None: ...
    def query(self) -> bool:
        """Whether the device has passed it."""

    def synchronize(self) -> None: ...
    def elapsed_time(self, end: Any) -> float:
        """Milliseconds."""


class Device(Protocol):
    """What the clock needs of a device."""

    def flush(self) -> None:
        """Queue a write over all of the L2."""

    def event(self) -> Event: ...
    def synchronize(self) -> None: ...
    def now(self) -> float:
        """Seconds by the host's clock."""


class Cuda:
    """A GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)

    def flush(self) -> None:
        self._memory.zero_()

    def event(self) -> Event:
        made: Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return made

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def now(self) -> float:
        return time.perf_counter()


class HostClock:
    """For functions that are done when they return."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = functions
        self.host_work: Sequence[HostWork] = ["" for _ in functions]

    def __call__(self, which: int) -> Call:
        began = time.perf_counter()
        self._functions[which]()
        taken = time.perf_counter() - began
        return Call(taken, taken, True)


class DeviceClock:
    """For functions that leave work to a device. Each is called four times or more to find the queue they need."""

    def __init__(self, device: Device, functions: Sequence[Function]) -> None:
        self._device, self._functions = device, functions
        self.flush_seconds = min(self._flush() for _ in range(3))
        needs = [self._need(function) for function in functions]
        self.host_work: Sequence[HostWork] = [work for work, _ in needs]
        self.queue = max((flushes for work, flushes in needs if work == "hidden"), default=1)

    def __call__(self, which: int) -> Call:
        """One call, after the queue that all functions get but those that wait."""
        waits = self.host_work[which] == "waits"
        return self.call(self._functions[which], 1 if waits else self.queue, drained=waits)

    def call(self, function: Function, flushes: int, *, drained: bool = False) -> Call:
        """One call after so many flushes; ``drained``: after they are done."""
        device = self._device
        start, end = device.event(), device.event()
        device.synchronize()
        for _ in range(flushes):
            device.flush()
        if drained:
            device.synchronize()
        start.record()
        began = device.now()
        function()
        host = device.now() - began
        hidden = not start.query()
        end.record()
        end.synchronize()
        return Call(start.elapsed_time(end) / 1000.0, host, hidden)

    def _need(self, function: Function) -> tuple[HostWork, int]:
        """What becomes of a function's host work, and the flushes that hide it."""
        alone = min(self.call(function, 1).host for _ in range(2))
        flushes, grown = 1, 0
        while flushes < MOST:
            flushes = min(MOST, max(2 * flushes, 1 + int(SPARE * alone / self.flush_seconds)))
            calls = []
            for _ in range(2):  # the host may have had a slow moment
                calls.append(self.call(function, flushes))
                if calls[-1].hidden:
                    return "hidden", flushes
            # Behind two queues in a row, or the longest: a host's slow moments look like a wait behind one short queue.
            beyond = min(call.host for call in calls) - alone
            grown = grown + 1 if beyond > (flushes - 1) * self.flush_seconds / 2 else 0
            if grown == 2 or (grown and flushes == MOST):
                return "waits", 1
        return "exposed", MOST

    def _flush(self) -> float:
        start, end = self._device.event(), self._device.event()
        self._device.flush()
        start.record()
        for _ in range(4):
            self._device.flush()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 4000.0
