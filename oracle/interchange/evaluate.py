"""What a verdict is in the words of flashinfer-bench, with the errors and times that its records hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ... import reference
from ...optimized.implementation import Implementation
from ..calling.call import Raised, called
from ..environment import environment
from ..judge.units import LN2
from ..verdict import Verdict
from .jobs import Job
from .records import Evaluation

#: Runs that the time is the mean of.
RUNS = 3
#: Stands for an error that is NaN or infinite: JSON has no number for it.
WORST = torch.finfo(torch.float64).max


def evaluated(job: Job, implementation: Implementation, verdict: Verdict, device: str) -> Evaluation | None:
    """The record of a verdict; None where nothing was judged (UNSUPPORTED, WEAK)."""
    status = _status(verdict)
    if status is None:
        return None
    facts = environment()
    libs = {name: str(facts[name]) for name in ("attnoracle", "python", "torch", "triton") if facts.get(name)}
    errors, times = None, None
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        # Drawn anew: the kernel that was judged may have written to its inputs.
        arguments = job.draw(job.case, device).kwargs()
        right = getattr(reference, job.form.operator)
        errors = _errors(implementation, arguments, right)
        if status == "PASSED":
            run = implementation.prepare(**arguments)
            times = _milliseconds(run, device), _milliseconds(lambda: right(**arguments), device)
    told = [verdict.reason or verdict.status, *(f"{one.check}: {one.message}" for one in verdict.findings)]
    return Evaluation(
        status=status,
        log="\n".join(told),
        hardware=verdict.device,
        libs=libs,
        timestamp=str(facts["date"]),
        errors=errors,
        milliseconds=times,
    )


def _status(verdict: Verdict) -> str | None:
    if verdict.status in ("UNSUPPORTED", "WEAK"):
        return None
    if verdict.status == "PASS":
        return "PASSED"
    if verdict.status == "ERROR":
        return "TIMEOUT" if verdict.reason.startswith("no answer after") else "RUNTIME_ERROR"
    structure = [one.message for one in verdict.findings if one.check == "structure"]
    for words, status in (("has dtype", "INCORRECT_DTYPE"), ("has shape", "INCORRECT_SHAPE")):
        if any(words in message for message in structure):
            return status
    return "INCORRECT_NUMERICAL"


def _errors(
    implementation: Implementation, arguments: Mapping[str, Any], right: Callable[..., Any]
) -> tuple[float, float]:
    """Largest relative and absolute error over all outputs against the reference in double precision."""
    wide = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }
    try:
        device = next(value.device for value in arguments.values() if isinstance(value, Tensor))
        outputs = called(implementation, device, arguments)
    except Raised:
        return WORST, WORST
    exact = right(**wide)
    exact = exact if isinstance(exact, tuple) else (exact,)
    relative = absolute = 0.0
    for place, (seen, due) in enumerate(zip(outputs, exact, strict=False)):
        found = seen.double() * (LN2 if place == 1 and implementation.contract.lse_base == "2" else 1.0)
        off = torch.where(found == due, 0.0, (found - due.double()).abs())
        absolute = max(absolute, _finite(off))
        relative = max(relative, _finite(torch.where(off == 0.0, 0.0, off / due.double().abs())))
    return relative, absolute


def _finite(errors: Tensor) -> float:
    most = float(errors.nan_to_num(math.inf).max()) if errors.numel() else 0.0
    return most if math.isfinite(most) else WORST


def _milliseconds(run: Callable[[], Any], device: str) -> float:
    """Mean time of a run, the first one left out."""
    run()
    _wait(device)
    started = time.perf_counter()
    for _ in range(RUNS):
        run()
    _wait(device)
    return 1e3 * (time.perf_counter() - started) / RUNS


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
