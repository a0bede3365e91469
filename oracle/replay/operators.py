"""The operators that a replay injects into its layers, and the formats they work in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Format
from ...reference.dense_mha import dense_mha
from ...reference.layer import Operators
from ...reference.sparse_mqa import sparse_mqa
from ..errors import Unsupported, unknown
from ..layer.rig import REFERENCE_OPERATORS
from .retrieval import LARGEST_SCORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """Operators, the dtype of the layers they run in, and the format of P and of outputs."""

    operators: Operators
    dtype: torch.dtype
    format: Format

    def budget(self, keys: int) -> float:
        """Most that an output element can be off, for values of plus and minus one.

        Then sum p |v| is 1, so this is ``certain`` of the verdict's budget: P and the output cost a unit roundoff each;
        in fp32 the two sums over ``keys`` cost one a term, and a score and the LSE it is taken from one of their size
        each, which exp turns into a relative error of P.
        """
        return 2 * UNIT_ROUNDOFF[self.format] + 2 * (keys + LARGEST_SCORE + 8) * UNIT_ROUNDOFF["fp32"]


#: Key elements gathered at a time: a few MiB, which the allocator keeps and does not ask the system for anew.
_GATHERED = 2**20


def reference_operators(dtype: torch.dtype) -> Injected:
    """The references, in fp32 or fp64."""
    operators: Operators = {**REFERENCE_OPERATORS, "sparse_mqa": _sparse_mqa, "dense_mha": _dense_mha}
    return Injected(operators=operators, dtype=dtype, format="fp32")


def _sparse_mqa(*, q: Tensor, indices: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:
    """The reference, spared what changes nothing: columns without any row, and heads that ask what the first asks."""
    used = (indices >= 0).any(0)
    used[0] = True
    columns = indices[:, used]
    queries = q[:, :1] if _alike(q) else q
    rows = max(1, _GATHERED // (columns.shape[1] * q.shape[2]))
    parts = zip(torch.split(queries, rows), torch.split(columns, rows), strict=True)
    partials = [sparse_mqa(q=part, indices=chosen, **inputs) for part, chosen in parts]
    out, lse = torch.cat([out for out, _ in partials]), torch.cat([lse for _, lse in partials])
    return _to_heads((out, lse), q.shape[1])


def _dense_mha(*, q: Tensor, k: Tensor, v: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:
    """The reference, for one head where all are alike."""
    heads = 1 if all(map(_alike, (q, k, v))) else q.shape[1]
    return _to_heads(dense_mha(q=q[:, :heads], k=k[:, :heads], v=v[:, :heads], **inputs), q.shape[1])


def _alike(tensor: Tensor) -> bool:
    return torch.equal(tensor, tensor[:, :1].expand_as(tensor))


def _to_heads(partial: tuple[Tensor, Tensor], heads: int) -> tuple[Tensor, Tensor]:
    out, lse = partial
    return out.expand(-1, heads, -1), lse.expand(-1, heads)


def _triton(device: str) -> Injected:
    from ...optimized.triton_kernels import IMPLEMENTATIONS
    from ...optimized.triton_runtime import TritonUnavailable, availability

    reason = availability()
    if reason is not None:
        raise Unsupported(f"implementations triton: {reason}")
    try:
        operators = {implementation.operator: implementation.load() for implementation in IMPLEMENTATIONS}
    except TritonUnavailable as error:
        raise Unsupported(f"implementations triton: {error}") from error
    return Injected(operators=operators, dtype=torch.bfloat16, format="bf16")


_CHOICES: dict[str, Callable[[str], Injected]] = {
    "reference": lambda device: reference_operators(torch.float32),
    "triton": _triton,
}


def injected(name: str, device: str) -> Injected:
    """Operators by name: ``reference`` or ``triton``. Raises BadInput for others, Unsupported where they cannot run."""
    if name not in _CHOICES:
        raise unknown("implementations", name, _CHOICES)
    return _CHOICES[name](device)
