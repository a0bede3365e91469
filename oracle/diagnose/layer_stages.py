"""The first stage of a layer that leaves its own budget.

Two layers run the same steps: the reference, and the one under test. Whatever an operator of the layer under test
returns is judged by the operator's own budget on the inputs that it got, and then the reference's answer goes on in its
place. So every stage works on what the reference's would have worked on, and one that is wrong cannot hide behind, or
be blamed for, one before it. What stands between two operators (projections, RoPE, caches, index conversion) is
judged by what it hands to the next operator. The stage found is then exchanged alone, both ways: the layer under test
with the reference's stage, and the reference with this stage from the layer under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Contract
from ...reference.layer import Operators, Parts, SparseMLALayer
from ...reference.routing import Deployment, Rules
from ..faults.simulated import SIMULATED
from ..judge.formats import format_of
from ..layer.contract import LayerUnderTest
from ..layer.fault import Alter
from ..layer.rig import REFERENCE_OPERATORS, Rig, RigSizes
from ..operators import operator
from .hypothesis import Stage

MakeLayer = Callable[[Parts], LayerUnderTest]
Steps = Sequence[Sequence[tuple[int, int]]]
#: The stage that an operator is, for one that breaks its own budget; attention has several.
OF_OPERATOR: dict[str, Stage] = {"indexer_scores": "logits", "topk_select": "top-k", "merge_lse": "merge"}
#: The stage that makes an argument.
OF_ARGUMENT: dict[tuple[str, str], Stage] = {
    ("indexer_scores", "q"): "indexer q/k",
    ("indexer_scores", "k"): "indexer q/k",
    ("indexer_scores", "k_scale"): "indexer q/k",
    ("indexer_scores", "weights"): "indexer q/k",
    ("sparse_mqa", "kv"): "quantised cache",
    ("sparse_mqa", "indices"): "index conversion",
    ("masked_mha", "mask"): "index conversion",
}
#: Roundings in the layer's dtype that two right ways to compute one argument may differ by, in unit roundoffs.
ROUNDINGS = 4.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator."""

    name: str
    arguments: Mapping[str, Any]
    outputs: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Breach:
    """A stage outside its budget."""

    stage: Stage
    step: int
    where: str
    """Operator and argument, or operator alone."""
    what: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """The stage found, exchanged alone: largest error of the layer's output against the reference."""

    whole: float
    """Of the layer under test as it is."""
    cured: float
    """Of the layer under test with the reference's stage."""
    infected: float
    """Of the reference with this stage from the layer under test."""

    @property
    def confirmed(self) -> bool:
        return self.cured < self.infected


@dataclass(frozen=True, slots=True)
class LayerDiagnosis:
    """What was found, first breach first."""

    breaches: tuple[Breach, ...]
    exchange: Exchange | None
    """None where the stage cannot be exchanged alone: one that is no operator and no method of its own."""

    @property
    def stage(self) -> Stage | None:
        return self.breaches[0].stage if self.breaches else None


class _Tape:
    """Operators that write down their calls; with a script, each call returns what the script says."""

    def __init__(self, operators: Operators, script: Sequence[Call] = ()) -> None:
        self.calls: list[Call] = []
        self.script = list(script)
        self.operators = {name: self._taped(name, function) for name, function in operators.items()}

    def _taped(self, name: str, function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        def call(**arguments: Any) -> tuple[Any, ...]:
            kept = {key: value.clone() if isinstance(value, Tensor) else value for key, value in arguments.items()}
            outputs = function(**arguments)
            self.calls.append(Call(name, kept, outputs))
            place = len(self.calls) - 1
            if place < len(self.script) and self._fits(self.script[place], name, outputs):
                return tuple(x.clone() if isinstance(x, Tensor) else x for x in self.script[place].outputs)
            return outputs

        return call

    @staticmethod
    def _fits(scripted: Call, name: str, outputs: tuple[Any, ...]) -> bool:
        return scripted.name == name and all(
            x.shape == y.shape for x, y in zip(scripted.outputs, outputs, strict=True) if isinstance(x, Tensor)
        )


def localise(
    rules: Rules,
    deployment: Deployment,
    sizes: RigSizes,
    steps: Steps,
    *,
    operators: Operators = REFERENCE_OPERATORS,
    make: MakeLayer = SparseMLALayer,
    contracts: Mapping[str, Contract] | None = None,
    alter: Callable[[], Alter] | None = None,
) -> LayerDiagnosis:
    """Run ``steps``, each a list of (request, new tokens), through both layers and compare stage by stage.

    ``contracts``: what each operator under test declares; those of the simulated kernels where it says nothing.
    ``alter`` makes what stands for a faulty metadata builder of the layer under test.
    """
    right = _Tape(REFERENCE_OPERATORS)
    expected = _outputs(Rig(rules, deployment, sizes, operators=right.operators), steps)
    tested = _Tape(operators, right.calls)
    marks: list[int] = []
    rig = Rig(rules, deployment, sizes, operators=tested.operators, make=make)
    observed = _outputs(rig, steps, tested, marks, alter)
    declared = {name: (contracts or {}).get(name, SIMULATED) for name in operators}
    breaches = _compared(right.calls, tested.calls, marks, declared, deployment.qk_rope_head_dim)
    if not breaches:
        breaches = _output_breaches(expected, observed)
    exchange = None
    if breaches:
        exchange = _exchange(rules, deployment, sizes, steps, operators, make, breaches, expected, alter)
    return LayerDiagnosis(tuple(breaches), exchange)


def _outputs(
    rig: Rig,
    steps: Steps,
    tape: _Tape | None = None,
    marks: list[int] | None = None,
    alter: Callable[[], Alter] | None = None,
) -> list[Tensor]:
    """Outputs of all layers and steps; ``marks`` gets how many calls there were after each step."""
    found: list[Tensor] = []
    told = alter() if alter is not None else lambda metadata: metadata
    for step in steps:
        found += list(rig.step(step, alter=told).outputs)
        if tape is not None and marks is not None:
            marks.append(len(tape.calls))
    return found


def _compared(
    right: Sequence[Call], tested: Sequence[Call], marks: Sequence[int], contracts: Mapping[str, Contract], rope: int
) -> list[Breach]:
    found: list[Breach] = []
    for place, call in enumerate(tested):
        step = sum(place >= mark for mark in marks)
        if place >= len(right) or right[place].name != call.name:
            due = right[place].name if place < len(right) else "nothing more"
            return [*found, Breach("route", step, call.name, f"{call.name} is called, the reference calls {due}")]
        found += _arguments(right[place], call, step, rope)
        judgement = operator(call.name).judge(call.arguments, call.outputs, contracts[call.name], False)
        if judgement.findings:
            checks = {finding.check for finding in judgement.findings}
            stage = OF_OPERATOR.get(call.name) or _attention_stage(checks)
            found.append(Breach(stage, step, call.name, judgement.findings[0].message))
    if len(tested) < len(right):
        missing = right[len(tested)].name
        found.append(Breach("route", len(marks) - 1, missing, f"the reference calls {missing}, this layer does not"))
    return found


def _attention_stage(checks: set[str]) -> Stage:
    """A wrong LSE comes from the scores or their softmax if the output is wrong as well; a right one clears both."""
    if checks == {"lse"}:
        return "lse"
    return "scores" if "lse" in checks else "P.V"


def _arguments(right: Call, call: Call, step: int, rope: int) -> list[Breach]:
    """Arguments that are not those of the reference."""
    found = []
    for name, expected in right.arguments.items():
        got = call.arguments.get(name)
        if not isinstance(expected, Tensor):
            if got != expected:
                found.append(Breach("route", step, f"{call.name}.{name}", f"{name} is {got}, expected {expected}"))
            continue
        if not isinstance(got, Tensor) or got.shape != expected.shape:
            shape = list(got.shape) if isinstance(got, Tensor) else got
            what = f"{name} is {shape}, expected {list(expected.shape)}"
            same_width = isinstance(got, Tensor) and got.shape[1:] == expected.shape[1:]
            stage: Stage = "gather" if name in ("k", "v", "kv") and same_width else _stage(call.name, name, None)
            found.append(Breach(stage, step, f"{call.name}.{name}", what))
            continue
        bad = _apart(got, expected)
        if bool(bad.any()):
            stage = _stage(call.name, name, bad if name in ("q", "k", "kv") and rope else None, rope)
            if name in ("k", "kv", "v") and _from_elsewhere(got, expected, bad):
                stage = "gather"
            what = f"{name} differs from the reference's at {int(bad.sum()):,} of {bad.numel():,} elements"
            found.append(Breach(stage, step, f"{call.name}.{name}", what))
    return found


def _from_elsewhere(got: Tensor, expected: Tensor, bad: Tensor) -> bool:
    """Whether wrong rows hold other rows, or some nothing: made rightly, and kept or looked for in another place."""
    mine, right = (torch.nan_to_num(x.double(), nan=-(2.0**60)).flatten(1).cpu() for x in (got, expected))
    if mine.shape[1] < 2:
        return False
    known = {row.numpy().tobytes() for row in right}
    moved = [row.numpy().tobytes() in known for row in mine[bad.flatten(1).any(1).cpu()]]
    empty = [bool((row == row[0]).all()) for row in mine[bad.flatten(1).any(1).cpu()]]
    return any(moved) and all(a or b for a, b in zip(moved, empty, strict=True))


def _stage(name: str, argument: str, bad: Tensor | None, rope: int = 0) -> Stage:
    """The stage that made an argument; RoPE where the rotated dims alone are wrong."""
    if bad is not None and name != "indexer_scores" and not bool(bad[..., :-rope].any()):
        return "rope"
    default: Stage = "gather" if argument.startswith(("cu_", "ks", "ke")) else "projection"
    return OF_ARGUMENT.get((name, argument), default)


def _apart(got: Tensor, expected: Tensor) -> Tensor:
    """Where two arguments differ by more than a few roundings of their rows' largest value."""
    same = (got == expected) | ((got != got) & (expected != expected))
    if not expected.is_floating_point():
        return ~same
    unit = UNIT_ROUNDOFF[format_of(expected.dtype)]
    a, b = got.double(), expected.double()
    size = torch.nan_to_num(b, 0.0, 0.0, 0.0).abs()
    size = size.amax(-1, keepdim=True) if size.dim() and size.shape[-1] else size
    return ~same & ~((a - b).abs() <= ROUNDINGS * unit * size)


def _output_breaches(expected: Sequence[Tensor], observed: Sequence[Tensor]) -> list[Breach]:
    """Every operator is right and so is what it was given: what is left is behind the last one."""
    for place, (a, b) in enumerate(zip(expected, observed, strict=True)):
        if a.shape != b.shape or bool(_apart(b, a).any()):
            return [Breach("output", place, "output", "the layer's output differs though every operator is right")]
    return []


def _exchange(
    rules: Rules,
    deployment: Deployment,
    sizes: RigSizes,
    steps: Steps,
    operators: Operators,
    make: MakeLayer,
    breaches: Sequence[Breach],
    expected: Sequence[Tensor],
    alter: Callable[[], Alter] | None,
) -> Exchange | None:
    """The first stage exchanged alone, both ways: an operator, what a layer class does in its own way, or a builder."""

    def error(given: Operators, layer: MakeLayer, told: Callable[[], Alter] | None = None) -> float:
        try:
            found = _outputs(Rig(rules, deployment, sizes, operators=given, make=layer), steps, alter=told)
        except (RuntimeError, ValueError, IndexError):
            return float("inf")
        if any(a.shape != b.shape for a, b in zip(expected, found, strict=True)):
            return float("inf")
        apart = (torch.nan_to_num(b - a, nan=float("inf")).abs() for a, b in zip(expected, found, strict=True))
        return max((float(x.max()) for x in apart if x.numel()), default=0.0)

    whole, name = error(operators, make, alter), breaches[0].where
    if alter is not None:
        return Exchange(whole, error(operators, make), error(REFERENCE_OPERATORS, SparseMLALayer, alter))
    if name in operators:
        cured = error({**operators, name: REFERENCE_OPERATORS[name]}, make)
        return Exchange(whole, cured, error({**REFERENCE_OPERATORS, name: operators[name]}, SparseMLALayer))
    if make is SparseMLALayer:
        return None
    return Exchange(whole, error(operators, SparseMLALayer), error(REFERENCE_OPERATORS, make))
