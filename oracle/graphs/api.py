"""A step function of one's own, captured once and replayed on other inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..errors import BadInput
from .checks import difference
from .makers import EagerMaker, maker
from .recording import FOREIGN, Place
from .violation import CaptureFailed, Violation

Inputs = Mapping[str, Tensor]
Same = Callable[[Tensor, Tensor], bool]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What was found; ``graphs`` says whether they were real (``cuda``) or ``emulated``."""

    graphs: str
    violations: tuple[Violation, ...]

    @property
    def well(self) -> bool:
        return not self.violations


def check_step(
    step: Callable[..., Any],
    captured: Inputs,
    replayed: Sequence[Inputs],
    *,
    constants: Inputs | None = None,
    real_rows: Sequence[int] | None = None,
    same: Same = torch.equal,
) -> StepReport:
    """Capture ``step`` on one set of inputs and replay it on others, each held against an eager call.

    step: takes the inputs as keyword tensors and returns tensors, nested as it likes; its outputs are compared with
        ``same``, bit for bit unless told otherwise. What it keeps between calls must bear further calls.
    captured, replayed: keyword tensors of the same names, shapes and dtypes, on one device
    constants: tensors that it may read besides its inputs, such as weights; where they are given, reading any other
        tensor that lay around at capture is a violation
    real_rows: for every replay, how many leading rows are real; the rest of float inputs is filled with NaN, and real
        rows of the outputs may not change with it

    Checks ``illegal-call``, ``captured-metadata``, ``frozen-host``, ``outputs``, ``replay-twice`` and ``padding-in``.
    Raises BadInput for inputs that cannot share buffers.
    """
    device = _device(captured)
    static = {name: value.clone() for name, value in captured.items()}
    buffers = {**static, **(constants or {})}
    made = maker(device)

    def function() -> Any:
        return step(**static)

    try:
        graph = made.capture("the step", function, buffers)
    except CaptureFailed as error:
        failed = Violation("illegal-call", 0, f"{error.what}: {error.call or error.told}", "the capture fails")
        return StepReport(made.name, (failed,))
    found: list[Violation] = []
    for op in graph.ops if constants is not None else ():
        foreign = [leaf for leaf in op.arguments if isinstance(leaf, Place) and leaf.of == FOREIGN]
        if foreign:
            frozen = f"{op.name} at {op.where} reads {foreign[0]}"
            found.append(Violation("captured-metadata", 0, frozen, "it is neither an input nor a constant"))
    shadow = EagerMaker().capture("the step", function, buffers)
    for number, inputs in enumerate(replayed, 1):
        _fill(static, inputs, number)
        graph.replay()
        first = _copies(graph.outputs)
        shadow.replay()
        changed = difference(graph, shadow)
        if changed is not None:
            found.append(Violation("frozen-host", number, f"the graph {changed[0]}", changed[1]))
        told = f"replay {number} of a step captured on other inputs"
        found += _compared("outputs", number, told, first, _copies(shadow.outputs), same)
        _fill(static, inputs, number)
        graph.replay()
        found += _compared("replay-twice", number, "a second replay", first, _copies(graph.outputs), torch.equal)
        if real_rows is not None:
            rows = real_rows[number - 1]
            _fill(static, inputs, number)
            for buffer in static.values():
                if buffer.is_floating_point() and buffer.dim():
                    buffer[rows:] = torch.nan
            graph.replay()
            told = f"a replay with NaN from row {rows} on"
            heads = [
                [value[:rows] if value.dim() else value for value in values]
                for values in (first, _copies(graph.outputs))
            ]
            found += _compared("padding-in", number, told, heads[0], heads[1], torch.equal)
    return StepReport(made.name, tuple(found))


def _fill(static: Inputs, inputs: Inputs, number: int) -> None:
    if set(inputs) != set(static):
        raise BadInput(f"replay {number}: expected the inputs {sorted(static)}, got {sorted(inputs)}")
    for name, buffer in static.items():
        given = inputs[name]
        if given.shape != buffer.shape or given.dtype != buffer.dtype:
            wanted = f"{list(buffer.shape)} {buffer.dtype}"
            raise BadInput(f"replay {number}, {name}: expected {wanted}, got {list(given.shape)} {given.dtype}; pad it")
        buffer.copy_(given)


def _copies(outputs: Any) -> list[Tensor]:
    return [leaf.clone() for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _compared(
    check: str, number: int, told: str, got: Sequence[Tensor], wanted: Sequence[Tensor], same: Same
) -> list[Violation]:
    if len(got) != len(wanted):
        return [Violation(check, number, told, f"{len(got)} outputs instead of {len(wanted)}")]
    for place, (one, other) in enumerate(zip(got, wanted, strict=True)):
        if one.shape != other.shape or not same(one, other):
            return [Violation(check, number, told, f"output {place} differs")]
    return []


def _device(inputs: Inputs) -> str:
    kinds = {value.device.type for value in inputs.values()}
    if len(kinds) != 1:
        raise BadInput(f"inputs: expected tensors on one device, got {sorted(kinds) or 'none'}")
    return kinds.pop()
