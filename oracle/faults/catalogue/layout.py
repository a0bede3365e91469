"""Heads, head dims and strides: the right arithmetic on the wrong memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..fault import sited
from ..wrapped import altered, mangled, packed_strides, reread

fault = sited("layout")
Three = tuple[Tensor, Tensor, Tensor]


def _packed_query(q: Tensor, k: Tensor, v: Tensor) -> Three:
    return reread(q, packed_strides(q.shape)), k, v


def _value_with_key_strides(q: Tensor, k: Tensor, v: Tensor) -> Three:
    return q, k, reread(v, k.stride())


def _aligned_rows(inputs: dict[str, Any]) -> dict[str, Any]:
    kv = inputs["kv"]
    return {"kv": reread(kv, (-(-kv.shape[1] // 128) * 128, 1))}


def _grouped_heads(q: Tensor, k: Tensor, v: Tensor) -> Three:
    head = torch.arange(k.shape[1], device=k.device) // 2 * 2
    return q, k[:, head], v[:, head]


def _modulo_heads(q: Tensor, k: Tensor, v: Tensor) -> Three:
    head = torch.arange(k.shape[1], device=k.device) % max(1, k.shape[1] // 2)
    return q, k[:, head], v[:, head]


def _overstrided(q: Tensor, k: Tensor, v: Tensor) -> Three:
    return q[(torch.arange(q.shape[0], device=q.device) * 4) % max(q.shape[0], 1)], k, v


def _from_fixed_length(cu: list[int], b: int) -> tuple[int, int]:
    """First and last-plus-one query of a request, kept inside the batch."""
    start = b * cu[1] % (cu[-1] - (cu[b + 1] - cu[b]) + 1)
    return start, start + cu[b + 1] - cu[b]


def _transposed_lse(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return out, lse.T.contiguous().view(lse.shape)


def _head_major(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    return out.transpose(0, 1).contiguous().view(out.shape), lse


def _without_rope(inputs: dict[str, Any]) -> dict[str, Any]:
    q = inputs["q"].clone()
    q[..., inputs["value_dim"] :] = 0
    return {"q": q}


def _block_of_heads(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    written = out.shape[1] // 8 * 8
    changed, lse = out.clone(), lse.clone()
    changed[:, written:], lse[:, written:] = 0.5, 0.5
    return changed, lse


def _last_dims_unwritten(rows: Tensor, c: int) -> Tensor:
    values = rows[..., :c].clone()
    values[..., c - c // 8 :] = 0
    return values


LAYOUT = (
    fault(
        "query-strides-ignored", "dense_mha", "Queries are read as if they were contiguous.", "flash-attention#2670",
        "element", options=("layout=strided",), inputs=_packed_query,
    ),
    fault(
        "key-strides-ignored", "masked_mha", "Keys are read as if they were contiguous.", "FlagGems#5896", "structure",
        options=("layout=strided",), inputs=lambda q, k, v: (q, reread(k, packed_strides(k.shape)), v),
    ),
    fault(
        "cache-row-stride-ignored", "sparse_mqa", "Cache rows are read as if they were contiguous.", "", "structure",
        options=("layout=strided",), inputs=lambda q, kv, _: (q, reread(kv, packed_strides(kv.shape)), kv),
    ),
    fault(
        "storage-offset-ignored", "dense_mha", "A view is read from the start of its storage.", "flashinfer#2763",
        "element", options=("layout=offset",), inputs=lambda q, k, v: (q, reread(k, offset=0), v),
    ),
    fault(
        "value-read-with-key-strides", "dense_mha", "Values are read with the strides of the keys.", "", "element",
        inputs=_value_with_key_strides,
    ),
    fault(
        "cache-row-stride-aligned-up", "sparse_mqa", "Rows are taken to be padded to 128 elements.", "vllm#46856",
        "element", plant=mangled("sparse_mqa", _aligned_rows),
    ),
    fault(
        "heads-rolled", "dense_mha", "Each head gets the output of the one before.", "", "element",
        output=lambda out, dtype: out.roll(1, dims=1).to(dtype),
    ),
    fault(
        "two-heads-swapped", "sparse_mqa", "The first two heads are exchanged.", "", "element",
        output=lambda out, dtype: torch.cat((out[:, :2].flip(1), out[:, 2:]), 1).to(dtype),
    ),
    fault(
        "key-heads-shared-in-pairs", "dense_mha", "Two neighbouring query heads read one key head.", "", "element",
        inputs=_grouped_heads,
    ),
    fault(
        "key-heads-by-modulo", "masked_mha", "Query head h reads key head h mod H/2.", "", "element",
        inputs=_modulo_heads,
    ),
    fault(
        "heads-past-block-unwritten", "sparse_mqa", "Heads past the last whole block of 8 are not computed.",
        "local-inference-lab/vllm#5", "element", options=("heads=12",), plant=altered("sparse_mqa", _block_of_heads),
    ),
    fault(
        "rope-dims-dropped", "sparse_mqa", "The rotated dims are left out of q.k.", "", "element",
        plant=mangled("sparse_mqa", _without_rope),
    ),
    fault(
        "last-head-dims-dropped", "dense_mha", "q.k stops at the last multiple of 128 dims below the head dim.",
        "DeepGEMM#433", "element",
        dot=lambda q, k: (
            q[..., : (q.shape[-1] - 1) // 128 * 128] @ k[..., : (k.shape[-1] - 1) // 128 * 128].transpose(-1, -2)
        ),
    ),
    fault(
        "value-slice-shifted", "sparse_mqa", "Values are the last c dims of a row, the rotated ones among them.", "",
        "element", values=lambda rows, c: rows[..., -c:],
    ),
    fault(
        "value-tail-zero", "sparse_mqa", "The last eighth of the value dims is left 0, 448 of 512.", "", "element",
        values=_last_dims_unwritten,
    ),
    fault(
        "lse-stored-head-major", "dense_mha", "The LSE is stored [h, s] and read as [s, h].", "", "lse",
        plant=altered("dense_mha", _transposed_lse),
    ),
    fault(
        "output-stored-head-major", "masked_mha", "The output is stored [h, s, v] and read as [s, h, v].", "",
        "element", plant=altered("masked_mha", _head_major),
    ),
    fault(
        "query-rows-overstrided", "dense_mha", "The row stride of folded multi-token queries is taken four times.",
        "aiter#3910", "element", inputs=_overstrided,
    ),
    fault(
        "request-start-from-fixed-length", "dense_mha", "Requests start at multiples of the first query length.",
        "flash-attention#1217", "element",
        query_range=_from_fixed_length,
    ),
    fault(
        "output-start-from-fixed-length", "dense_mha", "Results are stored at multiples of 4 queries a request.",
        "flashinfer#4382", "element", target=lambda start, request: min(start, 4 * request),
    ),
)
