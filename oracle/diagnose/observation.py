"""What a kernel really returned on one case, beside what it should have returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from ...optimized.contract import Contract
from ...optimized.implementation import Implementation
from ..calling.call import Raised
from ..calling.memory import Fill, guarded_allocations
from ..calling.once import answer_of, run_once
from ..case import Case
from ..check import drawn
from ..faults.simulated import simulated
from ..faults.simulated.sites import probabilities_in
from ..inputs import Inputs
from ..operators import operator as by_name
from .distance import Gap, gap
from .exact import LAYOUTS, as_answer, task
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
    draw: Callable[[], Inputs] | None = None
    """Inputs anew, for an operator that writes to them."""
    right_outputs: tuple[Any, ...] = ()
    """The outputs behind ``right`` as they are, of an operator that is right bit by bit."""

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

    def predicted(self, predict: Callable[..., Any]) -> Answer:
        """What a hypothesis returns, by output name, fp64."""
        if self.operator not in LAYOUTS:
            with probabilities_in(self.contract.probabilities):
                outputs = predict(**self.arguments)
            return normalised(named_outputs(self.operator, outputs), Contract(), self.expected.exact)
        op = by_name(self.operator)
        inputs = self._fresh(op.writes) if op.writes and self.draw else self.inputs
        with guarded_allocations("nan"):
            outputs = predict(**inputs.kwargs())
        # A kernel that writes in place returns nothing; a whole answer may be given in its stead.
        outputs = outputs or answer_of(op, inputs, outputs)
        return as_answer(self.operator, self.arguments, outputs, self.contract)

    def _fresh(self, writes: tuple[str, ...]) -> Inputs:
        """Inputs of which nobody knows that an earlier hypothesis wrote to them; drawn once and put back."""
        if "fresh" not in self.cache:
            assert self.draw is not None
            inputs = self.draw()
            held = {name: inputs.arena.tensors[name] for name in writes}
            self.cache["fresh"] = inputs, {name: one.tensor[one.untouched :].clone() for name, one in held.items()}
        inputs, before = self.cache["fresh"]
        for name, kept in before.items():
            one = inputs.arena.tensors[name]
            one.tensor[one.untouched :].copy_(kept)
        found: Inputs = inputs
        return found


def named_outputs(name: str, outputs: Any) -> Answer:
    """Tensors by output name; what is missing or no tensor is left out."""
    if not isinstance(outputs, tuple):
        return {}
    return {key: value for key, value in zip(by_name(name).outputs, outputs, strict=False) if isinstance(value, Tensor)}


def observe(case: Case, implementation: Implementation, device: str = "cpu", fill: Fill = "nan") -> Observation:
    """The answer of one run in memory filled with ``fill``. Raises ``Raised`` for what the kernel raises."""
    op, inputs = by_name(case.operator), drawn(case, device)
    outputs: Any = run_once(implementation, inputs.arena.device, fill, inputs.kwargs()).outputs
    outputs = answer_of(op, inputs, outputs)
    # A kernel that changes its inputs is compared on what they were.
    draw = partial(drawn, case, device)
    return observed(case, implementation.contract, draw(), named_outputs(case.operator, outputs), draw)


def observed(
    case: Case,
    contract: Contract,
    inputs: Inputs,
    outputs: Mapping[str, Tensor],
    draw: Callable[[], Inputs] | None = None,
) -> Observation:
    """An observation of outputs that are at hand, those of a bundle for instance."""
    a = inputs.kwargs()
    kernel = simulated(case.operator)
    if case.operator in LAYOUTS:
        op = by_name(case.operator)
        again = draw() if op.writes and draw else inputs
        right_outputs = answer_of(op, again, kernel(**again.kwargs()))
        expected, right, _ = task(case.operator, a, right_outputs, contract)
        answer = as_answer(case.operator, a, [outputs.get(name) for name in op.outputs], contract)
        return Observation(case, contract, inputs, answer, expected, right, draw=draw, right_outputs=right_outputs)
    expected = expectation(case.operator, a, contract)
    with probabilities_in(contract.probabilities):
        right_outputs = kernel(**a)
    right = normalised(named_outputs(case.operator, right_outputs), Contract(), expected.exact)
    return Observation(case, contract, inputs, normalised(outputs, contract, expected.exact), expected, right)


__all__ = ("Answer", "Observation", "Raised", "named_outputs", "observe", "observed")
