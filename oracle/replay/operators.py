"""The operators that a replay injects into its layers, and the formats they work in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import UNIT_ROUNDOFF, Format
from ...reference.chunks import Chunk
from ...reference.dense_mha import dense_mha
from ...reference.layer import Operators
from ...reference.softmax import attend
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
    held = (indices >= 0) & (indices < len(kv))
    columns = held.any(0).nonzero().flatten()
    width = int(columns[-1]) + 1 if len(columns) else 0  # nothing is named behind it
    indices, held = indices[:, :width], held[:, :width]
    first, last = (int(indices[held].min()), int(indices[held].max())) if width else (0, -1)
    rows = kv[first : last + 1]
    named = torch.zeros(len(q), len(rows) + 1, dtype=torch.bool, device=q.device)
    named.scatter_(1, torch.where(held, indices - first, len(rows)).long(), True)
    named = named[:, :-1]
    if stored or int(named.sum()) != int(held.sum()):
        out, lse = sparse_mqa(q=q, kv=kv, indices=indices, scale=scale, value_dim=value_dim, **stored)
        return out, lse
    queries = q[:, :1] if _alike(q) else q
    chunk = Chunk(slice(0, len(q)), queries.transpose(0, 1), rows[None], rows[None, :, :value_dim], named[None], True)
    out, lse = attend(chunk, scale)
    return _to_heads((chunk.place(out), chunk.place(lse)), q.shape[1])


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
