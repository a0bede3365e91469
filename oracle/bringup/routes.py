"""What fresh prompts run as, by tensor parallelism and length: exact ranges, from the rules' own boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ...reference.routing import Batch, Deployment, Rules, decode_threshold, dense_capability
from ..errors import BadInput
from ..routes.behaviour import behave
from ..routes.boundaries import boundaries
from ..routes.setup import make_deployment
from .subject import Subject

SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Routes:
    """``ranges``: (first length, last length, what they run as). ``why``: this split cannot be, and the reason."""

    tensor_parallel: int
    backend: str = ""
    threshold: int = 0
    """Longest query that counts as decode."""
    capability: bool = False
    """Dense MHA prefill, as the rules declare it."""
    ranges: tuple[tuple[int, int, str], ...] = ()
    why: str = ""


def deployment_of(subject: Subject, name: str, rules: Rules, tp: int, **places: Any) -> Deployment:
    """The deployment of a subject whose geometry is known as ``name``. Raises BadInput."""
    longest = subject.geometry.max_positions or 131072
    return make_deployment([rules], name, backend=None, tensor_parallel=tp, max_model_len=max(2, longest), **places)


def routes(
    subject: Subject, name: str, rules: Rules, sizes: Sequence[int] = SIZES, **places: Any
) -> tuple[Routes, ...]:
    """One entry a tensor-parallel size."""
    found = []
    for tp in sizes:
        try:
            deployment = deployment_of(subject, name, rules, tp, **places)
        except BadInput as error:
            found.append(Routes(tp, why=str(error)))
            continue
        found.append(
            Routes(
                tp,
                deployment.backend,
                decode_threshold(rules, deployment).value,
                dense_capability(rules, deployment).value,
                pure_ranges(rules, deployment),
            )
        )
    return tuple(found)


def pure_ranges(rules: Rules, deployment: Deployment) -> tuple[tuple[int, int, str], ...]:
    """Ranges of fresh prompts that behave alike, up to the longest sequence.

    Behaviour changes only at boundaries, and both sides of each are asked.
    """
    most = deployment.max_model_len
    points = sorted({1, most, *boundaries(rules, deployment).probes(most)})
    told = {point: str(behave(rules, deployment, Batch.of([(point, 0)]))) for point in points}
    starts = [points[0]]
    starts += [right for left, right in pairwise(points) if told[left] != told[right]]
    ends = [start - 1 for start in starts[1:]] + [most]
    return tuple((start, end, told[start]) for start, end in zip(starts, ends, strict=True))
