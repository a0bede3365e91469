"""Answers that are right bit by bit, made comparable: the layout operators under the conventions of a contract.

An element is its bits as a number, every NaN equal to every other; what the contract leaves open is 0 on both sides.
So the distance of two answers is the share of elements that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import Contract
from ..judge.exact import Part, Reading, bits, nan_of
from ..judge.layouts import TASKS
from .expectation import Expectation

LAYOUTS = tuple(TASKS)


def task(
    operator: str, a: Mapping[str, Any], outputs: Sequence[Any], contract: Contract
) -> tuple[Expectation, dict[str, Tensor], list[Reading]]:
    """What is expected, the outputs as they compare, and the known mistakes that the judge names.

    ``outputs``: what is judged, of an operator that writes in place what it wrote to. An output of another shape is
    left out.
    """
    parts, readings = TASKS[operator](a, tuple(outputs), contract)
    exact = {part.name: _numbers(part, part.expected) for part in parts}
    allowed = {name: torch.zeros_like(value) for name, value in exact.items()}
    seen = {part.name: _numbers(part, part.observed) for part in parts if part.observed.shape == part.expected.shape}
    return Expectation(exact, allowed, {part.name: part.axes for part in parts}), seen, readings


def as_answer(operator: str, a: Mapping[str, Any], outputs: Sequence[Any], contract: Contract) -> dict[str, Tensor]:
    """Outputs as they compare; empty for ones that cannot be read."""
    try:
        return task(operator, a, outputs, contract)[1]
    except (RuntimeError, IndexError, ValueError, TypeError, AttributeError):
        return {}


def _numbers(part: Part, tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    tensor = tensor if tensor.dtype == part.expected.dtype else tensor.view(part.expected.dtype)
    found = torch.where(nan_of(tensor), torch.nan, bits(tensor).double())
    return found if part.counts is None else torch.where(part.counts.cpu(), found, 0.0)
