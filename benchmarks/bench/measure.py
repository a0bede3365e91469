"""One shape: every implementation checked on it first; those that pass are timed together on one set of inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ...optimized.implementation import Implementation
from ...oracle.case import Case
from ...oracle.check import check
from ...oracle.config import load
from ...oracle.errors import Unsupported
from ...oracle.inputs import make
from .timing import Timing, interleaved, once
from .work import Work, memory_needed, work

#: Copies of the inputs and of wide temporaries that the check and the kernels hold at once, roughly.
_HEADROOM = 3


@dataclass(frozen=True, slots=True)
class Result:
    """One implementation on one shape: timed, or the reason why not."""

    case: Case
    implementation: str
    status: str
    """``timed``; ``refused``: failed its check here; ``unsupported``: cannot run here."""
    reason: str = ""
    timing: Timing | None = None
    prepare_seconds: float | None = None
    """Planning, compilation and the first call, by the clock; never part of ``timing``."""
    work: Work | None = None
    peak_bytes: int | None = None
    """Device memory of one call beyond its inputs."""
    measures: dict[str, float] = field(default_factory=dict)
    """Of the verdict: how much of each budget was used."""

    @property
    def flops(self) -> float | None:
        """Useful operations a second."""
        return self.work.flops / self.timing.median if self.work and self.timing and self.work.flops else None

    @property
    def bytes(self) -> float | None:
        """Least bytes a second."""
        return self.work.bytes / self.timing.median if self.work and self.timing else None

    def as_dict(self) -> dict[str, Any]:
        case = self.case
        shape = {"operator": case.operator, "geometry": case.geometry, "heads": case.heads, "queries": case.queries}
        shape |= {"keys": case.keys, "topk": case.topk, "dtype": case.dtype, "options": list(case.options)}
        timing, known = None, self.timing
        host = {"host_seconds": None, "host_work": "", "host_bound": False}
        if known is not None:
            timing = {name: value for name, value in asdict(known).items() if name not in host}
            timing |= {"spread": known.spread}
            host = {name: getattr(known, name) for name in host}
        return {
            "case": case.id, **shape, "implementation": self.implementation, "status": self.status,
            "reason": self.reason, "seconds": timing, **host, "prepare_seconds": self.prepare_seconds,
            "work": asdict(self.work) if self.work else None, "flops_per_second": self.flops,
            "bytes_per_second": self.bytes, "peak_bytes": self.peak_bytes, "measures": self.measures,
        }  # fmt: skip


def measure(
    case: Case,
    candidates: Sequence[Implementation],
    device: str,
    *,
    seconds: float,
    on_done: Callable[[str], None] = lambda name: None,
) -> list[Result]:
    """Results in the order of the candidates. Raises Unsupported for a shape that does not fit the memory."""
    require_memory(case, device)
    found: dict[str, Result] = {}
    passed: list[Implementation] = []
    measures: dict[str, dict[str, float]] = {}
    for one in candidates:
        verdict = check(case, one, device=device)
        on_done(one.name)
        if verdict.status == "PASS":
            passed.append(one)
            measures[one.name] = verdict.measures
            continue
        status = "unsupported" if verdict.status == "UNSUPPORTED" else "refused"
        reason = verdict.reason if status == "unsupported" else f"{verdict.status}: {verdict.reason}"
        found[one.name] = Result(case, one.name, status, reason)
    if passed:
        for result in _timed(case, passed, measures, torch.device(device), seconds):
            found[result.implementation] = result
    return [found[one.name] for one in candidates]


def require_memory(case: Case, device: str) -> None:
    """Raises Unsupported with the bytes needed and had where the shape cannot fit."""
    needed = _HEADROOM * memory_needed(case, load(case.geometry))
    if device.startswith("cuda"):
        had = torch.cuda.mem_get_info(device)[0]
    else:
        had = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > had:
        raise Unsupported(
            f"{case.id}: needs about {needed / 2**30:.1f} GiB for inputs, outputs and check, this device has "
            f"{had / 2**30:.1f} GiB; take fewer heads, queries or keys"
        )


def _timed(
    case: Case,
    passed: Sequence[Implementation],
    measures: dict[str, dict[str, float]],
    device: torch.device,
    seconds: float,
) -> list[Result]:
    inputs = make(case, load(case.geometry), device)
    arguments = inputs.kwargs()
    prepared, peaks, runs = [], [], []
    for one in passed:

        def first(one: Implementation = one) -> Any:
            run = one.prepare(**arguments)
            run()
            return run

        run, taken = once(first, device)
        prepared.append(taken)
        runs.append(run)
        peaks.append(_peak(run, device))
    timings = interleaved(runs, device, seconds=seconds)
    todo = work(case, arguments)
    return [
        Result(case, one.name, "timed", "", timing, taken, todo, peak, measures[one.name])
        for one, timing, taken, peak in zip(passed, timings, prepared, peaks, strict=True)
    ]


def _peak(run: Callable[[], Any], device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
