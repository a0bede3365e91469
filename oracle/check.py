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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..optimized.implementation import Implementation
from .calling import Raised, called, told
from .case import Case
from .config import load, origin
from .errors import Unsupported
from .facts import facts
from .globals import GlobalState
from .inputs import Inputs, make
from .judge.conventions import View, declared, explained
from .judge.findings import Judgement
from .memory import Fill, guarded_allocations
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


@dataclass(frozen=True, slots=True)
class Run:
    """Outputs of one run, copied out of the guarded memory, and what the memory says."""

    outputs: tuple[Any, ...]
    problems: tuple[Finding, ...]


#: (case, device) to the tensors that a kernel is given.
Draw = Callable[[Case, str], Inputs]


def drawn(case: Case, device: str) -> Inputs:
    """The tensors that a case stands for."""
    return make(case, load(case.geometry), device)


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
    ``explain`` looks for a convention under which a
    wrong answer would be right, and names it in the findings.

    ``sequence`` adds the check of that name (see ``sequence.py``) where all others held: three calls on one memory.
    It triples the time, so the audit asks for it and the differential matrix does not.

    Never raises for what the implementation does: an exception becomes an ERROR verdict. Raises BadInput for a case
    that cannot be (unknown geometry, kind or option).
    """
    started = time.perf_counter()
    geometry = load(case.geometry)
    known = facts(case, geometry, device)

    def verdict(status: Status, why: str, judgement: Judgement | None = None) -> Verdict:
        found = judgement or Judgement()
        return Verdict(
            case=case,
            implementation=implementation.name,
            status=status,
            reason=why,
            findings=tuple(found.findings + found.suspicions),
            measures=found.measures,
            worst=tuple(found.worst),
            error_map=found.error_map,
            seconds=time.perf_counter() - started,
            device=_device_name(device),
            origin=_origin(case, implementation),
        )

    try:
        reason = implementation.supports(known)
    except Exception as error:
        return verdict("ERROR", f"supports() raised {told(error, implementation)}")
    if not (reason is None or isinstance(reason, str)):
        return verdict("ERROR", f"supports() returned {reason!r}, expected None or the reason why not")
    if reason is None:
        reason = leaves_range(case, implementation.contract)
    if reason is not None:
        return verdict("UNSUPPORTED", reason)
    try:
        judgement = _judged(case, implementation, device, draw, power=True, explain=explain)
    except Raised as raised:
        return verdict("ERROR", str(raised))
    except Unsupported as reason:
        return verdict("UNSUPPORTED", str(reason))
    if not judgement.findings and judgement.suspicions:
        again = 0
        for fresh in range(1, FRESH_SEEDS + 1):
            try:
                fresh_case = case.with_seed(case.seed + fresh * SEED_STRIDE)
                other = _judged(fresh_case, implementation, device, redraw, power=False)
            except Raised as raised:
                return verdict("ERROR", str(raised))
            again += bool(other.findings or other.suspicions)
        judgement.measures["suspect_seeds"] = float(again)
        if again >= AGAIN:
            first = judgement.suspicions[0]
            return verdict("FAIL", f"{first.message}, and so on {again} of {FRESH_SEEDS} fresh seeds", judgement)
        judgement.suspicions.clear()
    if sequence and not judgement.findings:
        try:
            judgement.findings += second_call(case, implementation, device)
        except Raised as raised:
            return verdict("ERROR", f"on a second call: {raised}")
    if judgement.findings:
        return verdict("FAIL", judgement.findings[0].message, judgement)
    if judgement.survivors:
        return verdict("WEAK", "this input cannot tell the answer from: " + ", ".join(judgement.survivors), judgement)
    return verdict("PASS", "", judgement)


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
    if not isinstance(outputs, tuple) or not all(isinstance(x, Tensor) and x.device == device for x in outputs):
        return judgement
    contract = implementation.contract
    dtypes = tuple(allowed[0] for allowed in op.dtypes(arguments, contract))

    def right() -> tuple[Tensor, ...]:
        return declared(getattr(reference, op.name)(**arguments), contract, dtypes)

    return explained(judgement, View(arguments, outputs, contract), op.judge, op.shapes(arguments), right)


def run_once(implementation: Implementation, device: torch.device, fill: Fill, arguments: Mapping[str, Any]) -> Run:
    state = GlobalState.take()
    try:
        with guarded_allocations(fill) as memory:
            outputs = called(implementation, device, arguments)
    finally:
        changed = state.restore()
    problems = [Finding("memory", message, True) for message in memory.damage()]
    problems += [Finding("structure", f"changed {what}", True) for what in changed]
    if isinstance(outputs, tuple):
        outputs = tuple(_copied(t) if isinstance(t, Tensor) else t for t in outputs)
    return Run(outputs, tuple(problems))


def _copied(output: Tensor) -> Tensor:
    try:
        return output.detach().clone()
    except RuntimeError as error:
        raise Raised(f"an output cannot be read: {told(error)}") from error


def answer_of(op: Operator, inputs: Inputs, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is judged: what was returned or, of an operator that writes in place, what it wrote to, as far as that is
    memory."""
    written = (inputs.arena.tensors[name] for name in op.writes)
    return tuple(guarded.tensor[guarded.untouched :] for guarded in written) if op.writes else outputs


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
        got = f"{len(outputs)} outputs" if isinstance(outputs, tuple) else type(outputs).__name__
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
