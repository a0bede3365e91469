"""What a faulty test lets through: kernels that do nothing, answer by habit, or lean on what is not compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..fault import sited
from ..simulated import Kernel
from ..simulated.sites import INF
from ..wrapped import Inputs, Outputs, altered, around, remembering

fault = sited("harness")


def _zeros(kernel: Kernel, inputs: Inputs) -> Outputs:
    return tuple(torch.zeros_like(x) for x in kernel(**inputs))


def _mean_value(kernel: Kernel, inputs: Inputs) -> Outputs:
    out, lse = kernel(**inputs)
    for request in range(len(inputs["cu_q"]) - 1):
        rows = slice(int(inputs["cu_q"][request]), int(inputs["cu_q"][request + 1]))
        keys = slice(int(inputs["cu_k"][request]), int(inputs["cu_k"][request + 1]))
        if keys.stop > keys.start:
            out[rows] = inputs["v"][keys].float().mean(0).to(out.dtype)
    return out, lse


def _own_value(kernel: Kernel, inputs: Inputs) -> Outputs:
    """Each query copies the value of its first valid entry."""
    out, lse = kernel(**inputs)
    first = inputs["indices"].clamp(0, inputs["kv"].shape[0] - 1)[:, 0].long()
    value: Tensor = inputs["kv"][first, : inputs["value_dim"]].to(out.dtype)
    return value[:, None].expand_as(out).contiguous(), lse


def _recycled(kernel: Kernel, inputs: Inputs, memory: dict[str, Any]) -> Outputs:
    """Nothing is computed: the buffer holds what the last call of this shape should have given."""
    right = kernel(**inputs)
    key = str([x.shape for x in right])
    before: Outputs = memory.get(key, tuple(torch.full_like(x, 0.25) for x in right))
    memory[key] = right
    return before


def _first_rows_only(kernel: Kernel, inputs: Inputs) -> Outputs:
    """The first 16 queries are computed, all that a check of a few rows sees; the others repeat the last of them."""
    out, lse = (x.clone() for x in kernel(**inputs))
    out[16:], lse[16:] = out[15:16], lse[15:16]
    return out, lse


def _nan_where_hard(out: Tensor, lse: Tensor) -> Outputs:
    """NaN in the row of the largest LSE, hoping that the comparison skips NaN."""
    changed = out.clone()
    if lse.numel():
        changed[lse.nan_to_num(neginf=-1e30).amax(1).argmax()] = float("nan")
    return changed, lse


def _nearly(out: Tensor, lse: Tensor) -> Outputs:
    return (0.9 * out.float() + 0.1 * out.float().mean(0)).to(out.dtype), lse


def _first_columns(scores: Tensor, ks: Tensor, ke: Tensor, k: int) -> Tensor:
    slots = torch.arange(k, dtype=torch.int32, device=ks.device)
    return torch.where(slots < (ke - ks)[:, None], slots, -1).to(torch.int32)


def _recent_columns(x: Inputs) -> Tensor:
    count = x["ke"] - x["ks"]
    slots = torch.arange(x["k"], dtype=torch.int32, device=count.device)
    return torch.where(slots < count[:, None], slots + (count - x["k"]).clamp(min=0)[:, None], -1).to(torch.int32)


HARNESS = (
    fault(
        "returns-zeros", "dense_mha", "The output is 0.", "KernelBench#165", "element",
        plant=around("dense_mha", _zeros),
    ),
    fault(
        "returns-zero-scores", "indexer_scores", "All scores are 0.", "KernelBench#165", "structure",
        plant=around("indexer_scores", _zeros),
    ),
    fault(
        "returns-mean-value", "dense_mha", "The output is the mean of the request's values.", "mlir-air#1427",
        "element", plant=around("dense_mha", _mean_value),
    ),
    fault(
        "returns-first-value", "sparse_mqa", "The output is the value of the first entry.", "", "element",
        plant=around("sparse_mqa", _own_value),
    ),
    fault(
        "answer-from-recycled-memory", "masked_mha", "Nothing is computed; the buffer may hold the right answer.",
        "KernelBench#82", "element", plant=remembering("masked_mha", _recycled),
    ),
    fault(
        "only-first-rows-computed", "dense_mha", "Queries after the 16th repeat its answer.", "", "element",
        plant=around("dense_mha", _first_rows_only),
    ),
    fault(
        "nan-as-wildcard", "dense_mha", "One row is NaN.", "pygpubench#7", "structure",
        plant=altered("dense_mha", _nan_where_hard),
    ),
    fault(
        "inf-as-wildcard", "merge_lse", "The first row is +inf.", "flashinfer-bench#429", "structure",
        plant=altered("merge_lse", lambda out, lse: (torch.cat((out[:1] + INF, out[1:])), lse)),
    ),
    fault(
        "output-in-fp32", "masked_mha", "The output has a wider dtype than declared.", "", "structure",
        plant=altered("masked_mha", lambda out, lse: (out.float(), lse)),
    ),
    fault(
        "lse-in-half-precision", "sparse_mqa", "The LSE is stored in the dtype of the output.", "", "structure",
        plant=altered("sparse_mqa", lambda out, lse: (out, lse.to(out.dtype))),
    ),
    fault(
        "output-broadcast", "merge_lse", "Only the first head is returned, in a shape that broadcasts.", "",
        "structure", plant=altered("merge_lse", lambda out, lse: (out[:, :1], lse[:, :1])),
    ),
    fault(
        "output-not-stored", "dense_mha", "The output is an expanded view of one row.", "", "element",
        plant=altered("dense_mha", lambda out, lse: (out[:1].expand_as(out), lse)),
    ),
    fault(
        "lse-missing", "sparse_mqa", "Only the output is returned.", "", "structure",
        plant=altered("sparse_mqa", lambda out, lse: (out,)),
    ),
    fault(
        "selects-first-columns", "topk_select", "The first k columns are selected.", "", "topk",
        plant=around("topk_select", lambda kernel, x: (_first_columns(**x),)),
    ),
    fault(
        "selects-recent-columns", "topk_select", "The last k columns are selected.", "", "topk",
        plant=around("topk_select", lambda kernel, x: (_recent_columns(x),)),
    ),
    fault(
        "constant-inside-tolerance", "masked_mha", "The output is 0.9 of the right one plus a tenth of its mean.",
        "mlir-air#1427", "element",
        plant=altered("masked_mha", _nearly),
    ),
)
