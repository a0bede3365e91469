"""A hypothesis: what a kernel would return if it were wrong in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Stage = Literal[
    "projection", "rope", "quantised cache", "indexer q/k", "logits", "top-k", "index conversion", "gather", "mask",
    "scores", "softmax", "P.V", "lse", "merge", "output", "state", "memory", "route",
]  # fmt: skip
#: In the order in which a layer computes; a family of stages that one operator cannot tell apart shares a line.
STAGES: tuple[Stage, ...] = (
    "projection", "rope", "quantised cache", "indexer q/k", "logits", "top-k", "index conversion", "gather", "mask",
    "scores", "softmax", "P.V", "lse", "merge", "output", "state", "memory", "route",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One way to be wrong, with its free parameters filled in."""

    name: str
    """Of the idea; the same for all values of its parameters."""
    stage: Stage
    words: str
    predict: Callable[..., tuple[Any, ...]] = field(repr=False)
    """A function with the operator's keyword names."""
    parameters: int = 0
    """How many were solved for or tried: of two hypotheses that explain equally well the one with fewer is likelier."""
    fixed: bool = False
    """Whether the answer depends on the inputs alone, not on what was observed: it serves for the next kernel, too."""
    answer: Mapping[str, Tensor] | None = field(default=None, repr=False, compare=False)
    """The predicted answer itself, as it compares, where it is made from what was observed; then nothing is run."""
