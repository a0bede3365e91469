"""What an operator has to do on given inputs, whoever does it: useful operations, least bytes, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...oracle.case import Case
from ...oracle.geometry import Geometry

_ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "e4m3": 1}


@dataclass(frozen=True, slots=True)
class Work:
    """Of one call."""

    flops: float
    """Multiplications and additions of the matrix products on pairs that count; 0: none to speak of."""
    bytes: float
    """Every input read once and every output written once; gathered keys once for each slot that names them."""


def work(case: Case, arguments: Mapping[str, Any]) -> Work:
    """Useful work, from the tensors themselves. masked_mha counts all causal pairs, as dense_mha does, so that
    a kernel which skips tiles shows it as speed."""
    fixed = sum(_bytes(value) for value in arguments.values() if isinstance(value, Tensor))
    if case.operator in ("dense_mha", "masked_mha"):
        _, heads, width = arguments["q"].shape
        value = arguments["v"].shape[2]
        out = arguments["q"].shape[0] * heads * (value * arguments["q"].itemsize + 4)
        return Work(2.0 * heads * _pairs(case) * (width + value), fixed + out)
    if case.operator == "sparse_mqa":
        queries, heads, width = arguments["q"].shape
        value = arguments["value_dim"]
        slots = _slots(arguments)
        gathered = slots * width * arguments["kv"].itemsize - _bytes(arguments["kv"])
        out = queries * heads * (value * arguments["q"].itemsize + 4)
        return Work(2.0 * heads * slots * (width + value), fixed + gathered + out)
    if case.operator == "indexer_scores":
        queries, heads, width = arguments["q"].shape
        pairs = float((arguments["ke"] - arguments["ks"]).clamp(min=0).sum())
        return Work(2.0 * heads * width * pairs, fixed + 4 * queries * arguments["k"].shape[0])
    if case.operator == "topk_select":
        return Work(0.0, fixed + 4 * arguments["scores"].shape[0] * arguments["k"])
    return Work(0.0, fixed + _bytes(arguments["out_a"]) + _bytes(arguments["lse_a"]))


def memory_needed(case: Case, geometry: Geometry) -> int:
    """Bytes that inputs and outputs of the case take, before anything is allocated; the kernels' own come on top."""
    item, q, t = _ITEMSIZE[case.dtype], case.queries, case.keys
    if case.operator in ("dense_mha", "masked_mha"):
        width, value = geometry.qk_head_dim, geometry.v_head_dim
        mask = len(case.q_lens) * max(case.q_lens) * max(case.k_lens) // 8 if case.operator == "masked_mha" else 0
        return case.heads * item * (q * (width + value) + t * (width + value)) + mask
    if case.operator == "sparse_mqa":
        return item * (case.heads * q * (geometry.latent_dim + geometry.kv_lora_rank) + t * geometry.latent_dim) + (
            12 * q * case.topk
        )
    if case.operator == "indexer_scores":
        return item * (geometry.index_head_dim or 0) * (case.heads * q + t) + 4 * q * t
    if case.operator == "topk_select":
        return 4 * q * (t + case.topk)
    return 3 * item * case.heads * q * geometry.v_head_dim


def _pairs(case: Case) -> float:
    """Pairs of a query and a key that it may see, causal from the bottom right, all requests."""
    pairs = 0
    for queries, keys in zip(case.q_lens, case.k_lens, strict=True):
        seeing = min(queries, keys)  # the first queries see nothing where there are more of them than keys
        pairs += seeing * (keys - seeing) + seeing * (seeing + 1) // 2
    return float(pairs)


def _slots(arguments: Mapping[str, Any]) -> float:
    """Slots that name a key."""
    indices = arguments["indices"]
    valid = (indices >= 0) & (indices < arguments["kv"].shape[0])
    if arguments.get("lengths") is not None:
        slot = indices.new_tensor(range(indices.shape[1]))
        valid &= slot < arguments["lengths"][:, None]
    return float(valid.sum())


def _bytes(tensor: Tensor) -> float:
    return float(tensor.numel() * tensor.itemsize)
