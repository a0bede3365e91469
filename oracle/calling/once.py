"""One call as the judge wants it: in guarded memory, the process left as it was, the outputs copied out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...optimized.implementation import Implementation
from ..inputs import Inputs
from ..operators import Operator
from ..verdict import Finding
from .call import Raised, called, told
from .globals import GlobalState
from .memory import Fill, guarded_allocations


@dataclass(frozen=True, slots=True)
class Run:
    """Outputs of one run, copied out of the guarded memory, and what the memory says."""

    outputs: tuple[Any, ...]
    problems: tuple[Finding, ...]


def run_once(implementation: Implementation, device: torch.device, fill: Fill, arguments: Mapping[str, Any]) -> Run:
    """Call it once, with ``fill`` in whatever it allocates. Raises ``Raised`` for whatever it raises."""
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
