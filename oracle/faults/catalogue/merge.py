"""Merging by log-sum-exp, and the splits of one kernel that are merged the same way."""

from __future__ import annotations

from math import log
from typing import Any

import torch
from torch import Tensor

from ..fault import sited
from ..simulated.merge import share
from ..simulated.sites import INF, rounded
from ..wrapped import altered, mangled, packed_strides, reread

fault = sited("merge")
Part = tuple[Tensor, Tensor]


def _mean_of_parts(a: Part, b: Part) -> Part:
    return (a[0] + b[0]) / 2, torch.logaddexp(a[1], b[1])


def _base_2_parts(a: Part, b: Part) -> Part:
    joint = torch.logaddexp(a[1], b[1])
    of_a, of_b = (torch.exp2(lse - joint).nan_to_num()[..., None] for lse in (a[1], b[1]))
    return ((a[0] * of_a + b[0] * of_b) / (of_a + of_b)).nan_to_num(), joint


def _b_as_packed(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, ...]:
    return out_a, lse_a, reread(out_b, packed_strides(out_b.shape)), lse_b


def _transposed(lse: Tensor) -> Tensor:
    return lse.T.contiguous().view(lse.shape)


def _unwritten_scratch(out: Tensor, lse: Tensor, ran: bool) -> Part:
    return (out, lse) if ran else (torch.full_like(out, 0.5), torch.zeros_like(lse))


def _swapped_lse(x: dict[str, Any]) -> dict[str, Any]:
    return {"lse_a": x["lse_b"], "lse_b": x["lse_a"]}


def _last_row_unwritten(out: Tensor, lse: Tensor) -> Part:
    changed = out.clone()
    changed[-1:] = 0.5
    return changed, lse


MERGE = (
    fault(
        "merge-by-mean", "merge_lse", "The two sides are averaged.", "", "element",
        share=lambda lse, joint: torch.full_like(lse, 0.5),
    ),
    fault(
        "merge-base-2-lse-as-natural", "merge_lse", "Natural-log LSE is exponentiated in base 2.", "sglang#33064",
        "element", plant=mangled("merge_lse", lambda x: {s: x[s] * log(2) for s in ("lse_a", "lse_b")}),
    ),
    fault(
        "merge-natural-lse-as-base-2", "merge_lse", "One side's LSE is taken to be base 2 and converted.",
        "sglang#40903", "element", plant=mangled("merge_lse", lambda x: {"lse_b": x["lse_b"] / log(2)}),
    ),
    fault(
        "merge-lse-in-base-2", "merge_lse", "The merged LSE is returned in base 2.", "flashinfer#4547", "lse",
        lse=lambda joint, a, b: joint / log(2),
    ),
    fault(
        "merge-of-empties-nan", "merge_lse", "Two empty sides merge to NaN.", "vllm#27491", "structure",
        options=("kind=empties",), share=lambda lse, joint: torch.exp(lse - joint),
        weighted=lambda out, weight: out.nan_to_num() * weight[..., None],
    ),
    fault(
        "merge-empty-side-times-zero", "merge_lse", "An empty side is multiplied by 0: NaN in its buffer leaks.",
        "vllm#47188", "structure", options=("kind=empties",), weighted=lambda out, weight: out * weight[..., None],
    ),
    fault(
        "merge-empty-lse-zero", "merge_lse", "Two empty sides get LSE 0.", "", "structure", options=("kind=empties",),
        lse=lambda joint, a, b: joint.masked_fill(joint == -INF, 0.0),
    ),
    fault(
        "merge-empty-lse-finite", "merge_lse", "-inf is replaced by -50000 before the merge.", "flashinfer#4452",
        "structure", options=("kind=empties",),
        inputs=lambda a, la, b, lb: (a, la.clamp(min=-5e4), b, lb.clamp(min=-5e4)),
    ),
    fault(
        "merge-without-max", "merge_lse", "exp is taken of the LSE itself and overflows.", "", "structure",
        options=("kind=wide",), joint=lambda a, b: torch.log(torch.exp(a) + torch.exp(b)),
    ),
    fault(
        "merge-lse-is-max", "merge_lse", "The merged LSE is the larger of the two.", "", "lse",
        lse=lambda joint, a, b: torch.maximum(a, b),
    ),
    fault(
        "merge-lse-of-first", "merge_lse", "The first side's LSE is returned.", "", "lse",
        lse=lambda joint, a, b: a,
    ),
    fault(
        "merge-weights-swapped", "merge_lse", "Each side gets the weight of the other.", "", "element",
        plant=mangled("merge_lse", _swapped_lse),
    ),
    fault(
        "merge-weights-in-bf16", "merge_lse", "The two weights are rounded to bf16.", "", "element",
        share=lambda lse, joint: rounded(share(lse, joint), torch.bfloat16),
    ),
    fault(
        "merge-larger-side-wins", "merge_lse", "The side with the larger LSE is taken whole.", "", "element",
        share=lambda lse, joint: (lse > joint - log(2)).float(),
    ),
    fault(
        "merge-not-normalised", "merge_lse", "The sides are weighted by exp(lse - max) without dividing by the sum.",
        "", "element", share=lambda lse, joint: share(lse, joint) * 1.25,
    ),
    fault(
        "merge-output-truncated", "merge_lse", "The merged output is cut to bf16, not rounded.", "", "element",
        output=lambda out, dtype: (out.view(torch.int32) & -65536).view(torch.float32).to(dtype),
    ),
    fault(
        "merge-reads-b-as-contiguous", "merge_lse", "The second side is read with the strides of a contiguous one.",
        "local-inference-lab/vllm#17", "element", options=("layout=strided",), inputs=_b_as_packed,
    ),
    fault(
        "merge-lse-transposed", "merge_lse", "One side's LSE [h, s] is read as [s, h].", "", "element",
        inputs=lambda a, la, b, lb: (a, la, b, _transposed(lb)),
    ),
    fault(
        "merge-lse-of-first-head", "merge_lse", "All heads are weighted by the LSE of the first.", "", "element",
        inputs=lambda a, la, b, lb: (a, la[:, :1].expand_as(la), b, lb[:, :1].expand_as(lb)),
    ),
    fault(
        "merge-last-row-unwritten", "merge_lse", "The last query is not stored.", "fla#892", "element",
        plant=altered("merge_lse", _last_row_unwritten),
    ),
    fault(
        "splits-merged-by-mean", "dense_mha", "The partial results of 4 splits are averaged in turn.", "", "element",
        splits=4, merge=_mean_of_parts,
    ),
    fault(
        "splits-merged-in-base-2", "sparse_mqa", "Natural-log partial LSE are exponentiated in base 2.",
        "sglang#35045", "element", splits=2, block_k=32, merge=_base_2_parts,
    ),
    fault(
        "split-partials-in-bf16", "dense_mha", "Partial outputs of 4 splits are stored in bf16.", "flashinfer#799",
        "element", options=("kind=offset",), splits=4, partial=lambda out: rounded(out, torch.bfloat16),
    ),
    fault(
        "split-partials-in-fp8", "masked_mha", "Partial outputs of 2 splits are stored in e4m3.", "", "element",
        splits=2, partial=lambda out: rounded(out, torch.float8_e4m3fn),
    ),
    fault(
        "empty-split-uninitialised", "dense_mha", "Splits without tiles are merged from scratch nobody wrote.",
        "vllm#47188", "element", splits=3, scratch=_unwritten_scratch,
    ),
    fault(
        "split-lse-ignored", "masked_mha", "The last of 2 splits replaces the first.", "", "element",
        splits=2, merge=lambda a, b: b,
    ),
)
