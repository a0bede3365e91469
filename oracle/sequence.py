"""State kept between calls: the same memory is used again with every value changed.

A plan, a mask or a scale that survives from the first call, an answer cached by address or shape, a workspace that
still holds the partial results of a longer call, one output buffer for all calls: none of them shows while a kernel
only ever sees one set of values. Here it is called, everything it was given is overwritten in place and it is prepared
and called again: once with the same shapes, tensors of another seed, a key moved from one request to another and
another scale; then with a key less; then with a query less. Each answer is judged on its own inputs, and the first has
to be what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..optimized.implementation import Implementation
from .calling.call import called
from .calling.globals import GlobalState
from .calling.memory import guarded_allocations
from .case import Case
from .config import load
from .inputs import Inputs, make
from .operators import Operator, operator
from .verdict import Finding

#: Distance between the seeds of the two calls; the fresh seeds that ``check`` tries lie elsewhere.
OTHER_SEED = 500_009
#: Not a power of two, and not a factor that rounding hides.
OTHER_SCALE = 1.25


def sequence(case: Case, implementation: Implementation, device: str) -> list[Finding]:
    """What later calls on the same memory got wrong; empty if nothing.

    For an implementation whose single call on ``case`` was found right. Raises ``Raised`` for what it raises.
    """
    op, geometry = operator(case.operator), load(case.geometry)
    inputs = make(case, geometry, device)
    arguments, where = inputs.kwargs(), inputs.arena.device
    if any(guarded.untouched for guarded in inputs.arena.tensors.values()):
        return []  # overwriting a cache of mere addresses would make gigabytes of memory of it
    found: list[Finding] = []
    state = GlobalState.take()
    try:
        with guarded_allocations("stale"):
            first = called(implementation, where, arguments)
            kept = [] if op.writes else [t.clone() for t in first]
            for other, changed in later_calls(case, inputs, device):
                outputs = called(implementation, where, changed)
                if op.writes:  # the caches it wrote to, judged beside what they were before
                    outputs = tuple(changed[name] for name in op.writes)
                    changed = changed | make(other, geometry, device).tensors
                found += _judged(op, implementation, changed, outputs)
            spoilt = [name for name, a, b in zip(op.outputs, first or (), kept, strict=False) if not _same(a, b)]
    finally:
        state.restore()
    return [Finding("sequence", f"a later call changed the first answer's {name}", True) for name in spoilt] + found


def later_calls(case: Case, inputs: Inputs, device: str) -> Iterator[tuple[Case, dict[str, Any]]]:
    """The later calls with their keywords, each laid into the memory of ``inputs`` when it is asked for."""
    arguments = inputs.kwargs()
    for other in later_cases(case):
        yield other, _overwritten(arguments, make(other, load(case.geometry), device).kwargs())


def later_cases(case: Case) -> Iterator[Case]:
    """The cases of the later calls: as many keys as the first, then fewer where the operator has keys of its own, then
    fewer queries."""
    keys = list(case.k_lens)
    giver = next((i for i, n in enumerate(keys) if n > 1), None)
    if giver is not None and len(keys) > 1 and case.operator != "merge_lse":
        keys[giver] -= 1
        keys[(giver + 1) % len(keys)] += 1
    yield replace(case, seed=case.seed + OTHER_SEED, k_lens=tuple(keys))
    if giver is not None and case.operator not in ("topk_select", "merge_lse"):
        keys[giver] -= 1
        yield replace(case, seed=case.seed + 2 * OTHER_SEED, k_lens=tuple(keys))
    if (queries := _one_less(case)) != case.q_lens:
        yield replace(case, seed=case.seed + 3 * OTHER_SEED, q_lens=queries, k_lens=tuple(keys))


def _one_less(case: Case) -> tuple[int, ...]:
    """Query lengths with one query less, of each request where all have as many; none loses its last."""
    if case.operator == "paged_indexer_scores":
        return tuple(max(1, q - 1) for q in case.q_lens)
    longest = max(range(len(case.q_lens)), key=lambda i: case.q_lens[i])
    return tuple(q - (i == longest and q > 1) for i, q in enumerate(case.q_lens))


def _overwritten(arguments: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The keywords ``other`` in the memory of ``arguments``, as far as rows of the same shape fit in; another scale."""
    changed = dict(other)
    for name, value in other.items():
        if isinstance(value, Tensor):
            old = arguments[name]
            if value.shape[1:] == old.shape[1:] and len(value) <= len(old):
                changed[name] = old[: len(value)].copy_(value)
    if "scale" in other:
        changed["scale"] = other["scale"] * OTHER_SCALE
    return changed


def _judged(op: Operator, implementation: Implementation, arguments: dict[str, Any], outputs: Any) -> list[Finding]:
    """The numbers of one later answer."""
    shapes = op.shapes(arguments)
    if any(tuple(t.shape) != shape for t, shape in zip(outputs, shapes, strict=False)):
        return [Finding("sequence", "a later call on the same memory returned another shape", True)]
    # Without the statistics that are only suspicious: they would have to be repeated on fresh seeds.
    return [
        replace(finding, check="sequence", message=f"on a later call in the same memory, {finding.message}")
        for finding in op.judge(arguments, tuple(t.clone() for t in outputs), implementation.contract, False).findings
    ]


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal values, any NaN equal to any other."""
    if a.element_size() == 1:  # torch compares no float8
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    return bool(((a == b) | ((a != a) & (b != b))).all())
