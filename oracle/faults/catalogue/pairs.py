"""Faults that need two properties of a case at once: an option that one dtype's path forgot, a kind in one format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..fault import sited
from ..simulated import Kernel
from ..simulated.sites import INF
from ..wrapped import around, mangled

fault = sited("pairs")
_HALF, _FULL = torch.float16, torch.float32


def _without(operator: str, name: str, neutral: Callable[[dict[str, Any]], Any], dtype: torch.dtype) -> Any:
    """The keyword ``name`` is not looked at where the queries are of ``dtype``."""

    def change(inputs: dict[str, Any]) -> dict[str, Any]:
        given = inputs.get(name) is not None and inputs["q"].dtype == dtype
        return {name: neutral(inputs)} if given else {}

    return mangled(operator, change)


def _no_sink(inputs: dict[str, Any]) -> Tensor:
    return torch.full_like(inputs["sink"], -INF)


def _all_slots(inputs: dict[str, Any]) -> Tensor:
    return torch.full_like(inputs["lengths"], inputs["indices"].shape[1])


def _causal_in_fp32(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"causal": True} if inputs["q"].dtype == _FULL else {}


def _narrowed(operator: str, *names: str, dtype: torch.dtype) -> Any:
    """Tensors of ``dtype`` go through bf16."""

    def change(inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: inputs[name].bfloat16().to(dtype) for name in names if inputs[name].dtype == dtype}

    return mangled(operator, change)


def _once(inputs: dict[str, Any]) -> dict[str, Any]:
    """With lengths, an index that stands twice counts once."""
    if inputs.get("lengths") is None:
        return {}
    indices = inputs["indices"]
    same = indices[:, :, None] == indices[:, None, :]
    first = torch.ones_like(same[0]).tril(-1)
    return {"indices": torch.where((same & first).any(-1), -1, indices)}


def _clamped(inputs: dict[str, Any]) -> dict[str, Any]:
    """With a sink, an index past the end reads the last row."""
    if inputs.get("sink") is None:
        return {}
    return {"indices": inputs["indices"].clamp(max=len(inputs["kv"]) - 1)}


def _first_window(kernel: Kernel, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Windows that end before they start are as long as their length taken without a sign."""
    length = (inputs["ke"] - inputs["ks"]).abs()
    start = torch.where(inputs["ke"] < inputs["ks"], 0, inputs["ks"])
    return kernel(**{**inputs, "ks": start, "ke": (start + length).clamp(max=_columns(inputs))})


def _columns(inputs: dict[str, Any]) -> int:
    return int(inputs["scores"].shape[1] if "scores" in inputs else inputs["k"].shape[0])


def _no_query_scale(inputs: dict[str, Any]) -> dict[str, Any]:
    """Where windows run backwards the scales of the queries are left out."""
    given = inputs.get("q_scale") is not None and len(inputs["ks"]) > 1 and bool(inputs["ks"][0] > inputs["ks"][-1])
    return {"q_scale": torch.ones_like(inputs["q_scale"])} if given else {}


def _clean_rope(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"rope": torch.nan_to_num(inputs["rope"])}


PAIRS = (
    fault(
        "sink-ignored-in-fp16", "sparse_mqa", "The kernel for fp16 has no sink.", "", "element",
        plant=_without("sparse_mqa", "sink", _no_sink, _HALF), options=("dtype=fp16", "sink"),
    ),
    fault(
        "lengths-ignored-in-fp32", "sparse_mqa", "The kernel for fp32 counts all slots.", "", "structure",
        plant=_without("sparse_mqa", "lengths", _all_slots, _FULL), options=("dtype=fp32", "lengths"),
    ),
    fault(
        "duplicates-collapsed-with-lengths", "sparse_mqa", "With lengths, an index that stands twice counts once.", "",
        "element", plant=mangled("sparse_mqa", _once), options=("duplicates", "lengths"),
    ),
    fault(
        "index-past-end-clamped-with-sink", "sparse_mqa", "With a sink, an index past the end reads the last row.", "",
        "element", plant=mangled("sparse_mqa", _clamped), options=("invalid", "sink"),
    ),
    fault(
        "causal-forced-in-fp32", "dense_mha", "The kernel for fp32 is causal whatever is asked.", "", "element",
        plant=mangled("dense_mha", _causal_in_fp32), options=("dtype=fp32", "noncausal"),
    ),
    fault(
        "mask-causal-forced-in-fp32", "masked_mha", "The kernel for fp32 is causal whatever is asked.", "", "element",
        plant=mangled("masked_mha", _causal_in_fp32), options=("dtype=fp32", "noncausal"),
    ),
    fault(
        "fp16-keys-through-bf16", "indexer_scores", "Queries and keys of fp16 go through bf16.", "", "element",
        plant=_narrowed("indexer_scores", "q", "k", dtype=_HALF), options=("dtype=fp16",),
    ),
    fault(
        "query-scale-left-out-backwards", "indexer_scores", "Where windows run backwards query scales are left out.",
        "", "element", plant=mangled("indexer_scores", _no_query_scale), options=("backwards", "q-scale"),
    ),
    fault(
        "inverted-window-scored", "indexer_scores", "A window that ends before it starts is as long without its sign.",
        "", "structure", plant=around("indexer_scores", _first_window), options=("inverted",),
    ),
    fault(
        "inverted-window-selected", "topk_select", "A window that ends before it starts is as long without its sign.",
        "", "topk", plant=around("topk_select", _first_window), options=("inverted",),
    ),
    fault(
        "fp16-rows-through-bf16", "write_cache", "Rows of a cache in fp16 go through bf16.", "", "exact",
        plant=_narrowed("write_cache", "latent", "rope", dtype=_HALF), options=("dtype=fp16",),
    ),
    fault(
        "fp32-keys-through-bf16", "write_index", "Keys of fp32 go through bf16 before they are quantised.", "", "exact",
        plant=_narrowed("write_index", "k", dtype=_FULL), options=("dtype=fp32",),
    ),
    fault(
        "fp32-rows-gathered-through-bf16", "gather", "Rows of a cache in fp32 go through bf16.", "", "exact",
        plant=_narrowed("gather", "cache", dtype=_FULL), options=("dtype=fp32",),
    ),
    fault(
        "nan-of-rotated-dims-cleaned", "write_cache", "NaN and infinities among the rotated dims become numbers.", "",
        "exact", plant=mangled("write_cache", _clean_rope), options=("kind=nonfinite",),
    ),
)  # fmt: skip
