"""What a verdict says by itself: damage, changed inputs, wrong shapes, answers that differ by run or by call.

Such a failure is no matter of how well numbers fit; it is read off, and where it can be, put more closely: an output
that adds up, sums in another order, an input of the first call that is used in the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ...optimized.implementation import Implementation
from ..calling.call import Raised, called
from ..calling.memory import guarded_allocations
from ..calling.once import run_once
from ..case import Case
from ..cause.named import Make
from ..check import drawn
from ..faults.simulated import KERNELS, simulated
from ..sequence import later_calls
from ..verdict import Verdict
from .distance import gap
from .exact import LAYOUTS
from .expectation import expectation, normalised
from .hypothesis import Hypothesis, Stage
from .observation import named_outputs, observe

#: Words of a structure finding, and the idea that they stand for.
_STRUCTURE: tuple[tuple[str, str, Stage], ...] = (
    ("has dtype", "output format", "output"),
    ("has shape", "output shape", "output"),
    ("outputs, expected", "output missing", "output"),
    ("changed its inputs", "inputs changed", "memory"),
    ("changed", "global state changed", "state"),
)


def marks(verdict: Verdict, make: Make, device: str) -> list[Hypothesis]:
    """Hypotheses that the verdict gives away, most telling first."""
    return [*_damage(verdict), *_runs(verdict, make, device), *_calls(verdict, make, device)]


def _mark(name: str, stage: Stage, words: str) -> Hypothesis:
    return Hypothesis(name, stage, words[:1].upper() + words[1:], lambda **a: ())


def _damage(verdict: Verdict) -> Iterator[Hypothesis]:
    if verdict.status == "ERROR":
        yield _mark("it raises", "output", f"it raises: {verdict.reason}")
    for finding in verdict.findings:
        if finding.check == "memory":
            yield _mark("stray write", "memory", f"it writes outside what it was given: {finding.message}.")
        for part, name, stage in _STRUCTURE:
            if finding.check == "structure" and part in finding.message:
                yield _mark(name, stage, f"it {finding.message}." if part == "changed" else f"{finding.message}.")
                break


def _runs(verdict: Verdict, make: Make, device: str) -> Iterator[Hypothesis]:
    """Two runs on the same inputs differ: how?"""
    if not any(finding.check == "rerun" for finding in verdict.findings) or verdict.case.operator not in KERNELS:
        return
    made, case = make(), verdict.case
    if case.operator in LAYOUTS:
        yield from _bytes_differ(case, made, device)
        return
    inputs = drawn(case, device)
    try:
        runs = [
            run_once(made, inputs.arena.device, fill, inputs.kwargs()).outputs
            for fill in ("nan", "nan", "stale", "nan")
        ]
    except Raised:
        return
    if all(_equal(runs[0], run) for run in (runs[1], runs[3])):
        return  # the same memory, the same answer: what differs is memory that is not written
    expected = expectation(case.operator, inputs.kwargs(), made.contract)
    answers = [normalised(named_outputs(case.operator, run), made.contract, expected.exact) for run in runs]
    # A selection has no exact answer in fp64: that of a right kernel stands for it.
    exact = expected.exact or named_outputs(case.operator, simulated(case.operator)(**inputs.kwargs()))
    off = [gap(answer, exact, expected.allowed, inputs.kwargs()).off for answer in answers]
    first = next(iter(answers[0]))
    if not any(off):
        yield _mark("order of sums varies", "state", "every run is right, and no two are equal: sums in varying order.")
    elif expected.exact and _adds_up([answer[first] for answer in answers], expected.allowed[first]):
        yield _mark("output accumulates", "state", "each run adds its answer to that of the run before.")
    else:
        right = sum(not count for count in off)
        yield _mark("runs differ", "state", f"{right} of {len(off)} runs are right: a race, or state that is kept.")


def _bytes_differ(case: Case, made: Implementation, device: str) -> Iterator[Hypothesis]:
    """Of an answer that has to be right bit by bit: by the memory it was given, or by chance."""
    runs = [observe(case, made, device, fill=fill) for fill in ("nan", "stale", "nan")]
    first, stale, again = (seen.answer for seen in runs)
    if not (first and stale and again) or not _equal(first.values(), again.values()):
        yield _mark("runs differ", "state", "two runs on the same inputs and memory differ: a race, or state kept.")
    elif not runs[0].deviation().off:
        off = {name: int((first[name] != stale[name]).sum()) for name in first}
        told = ", ".join(f"{count} elements of {name}" for name, count in off.items() if count)
        yield _mark("not written", "output", f"never written: {told} hold what was in the memory before.")


def _equal(a: Any, b: Any) -> bool:
    """Whether two answers agree bit for bit, any NaN equal to any other."""
    return all(bool(((x == y) | ((x != x) & (y != y))).all()) for x, y in zip(a, b, strict=True))


def _adds_up(runs: list[Tensor], allowed: Tensor) -> bool:
    """Whether run n is n times the first."""
    return all(
        bool(((run - (n + 1) * runs[0]).abs() <= (n + 2) * allowed.clamp_min(0.0)).double().mean() > 0.98)
        for n, run in enumerate(runs)
    )


def _calls(verdict: Verdict, make: Make, device: str) -> Iterator[Hypothesis]:
    """A later call on the same memory is wrong: what of the first one does it use?"""
    if not any(finding.check == "sequence" for finding in verdict.findings):
        return
    if any("first answer" in finding.message for finding in verdict.findings):
        yield _mark(
            "output buffer shared", "state", "every call returns the same memory: a later one changes the answer."
        )
    case, made = verdict.case, make()
    if case.operator not in KERNELS:
        return
    right = simulated(case.operator)
    inputs = drawn(case, device)
    before = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.kwargs().items()}
    with guarded_allocations("stale"):
        called(made, inputs.arena.device, inputs.kwargs())
        for _, later in later_calls(case, inputs, device):
            got = _tensors(case, called(made, inputs.arena.device, later))
            told = _kept(case, right, before, later, got, made.contract)
            if told is not None:
                yield told
                return
    yield _mark(
        "state kept", "state", "a later call is wrong and the first is right: something survives between calls."
    )


def _tensors(case: Case, outputs: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in named_outputs(case.operator, outputs).items()}


def _kept(
    case: Case,
    right: Any,
    before: Mapping[str, Any],
    later: Mapping[str, Any],
    got: Mapping[str, Tensor],
    contract: Any,
) -> Hypothesis | None:
    """What of the call before explains a later answer."""
    expected = expectation(case.operator, later, contract)
    seen = normalised(got, contract, expected.exact)
    base = normalised(named_outputs(case.operator, right(**later)), contract, expected.exact)
    whole = gap(seen, base, expected.allowed, later)
    if not whole.off:
        return None
    tries: list[tuple[str, Mapping[str, Any], str]] = [("answer kept", before, "the answer of the first call")]
    lengths = {name: before[name] for name in ("cu_q", "cu_k", "ks", "ke") if name in before}
    tries.append(("lengths kept", {**later, **lengths}, "the lengths of the first call"))
    tries += [(f"{name} kept", {**later, name: before[name]}, f"{name} of the first call") for name in later]
    for name, arguments, words in tries:
        try:
            answer = normalised(named_outputs(case.operator, right(**arguments)), contract, expected.exact)
        except (RuntimeError, IndexError, ValueError):
            continue
        left = gap(seen, answer, expected.allowed, later)
        if left.off <= 0.02 * whole.off:
            return _mark(name, "state", f"a later call uses {words}.")
    return None


__all__ = ("marks",)
