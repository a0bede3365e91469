"""The operators that a replay injects into its layers, and the formats they work in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Format
from ...reference.chunks import Chunk, chunk_elements, cut
from ...reference.dense_mha import dense_mha
from ...reference.layer import Operators
from ...reference.softmax import attend_all
from ...reference.sparse_mqa import sparse_mqa
from ..errors import Unsupported, unknown
from ..layer.rig import REFERENCE_OPERATORS
from .retrieval import DIMS, LARGEST_SCORE, WIDE, Dims


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """Operators, the dtype of the layers they run in, and the format of P and of outputs."""

    operators: Operators
    dtype: torch.dtype
    format: Format
    dims: Dims = field(default_factory=lambda: DIMS)

    def budget(self, keys: int) -> float:
        """Most that an output element can be off, for values of plus and minus one.

        Then sum p |v| is 1, so this is ``certain`` of the verdict's budget: P and the output cost a unit roundoff each;
        in fp32 the two sums over ``keys`` cost one a term, and a score and the LSE it is taken from one of their size
        each, which exp turns into a relative error of P.
        """
        return 2 * UNIT_ROUNDOFF[self.format] + 2 * (keys + LARGEST_SCORE + 8) * UNIT_ROUNDOFF["fp32"]


def reference_operators(dtype: torch.dtype) -> Injected:
    """The references, in fp32 or fp64."""
    operators: Operators = {**REFERENCE_OPERATORS, "sparse_mqa": _sparse_mqa, "dense_mha": _dense_mha}
    return Injected(operators=operators, dtype=dtype, format="fp32")


def _sparse_mqa(
    *, q: Tensor, kv: Tensor, indices: Tensor, scale: float, value_dim: int, **stored: Any
) -> tuple[Tensor, Tensor]:
    """Sparse MQA as one dense product over the span of rows that are named at all, masked to what each query names.

    The reference gathers the rows of every query; here queries share nearly all of theirs, and heads that ask what the
    first asks are answered once. A call that names a row twice, or whose cache is not of the model's dtype, is left to
    the reference.
    """
    used = indices[:, : _last(indices) + 1]  # nothing is named behind it
    queries = q[:, :1] if _alike(q) else q
    out = q.new_zeros(len(q), queries.shape[1], value_dim)
    lse = q.new_zeros(len(q), queries.shape[1])
    for rows in cut(slice(0, len(q)), max(used.shape[1], _reach(used, len(kv))), chunk_elements(q.device)):
        first, last = _span(used[rows], len(kv))
        named = kv[first : last + 1]
        allowed = None if stored else _named(used[rows], first, len(named))
        if allowed is None:
            out, lse = sparse_mqa(q=q, kv=kv, indices=indices, scale=scale, value_dim=value_dim, **stored)
            return out, lse
        one = queries[rows].transpose(0, 1)
        attend_all([Chunk(rows, one, named[None], named[None, :, :value_dim], allowed[None], True)], scale, out, lse)
    return _to_heads((out, lse), q.shape[1])


def _last(indices: Tensor) -> int:
    """The last column in which a row names anything; -1 if none does."""
    return max((int(column) for column in (indices >= 0).any(0).nonzero()[-1:]), default=-1)


def _reach(indices: Tensor, rows: int) -> int:
    """Behind the last of ``rows`` rows that is named; 0 if none is."""
    return min(int(indices.max()) + 1, rows) if indices.numel() else 0


def _span(indices: Tensor, rows: int) -> tuple[int, int]:
    """The first row that is named, and the last; (0, -1) if none is."""
    first = int(torch.where(indices >= 0, indices, rows).min()) if indices.numel() else rows
    return (first, _reach(indices, rows) - 1) if first < rows else (0, -1)


def _named(indices: Tensor, first: int, count: int) -> Tensor | None:
    """bool [x, count]: which of the rows from ``first`` on each query names; None where one is named twice."""
    held = (indices >= first) & (indices < first + count)
    marked = torch.zeros(len(indices), count + 1, dtype=torch.bool, device=indices.device)
    marked.scatter_(1, torch.where(held, indices - first, count).long(), True)
    marked = marked[:, :-1]
    return marked if marked.count_nonzero() == held.count_nonzero() else None


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


def _flashinfer(device: str) -> Injected:
    """FlashInfer's attention and merge, with the selection and indexer of Triton."""
    from ...optimized.triton_runtime import interpreted
    from ..layer.implementations import chosen, operators_of

    cuda = device.startswith("cuda")
    facts = {
        "device": "cuda" if cuda else "cpu",
        "capability": torch.cuda.get_device_capability(device) if cuda else None,
        "interpreted": interpreted(),
        "dtype": "bf16",
        "cache_format": "model",
        "heads": 16,
        "d": WIDE["qk_nope_head_dim"] + WIDE["qk_rope_head_dim"],
        "v": WIDE["v_head_dim"],
        "c": WIDE["kv_lora_rank"],
        "r": WIDE["qk_rope_head_dim"],
        "k": 2048,
        "i": 1,
        "e": 16,
        "q_lens": (1,),
        "k_lens": (1,),
        "causal": True,
        "layout": "contiguous",
        "options": (),
    }
    operators = operators_of(chosen("flashinfer", facts))
    return Injected(operators=operators, dtype=torch.bfloat16, format="bf16", dims=WIDE)


_CHOICES: dict[str, Callable[[str], Injected]] = {
    "reference": lambda device: reference_operators(torch.float32),
    "triton": _triton,
    "flashinfer": _flashinfer,
}


def injected(name: str, device: str) -> Injected:
    """Operators by name: ``reference``, ``triton`` or ``flashinfer``.

    Raises BadInput for others, and Unsupported where they cannot run.
    """
    if name not in _CHOICES:
        raise unknown("implementations", name, _CHOICES)
    return _CHOICES[name](device)
