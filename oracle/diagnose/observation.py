"""What a kernel really returned on one case, beside what it should have returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...optimized.contract import Contract
from ...optimized.implementation import Implementation
from ..calling import Raised
from ..case import Case
from ..check import drawn, run_once
from ..faults.simulated import simulated
from ..inputs import Inputs
from ..operators import operator
from .distance import Gap, gap
from .expectation import Expectation, expectation, normalised

Answer = dict[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """One answer of one kernel."""

    case: Case
    contract: Contract
    inputs: Inputs
    answer: Answer
    """Observed, fp64, conventions normalised."""
    expected: Expectation
    right: Answer
    """What a right kernel returns that computes tile by tile: it has the rounding that the exact answer has not."""
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self.inputs.kwargs()

    @property
    def operator(self) -> str:
        return self.case.operator

    def gap(self, predicted: Answer, slack: float = 1.0) -> Gap:
        """How far a predicted answer is from what was observed."""
        return gap(self.answer, predicted, self.expected.allowed, self.arguments, slack)

    def deviation(self) -> Gap:
        """How far the right answer is from it."""
        return self.gap(self.right)

    def predicted(self, outputs: Any) -> Answer:
        """The outputs of a hypothesis by name, fp64."""
        return normalised(named_outputs(self.operator, outputs), Contract(), self.expected.exact)


def named_outputs(name: str, outputs: Any) -> Answer:
    """Tensors by output name; what is missing or no tensor is left out."""
    if not isinstance(outputs, tuple):
        return {}
    return {
        key: value for key, value in zip(operator(name).outputs, outputs, strict=False) if isinstance(value, Tensor)
    }


def observe(case: Case, implementation: Implementation, device: str = "cpu", runs: int = 1) -> Observation:
    """The answer of the last of ``runs`` runs. Raises ``Raised`` for what the kernel raises."""
    inputs = drawn(case, device)
    outputs: Any = ()
    for run in range(runs):
        outputs = run_once(implementation, inputs.arena.device, "nan" if run == 0 else "stale", inputs.kwargs()).outputs
    # A kernel that changes its inputs is compared on what they were.
    return observed(case, implementation.contract, drawn(case, device), named_outputs(case.operator, outputs))


def observed(case: Case, contract: Contract, inputs: Inputs, outputs: Mapping[str, Tensor]) -> Observation:
    """An observation of outputs that are at hand, those of a bundle for instance."""
    expected = expectation(case.operator, inputs.kwargs(), contract)
    right = named_outputs(case.operator, simulated(case.operator)(**inputs.kwargs()))
    return Observation(
        case,
        contract,
        inputs,
        normalised(outputs, contract, expected.exact),
        expected,
        normalised(right, Contract(), expected.exact),
    )


__all__ = ("Answer", "Observation", "Raised", "named_outputs", "observe", "observed")
