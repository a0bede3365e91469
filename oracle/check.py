"""The one loop: make the inputs, run the implementation in a memory that tells on it, judge what came back.

Everything else composes ``check(case, implementation)``: the CLI, the worker pool, the tests, the audit.

The implementation runs before the reference, so memory that held the right answer cannot be handed to it. It runs
twice: first with every fresh allocation full of NaN, so that an element it does not write shows; then with a plausible
stale answer there, so that an element it adds to shows as a difference between the runs. A verdict whose statistics
are neither likely nor impossible is tried on fresh seeds before it is given.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import reference
from ..optimized.implementation import Implementation
from .calling.call import Raised, told
from .calling.once import answer_of, run_once
from .case import Case
from .config import load, origin
from .errors import Unsupported
from .facts import facts
from .inputs import Inputs, make
from .judge.conventions import View, declared, explained
from .judge.findings import Judgement
from .operators import Operator, operator
from .sequence import sequence as second_call
from .value_range import leaves_range
from .verdict import Finding, Status, Verdict

#: Fresh seeds that decide a SUSPECT, and how many of them must be suspect again to make it a FAIL: a right
#: implementation is suspect on a seed with chance 1e-3 at most, so on one and two of eight more with 3e-8.
FRESH_SEEDS = 8
AGAIN = 2
#: Distance between a case's seed and its fresh ones; suites use seeds far below it.
SEED_STRIDE = 1_000_003

#: (case, device) to the tensors that a kernel is given.
Draw = Callable[[Case, str], Inputs]


def drawn(case: Case, device: str) -> Inputs:
    """The tensors that a case stands for."""
    return make(case, load(case.geometry), device)


class Outcome(NamedTuple):
    """What a check came to."""

    status: Status
    reason: str
    judgement: Judgement


def check(
    case: Case,
    implementation: Implementation,
    *,
    device: str = "cpu",
    sequence: bool = False,
    draw: Draw = drawn,
    redraw: Draw = drawn,
    explain: bool = True,
) -> Verdict:
    """Judge one implementation on one case.

    ``draw`` makes the tensors; a bundle hands out those that it holds, and ``redraw`` makes those of other seeds.
    ``explain`` looks for a convention under which a wrong answer would be right, and names it in the findings.
    ``sequence`` adds the check of that name (see ``sequence.py``) where all others held: three calls on one memory.
    It triples the time, so the audit asks for it and the differential matrix does not.

    Never raises for what the implementation does: an exception becomes an ERROR verdict. Raises BadInput for a case
    that cannot be (unknown geometry, kind or option).
    """
    started = time.perf_counter()
    known = facts(case, load(case.geometry), device)
    try:
        status, reason, found = _outcome(case, implementation, known, device, sequence, draw, redraw, explain)
    except Raised as raised:
        status, reason, found = Outcome("ERROR", str(raised), Judgement())
    except Unsupported as unsupported:
        status, reason, found = Outcome("UNSUPPORTED", str(unsupported), Judgement())
    return Verdict(
        case=case,
        implementation=implementation.name,
        status=status,
        reason=reason,
        findings=tuple(found.findings + found.suspicions),
        measures=found.measures,
        worst=tuple(found.worst),
        error_map=found.error_map,
        seconds=time.perf_counter() - started,
        device=_device_name(device),
        origin=_origin(case, implementation),
    )


def _outcome(
    case: Case,
    implementation: Implementation,
    known: Mapping[str, Any],
    device: str,
    sequence: bool,
    draw: Draw,
    redraw: Draw,
    explain: bool,
) -> Outcome:
    """The steps of a check, until one decides. Raises Raised for what the implementation raises, or Unsupported."""
    if (reason := _refusal(case, implementation, known)) is not None:
        return Outcome("UNSUPPORTED", reason, Judgement())
    judgement = _judged(case, implementation, device, draw, power=True, explain=explain)
    if judgement.suspicions and not judgement.findings:
        again = _suspect_again(case, implementation, device, redraw)
        judgement.measures["suspect_seeds"] = float(again)
        if again >= AGAIN:
            first = judgement.suspicions[0].message
            return Outcome("FAIL", f"{first}, and so on {again} of {FRESH_SEEDS} fresh seeds", judgement)
        judgement.suspicions.clear()
    if sequence and not judgement.findings:
        judgement.findings += _later_calls(case, implementation, device)
    if judgement.findings:
        return Outcome("FAIL", judgement.findings[0].message, judgement)
    if judgement.survivors:
        told = ", ".join(judgement.survivors)
        return Outcome("WEAK", f"this input cannot tell the answer from: {told}", judgement)
    return Outcome("PASS", "", judgement)


def _refusal(case: Case, implementation: Implementation, known: Mapping[str, Any]) -> str | None:
    """Why the implementation does not take a case, in its own words or by its contract; None where it does."""
    try:
        reason = implementation.supports(known)
    except Exception as error:
        raise Raised(f"supports() raised {told(error, implementation)}") from error
    if not (reason is None or isinstance(reason, str)):
        raise Raised(f"supports() returned {reason!r}, expected None or the reason why not")
    return leaves_range(case, implementation.contract) if reason is None else reason


def _suspect_again(case: Case, implementation: Implementation, device: str, redraw: Draw) -> int:
    """On how many of the fresh seeds something is suspect again, or worse."""
    fresh = (case.with_seed(case.seed + number * SEED_STRIDE) for number in range(1, FRESH_SEEDS + 1))
    judged = (_judged(one, implementation, device, redraw, power=False) for one in fresh)
    return sum(bool(one.findings or one.suspicions) for one in judged)


def _later_calls(case: Case, implementation: Implementation, device: str) -> list[Finding]:
    """What later calls on the same memory got wrong."""
    try:
        return second_call(case, implementation, device)
    except Raised as raised:
        raise Raised(f"on a second call: {raised}") from raised


def _judged(
    case: Case, implementation: Implementation, device: str, draw: Draw, *, power: bool, explain: bool = False
) -> Judgement:
    """One judgement on one seed: run twice, then memory, structure, repetition and numbers.

    An operator that writes in place gets its inputs anew for the second run, and for the judge.
    """
    op = operator(case.operator)
    inputs = draw(case, device)
    arguments = inputs.kwargs()
    before = inputs.fingerprint()
    judgement = Judgement()
    first = run_once(implementation, inputs.arena.device, "nan", arguments)
    judgement.findings += first.problems
    judgement.findings += _structure(op, arguments, first.outputs, implementation)
    kept = _inputs_kept(op, inputs, before)
    judgement.findings += kept
    if judgement.findings:
        # An answer of the wrong shape may still be read; not by a reference whose inputs were written over.
        readable = explain and not (kept or first.problems)
        return _explained(judgement, op, arguments, first.outputs, implementation) if readable else judgement
    again = draw(case, device) if op.writes else inputs
    second = run_once(implementation, again.arena.device, "stale", again.kwargs())
    judgement.findings += second.problems
    judgement.findings += _structure(op, arguments, second.outputs, implementation)
    judgement.findings += _inputs_kept(op, again, before)
    if judgement.findings:
        return judgement
    answers = answer_of(op, inputs, first.outputs), answer_of(op, again, second.outputs)
    arguments = draw(case, device).kwargs() if op.writes else arguments
    if implementation.contract.deterministic:
        runs = (op.settle(arguments, answer, implementation.contract) for answer in answers)
        judgement.findings += _repeats(op, *runs)
    numbers = op.judge(arguments, answers[0], implementation.contract, power)
    if not implementation.contract.deterministic:
        # Two answers that may differ are two answers to judge.
        other = op.judge(arguments, answers[1], implementation.contract, False)
        numbers.findings += other.findings
        numbers.suspicions += other.suspicions
    numbers.findings[:0] = judgement.findings
    return _explained(numbers, op, arguments, answers[0], implementation) if explain and numbers.findings else numbers


def _explained(
    judgement: Judgement, op: Operator, arguments: Mapping[str, Any], outputs: Any, implementation: Implementation
) -> Judgement:
    """The judgement with the convention named that would make its findings go away, if there is one."""
    if "lse" not in op.outputs and op.name != "topk_select":
        return judgement  # there is no hypothesis about the others
    device = next(value.device for value in arguments.values() if isinstance(value, Tensor))
    if not isinstance(outputs, tuple) or not all(_readable(x, device) for x in outputs):
        return judgement
    contract = implementation.contract
    dtypes = tuple(allowed[0] for allowed in op.dtypes(arguments, contract))

    def right() -> tuple[Tensor, ...]:
        return declared(getattr(reference, op.name)(**arguments), contract, dtypes)

    return explained(judgement, View(arguments, outputs, contract), op.judge, op.shapes(arguments), right)


def _readable(output: object, device: torch.device) -> bool:
    """Whether a judge can look at an output, be its shape and dtype as they may."""
    return (
        isinstance(output, Tensor)
        and output.device == device
        and output.layout is torch.strided
        and not output.is_complex()
    )


def _inputs_kept(op: Operator, inputs: Inputs, before: Mapping[str, object]) -> list[Finding]:
    """Inputs unchanged but for what the operator writes, red zones intact."""
    found = [Finding("memory", message, True) for message in inputs.damage()]
    after = inputs.fingerprint()
    changed = [name for name in before if before[name] != after[name] and name not in op.writes]
    if changed and not found:
        found.append(Finding("structure", f"changed its inputs: {', '.join(changed)}", True))
    return found


def _structure(
    op: Operator, arguments: Mapping[str, Any], outputs: Any, implementation: Implementation
) -> list[Finding]:
    """Number, type, device, shape and dtype of the outputs."""
    names = op.outputs
    if op.writes:
        kept = outputs is None or outputs == ()
        return [] if kept else [Finding("structure", "returned something, expected nothing: it writes in place", True)]
    if "lse" in names and implementation.contract.lse_base is None:
        names = tuple(name for name in names if name != "lse")
    if not isinstance(outputs, tuple) or len(outputs) != len(names):
        many = "" if isinstance(outputs, tuple) and len(outputs) == 1 else "s"
        got = f"{len(outputs)} output{many}" if isinstance(outputs, tuple) else type(outputs).__name__
        return [Finding("structure", f"returned {got}, expected a tuple of {', '.join(names)}", True)]
    shapes, dtypes = op.shapes(arguments), op.dtypes(arguments, implementation.contract)
    device = next(value for value in arguments.values() if isinstance(value, Tensor)).device
    found = []
    for name, value, shape, allowed in zip(names, outputs, shapes, dtypes, strict=False):
        if not isinstance(value, Tensor):
            found.append(f"{name} is a {type(value).__name__}, expected a tensor")
        elif tuple(value.shape) != shape:
            found.append(f"{name} has shape {list(value.shape)}, expected {list(shape)}")
        elif value.layout is not torch.strided:
            found.append(f"{name} has layout {value.layout}, expected a strided tensor")
        elif value.dtype not in allowed:
            found.append(f"{name} has dtype {value.dtype}, expected {' or '.join(map(str, allowed))}")
        elif value.device != device:
            found.append(f"{name} is on {value.device}, expected {device}")
    return [Finding("structure", message, True) for message in found]


def _repeats(op: Operator, first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> list[Finding]:
    """Bit equality of two runs on the same inputs; equal NaN count as equal."""
    found = []
    for name, a, b in zip(op.outputs, first, second, strict=False):
        if a.element_size() == 1:  # torch compares no float8
            a, b = a.view(torch.uint8), b.view(torch.uint8)
        differs = (a != b) & ~(torch.isnan(a) & torch.isnan(b)) if a.is_floating_point() else a != b
        if bool(differs.any()):
            message = f"{name} differs between two runs at {int(differs.sum())} of {differs.numel()} elements"
            found.append(Finding("rerun", message, True))
    return found


def _origin(case: Case, implementation: Implementation) -> str:
    """See ``Verdict.origin``."""
    path = origin(case.geometry)
    return " ".join(filter(None, (implementation.origin, f"--geometry {shlex.quote(path)}" if path else "")))


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
