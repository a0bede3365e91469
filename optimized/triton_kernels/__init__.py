"""Portable Triton kernels of every operator: compiled on a GPU, interpreted on a CPU, from one source.

Importing this package imports no Triton; ``Implementation.load`` does, after ``triton_runtime.prepare()``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from .. import triton_runtime
from ..contract import Contract
from ..implementation import Facts, Implementation
from . import launch
from .padding import padded, split

_ITEMSIZE = {"bf16": 2, "fp16": 2, "fp32": 4, "e4m3": 2}  # e4m3 is widened to fp16 before it is multiplied
_ATTENTION_DTYPES = ("bf16", "fp16", "fp32")
_INDEXER_DTYPES = ("bf16", "fp16", "fp32", "e4m3")

#: Rows never share an accumulator, and block sizes depend on the head dims and the device alone.
_ATTENTION = Contract(probabilities=None, deterministic=True, batch_invariant=True, graph_safe=True)
_SCORES = Contract(
    probabilities="fp32", output="fp32", lse_base=None, deterministic=True, batch_invariant=True, graph_safe=True
)
_TOPK = Contract(
    probabilities="fp32",
    lse_base=None,
    index_space="request-local",
    topk_order="ascending",
    topk_ties="lowest-index",
    deterministic=True,
    batch_invariant=True,
    graph_safe=True,
)
_MERGE = Contract(probabilities="fp32", deterministic=True, batch_invariant=True, graph_safe=True)

#: Bytes and indices are exact and belong to one token or query each.
_LAYOUT = Contract(probabilities="fp32", lse_base=None, deterministic=True, batch_invariant=True, graph_safe=True)


#: A code times the scale of its tile is rounded to bf16 before it is multiplied.
_SPARSE = replace(_ATTENTION, dequantised="bf16")


def _load(operator: str, module: str = "") -> Callable[..., tuple[Any, ...]]:
    triton_runtime.prepare()
    function: Callable[..., tuple[Any, ...]] = getattr(import_module(f".{module or operator}", __name__), operator)
    return function


def _machine(facts: Facts) -> str | None:
    """Why no Triton kernel can run here, or None."""
    reason = triton_runtime.availability()
    if reason is not None:
        return reason
    if facts["interpreted"]:
        return None
    if facts["device"] != "cuda":
        return f"compiled Triton kernels need a CUDA device, got {facts['device']}; TRITON_INTERPRET=1 interprets them"
    if facts["capability"] < (8, 0):
        return f"these kernels need compute capability 8.0, got {facts['capability']}"
    return None


def _fits(facts: Facts, dtypes: tuple[str, ...], blocks: Callable[[int, int | None], launch.Launch]) -> str | None:
    """Why the machine, the dtype or the dims stand against it, or None; ``blocks`` takes itemsize and room."""
    reason = _machine(facts)
    if reason is not None:
        return reason
    dtype = facts["dtype"]
    if dtype not in dtypes:
        return f"expected one of the dtypes {', '.join(dtypes)}, got {dtype}"
    compiled = not facts["interpreted"]
    if compiled and dtype == "e4m3" and facts["capability"] < (8, 9):
        return f"e4m3 needs compute capability 8.9, got {facts['capability']}"
    try:
        blocks(_ITEMSIZE[dtype], launch.room_of(facts["capability"]) if compiled else None)
    except ValueError as error:
        return str(error)
    return None


def _supports_mha(facts: Facts) -> str | None:
    d, v = sum(split(facts["d"])), padded(facts["v"])
    return _fits(facts, _ATTENTION_DTYPES, lambda itemsize, room: launch.dense(d, v, itemsize, room))


def _supports_mqa(facts: Facts) -> str | None:
    h, c, r = facts["heads"], padded(facts["c"]), padded(facts["r"])
    if facts["cache_format"] == "model":
        return _fits(facts, _ATTENTION_DTYPES, lambda itemsize, room: launch.sparse(h, c, r, itemsize, room))
    if not facts["interpreted"] and (facts["capability"] or (0, 0)) < (8, 9) and facts["device"] == "cuda":
        return f"e4m3 needs compute capability 8.9, got {facts['capability']}"
    # Codes are widened to bf16 before they are multiplied.
    return _fits(facts, ("bf16", "e4m3"), lambda itemsize, room: launch.sparse(h, c, r, 2, room))


def _supports_padded(facts: Facts) -> str | None:
    if facts["cache_format"] != "fp8_ds_mla":
        return f"heads are padded for kernels on fp8_ds_mla caches, got {facts['cache_format']}"
    return _supports_mqa({**facts, "heads": -(-facts["heads"] // 64) * 64})


def _supports_indexer(facts: Facts) -> str | None:
    e = padded(facts["e"])
    return _fits(facts, _INDEXER_DTYPES, lambda itemsize, room: launch.indexer(e, itemsize, room))


def _supports_paged_indexer(facts: Facts) -> str | None:
    i, e = padded(facts["i"]), padded(facts["e"])
    return _fits(facts, ("e4m3",), lambda itemsize, room: launch.paged_indexer(i, e, room))


def _supports_merge(facts: Facts) -> str | None:
    v = padded(facts["v"])
    return _fits(facts, _ATTENTION_DTYPES, lambda itemsize, room: launch.merge(v, room))


def _supports_layout(facts: Facts) -> str | None:
    reason = _machine(facts)
    if reason is None and not facts["interpreted"] and facts["capability"] < (8, 9):
        return f"e4m3 needs compute capability 8.9, got {facts['capability']}"
    return reason


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Implementation("dense_mha/triton", _ATTENTION, _supports_mha, partial(_load, "dense_mha")),
    Implementation("masked_mha/triton", _ATTENTION, _supports_mha, partial(_load, "masked_mha")),
    Implementation("sparse_mqa/triton", _SPARSE, _supports_mqa, partial(_load, "sparse_mqa")),
    Implementation(
        "sparse_mqa/triton-pad64",
        replace(_SPARSE, head_multiple=64),
        _supports_padded,
        partial(_load, "sparse_mqa", "sparse_mqa_padded"),
    ),
    Implementation("indexer_scores/triton", _SCORES, _supports_indexer, partial(_load, "indexer_scores")),
    Implementation(
        "paged_indexer_scores/triton", _SCORES, _supports_paged_indexer, partial(_load, "paged_indexer_scores")
    ),
    Implementation("topk_select/triton", _TOPK, _machine, partial(_load, "topk_select")),
    Implementation("merge_lse/triton", _MERGE, _supports_merge, partial(_load, "merge_lse")),
    *(
        Implementation(f"{operator}/triton", _LAYOUT, _supports_layout, partial(_load, operator))
        for operator in (
            "quantize",
            "write_cache",
            "write_index",
            "gather",
            "gather_index",
            "convert_indices",
            "build_mask",
        )
    ),
)
