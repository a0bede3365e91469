"""Accumulation and output: number formats of sums, products and stores that nobody declared."""

from __future__ import annotations

import torch
from torch import Tensor

from ..fault import sited
from ..simulated.sites import rounded
from ..wrapped import altered, mangled
from .softmax import truncated

fault = sited("accumulate")
BF16, FP16, E4M3 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


def tf32(x: Tensor) -> Tensor:
    """fp32 rounded to the 10 mantissa bits of TF32 (ties away from zero)."""
    return ((x.view(torch.int32) + (1 << 12)) & -(1 << 13)).view(torch.float32)


def _coarse_dot(q: Tensor, k: Tensor) -> Tensor:
    """q.k in chunks of 64 dims whose running sum is bf16."""
    total = torch.zeros((), device=q.device)
    for dim in range(0, q.shape[-1], 64):
        total = rounded(total + q[..., dim : dim + 64] @ k[..., dim : dim + 64].transpose(-1, -2), BF16)
    return total


def _one_element_off(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    changed = out.clone()
    changed[-1:, :1, :1] += 0.02 * out[-1:].float().abs().amax().to(out.dtype) if out.numel() else 0
    return changed, lse


def _row_zeroed(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    changed = out.clone()
    changed[out.shape[0] // 2 : out.shape[0] // 2 + 1] = 0
    return changed, lse


def _row_repeated(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    changed = out.clone()
    changed[-1:] = out[-2:-1] if out.shape[0] > 1 else out[-1:]
    return changed, lse


def _rope_in_fp8(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    q, c = inputs["q"].clone(), int(inputs["value_dim"])
    q[..., c:] = rounded(q[..., c:], E4M3)
    return {"q": q}


ACCUMULATE = (
    fault(
        "accumulator-in-bf16", "dense_mha", "P.V is accumulated in bf16 from tile to tile.", "", "element",
        acc=lambda acc: rounded(acc, BF16),
    ),
    fault(
        "accumulator-in-fp16", "sparse_mqa", "P.V is accumulated in fp16 from tile to tile.", "", "element",
        options=("dtype=fp16",), acc=lambda acc: rounded(acc, FP16),
    ),
    fault(
        "tile-product-in-bf16", "masked_mha", "The product of each tile is rounded to bf16 before it is added.", "",
        "element", product=lambda p, v: rounded(p @ v, BF16),
    ),
    fault(
        "dot-accumulated-in-bf16", "dense_mha", "q.k is summed in bf16, 64 dims at a time.", "", "lse",
        dot=_coarse_dot,
    ),
    fault(
        "reciprocal-in-bf16", "sparse_mqa", "The output is multiplied by a reciprocal rounded to bf16.", "", "element",
        normalise=lambda acc, total: torch.where(total == 0, 0.0 * acc, acc * rounded(1 / total, BF16)),
    ),
    fault(
        "output-truncated", "dense_mha", "The output is cut to bf16, not rounded.", "", "bias",
        output=lambda out, dtype: truncated(out.contiguous()).to(dtype),
    ),
    fault(
        "output-through-fp8", "sparse_mqa", "The output passes through e4m3.", "", "element",
        output=lambda out, dtype: rounded(out, E4M3).to(dtype),
    ),
    fault(
        "output-through-bf16", "masked_mha", "An fp32 output passes through bf16.", "", "element",
        options=("dtype=fp32",), output=lambda out, dtype: rounded(out, BF16).to(dtype),
    ),
    fault(
        "tf32-dot", "dense_mha", "fp32 scores are computed in TF32.", "triton#1671", "lse",
        options=("dtype=fp32",), dot=lambda q, k: tf32(q) @ tf32(k.contiguous()).mT,
    ),
    fault(
        "tf32-product", "masked_mha", "fp32 P.V is computed in TF32.", "vllm#46856", "element",
        options=("dtype=fp32",), product=lambda p, v: tf32(p) @ tf32(v.contiguous()),
    ),
    fault(
        "fp32-read-as-bf16", "sparse_mqa", "fp32 queries are rounded to bf16 on load.", "", "lse",
        options=("dtype=fp32",),
        inputs=lambda q, kv, _: (rounded(q, BF16), kv, kv),
    ),
    fault(
        "key-through-fp8", "dense_mha", "Keys are quantised to e4m3, undeclared.", "", "element",
        inputs=lambda q, k, v: (q, rounded(k, E4M3), v),
    ),
    fault(
        "value-through-fp8", "masked_mha", "Values are quantised to e4m3, undeclared.", "", "element",
        inputs=lambda q, k, v: (q, k, rounded(v, E4M3)),
    ),
    fault(
        "query-rope-through-fp8", "sparse_mqa", "The rotated dims of the query are quantised to e4m3.", "", "element",
        plant=mangled("sparse_mqa", _rope_in_fp8),
    ),
    fault(
        "one-element-off", "dense_mha", "One element is wrong by 2% of the largest of its row.", "", "element",
        plant=altered("dense_mha", _one_element_off),
    ),
    fault(
        "one-row-zero", "sparse_mqa", "The output of one query is 0.", "", "row",
        plant=altered("sparse_mqa", _row_zeroed),
    ),
    fault(
        "one-row-stale", "dense_mha", "The last query gets the answer of the one before.", "", "row",
        plant=altered("dense_mha", _row_repeated),
    ),
)
