"""Conventions: base and meaning of the LSE, rows without keys, the sink."""

from __future__ import annotations

from math import log
from typing import Any

import torch
from torch import Tensor

from ..fault import sited
from ..simulated import Kernel
from ..simulated.sites import INF, rounded, sink_factor
from ..wrapped import altered, around, mangled

fault = sited("conventions")
Pair = tuple[Tensor, ...]


def _empty(change: Any) -> Any:
    """Outputs with ``change(out, lse)`` on the rows that saw no key."""

    def body(out: Tensor, lse: Tensor) -> Pair:
        none = lse == -INF
        new_out, new_lse = change(out, lse)
        return torch.where(none[..., None], new_out, out), torch.where(none, new_lse, lse)

    return body


def _mean_value(kernel: Kernel, inputs: dict[str, Any]) -> Pair:
    out, lse = kernel(**inputs)
    mean = inputs["v"].float().nan_to_num().mean(0).to(out.dtype) if inputs["v"].numel() else out[:1].sum(0)
    return torch.where((lse == -INF)[..., None], mean, out), lse


def _sink_in_lse(kernel: Kernel, inputs: dict[str, Any]) -> Pair:
    out, lse = kernel(**inputs)
    sink = inputs.get("sink")
    return out, lse if sink is None else torch.logaddexp(lse, sink)


def _sink_times(change: Any) -> Any:
    """The sink as the faulty kernel reads it."""

    def body(inputs: dict[str, Any]) -> dict[str, Any]:
        sink = inputs.get("sink")
        return {} if sink is None else {"sink": change(sink, inputs)}

    return body


CONVENTIONS = (
    fault(
        "lse-base-2", "sparse_mqa", "The LSE is a base-2 logarithm.", "sglang#40903", "lse",
        lse=lambda lse, out: lse / log(2),
    ),
    fault(
        "lse-without-max", "dense_mha", "The LSE lacks the running maximum.", "", "lse",
        log=lambda peak, total: torch.log(total),
    ),
    fault(
        "lse-is-the-max", "masked_mha", "The maximum is returned for the LSE.", "", "lse",
        log=lambda peak, total: peak,
    ),
    fault(
        "lse-shifted", "dense_mha", "The LSE is 0.001 too large.", "", "lse", lse=lambda lse, out: lse + 1e-3,
    ),
    fault(
        "lse-in-bf16", "masked_mha", "The LSE is rounded to bf16.", "", "lse",
        lse=lambda lse, out: rounded(lse, torch.bfloat16),
    ),
    fault(
        "lse-of-unscaled-max", "sparse_mqa", "The maximum enters the LSE in units of q.k / 2.", "", "lse",
        log=lambda peak, total: peak / 2 + torch.log(total),
    ),
    fault(
        "lse-of-first-head", "dense_mha", "The LSE is that of the first head for all heads.", "", "lse",
        lse=lambda lse, out: lse[:, :1].expand_as(lse),
    ),
    fault(
        "lse-zero", "masked_mha", "The LSE buffer is never written.", "", "lse",
        lse=lambda lse, out: 0 * out[..., 0].float(),
    ),
    fault(
        "empty-row-nan", "dense_mha", "A query with no key gets 0 / 0.", "flashinfer#3996", "structure",
        options=("k<q",), normalise=lambda acc, total: acc / total,
    ),
    fault(
        "empty-row-mean-value", "dense_mha", "A query with no key gets the mean of V.", "flashinfer#3996",
        "element", options=("k<q",), plant=around("dense_mha", _mean_value),
    ),
    fault(
        "empty-row-unwritten", "masked_mha", "A query with no key is not stored: its buffer's content shows.",
        "vllm#37442", "element", options=("empty-rows",),
        plant=altered("masked_mha", _empty(lambda out, lse: (torch.full_like(out, 0.5), lse))),
    ),
    fault(
        "empty-row-lse-plus-inf", "dense_mha", "A query with no key has LSE +inf.", "vllm#15492", "lse",
        options=("k<q",), lse=lambda lse, out: lse.masked_fill(lse == -INF, INF),
    ),
    fault(
        "empty-row-lse-finite", "sparse_mqa", "A query with no key has a finite LSE.", "flashinfer#4452", "lse",
        options=("empty-rows",), lse=lambda lse, out: lse.clamp(min=-5e4),
    ),
    fault(
        "empty-row-lse-zero", "masked_mha", "A query with no key has LSE 0.", "vllm#49294", "lse",
        options=("empty-rows",), lse=lambda lse, out: lse.masked_fill(lse == -INF, 0.0),
    ),
    fault(
        "empty-row-first-value", "sparse_mqa", "A query with no key copies cache row 0.", "sglang#22688", "element",
        options=("empty-rows",),
        plant=around("sparse_mqa", lambda kernel, x: _copied_row(kernel(**x), x)),
    ),
    fault(
        "sink-ignored", "sparse_mqa", "The sink is dropped.", "vllm#54568", "element", options=("sink",),
        sink=lambda lse, sink: torch.ones_like(lse),
    ),
    fault(
        "sink-in-lse", "sparse_mqa", "The LSE contains the sink.", "", "lse", options=("sink",),
        plant=around("sparse_mqa", _sink_in_lse),
    ),
    fault(
        "sink-scaled", "sparse_mqa", "The sink logit is multiplied by the softmax scale.", "", "element",
        options=("sink",), plant=mangled("sparse_mqa", _sink_times(lambda sink, x: sink * x["scale"])),
    ),
    fault(
        "sink-in-base-2", "sparse_mqa", "The sink is exponentiated in base 2.", "", "element", options=("sink",),
        plant=mangled("sparse_mqa", _sink_times(lambda sink, x: sink * log(2))),
    ),
    fault(
        "sink-of-first-head", "sparse_mqa", "All heads use the sink of the first.", "", "element", options=("sink",),
        sink=lambda lse, sink: sink_factor(lse, sink[:1].expand_as(sink)),
    ),
    fault(
        "sink-counted-twice", "sparse_mqa", "Each of two splits adds the sink.", "", "element", options=("sink",),
        sink=lambda lse, sink: sink_factor(lse, sink + log(2)),
    ),
)


def _copied_row(outputs: Pair, inputs: dict[str, Any]) -> Pair:
    out, lse = outputs
    row = inputs["kv"][0, : inputs["value_dim"]].to(out.dtype)
    return torch.where((lse == -INF)[..., None], row, out), lse
