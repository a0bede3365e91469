"""Kernels for Hopper alone, in Gluon where Triton's own compiler stops short; each has a portable one beside it.

Importing this package imports no Triton; ``Implementation.load`` does. Gluon is not interpreted: these run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from .. import triton_runtime
from ..contract import Contract
from ..implementation import Facts, Implementation

_DIMS = {"dense_mha": ((192, 128), (256, 256)), "sparse_mqa": ((512, 64),)}
_WIDEST = 32768
_FEW = 32

#: A row is computed alike alone and in a batch: tiles of keys are counted from the request's own first or last key.
_ATTENTION = Contract(probabilities=None, deterministic=True, batch_invariant=True, graph_safe=True)
#: Which queries share a tile, and so which keys a row is multiplied with by 0, depends on its place in the batch.
_SHARING = Contract(probabilities=None, duplicates="collapsed", deterministic=True, graph_safe=True)
#: fp8 products are added with 13 bits after the point of the largest.
_SCORES = Contract(
    probabilities="fp32", accumulator="fp22", output="fp32", lse_base=None, deterministic=True, batch_invariant=True,
    graph_safe=True,
)  # fmt: skip
_TOPK = Contract(
    probabilities="fp32", lse_base=None, index_space="request-local", deterministic=True, batch_invariant=True,
    graph_safe=True,
)  # fmt: skip


def _load(module: str, function: str) -> Callable[..., tuple[Any, ...]]:
    triton_runtime.prepare()
    found: Callable[..., tuple[Any, ...]] = getattr(import_module(f".{module}", __name__), function)
    return found


def _machine(facts: Facts) -> str | None:
    reason = triton_runtime.availability()
    if reason is not None:
        return reason
    if facts["interpreted"] or facts["device"] != "cuda":
        return "this kernel is compiled for Hopper; Triton's interpreter runs the portable one"
    if facts["capability"] != (9, 0):
        return f"this kernel is for compute capability 9.0, got {facts['capability']}"
    return None


def _dtype(facts: Facts, *known: str) -> str | None:
    return None if facts["dtype"] in known else f"expected one of the dtypes {', '.join(known)}, got {facts['dtype']}"


def _supports_mha(facts: Facts) -> str | None:
    if (facts["d"], facts["v"]) not in _DIMS["dense_mha"]:
        return f"this kernel takes head dims 192/128 and 256/256, got {facts['d']}/{facts['v']}"
    return _machine(facts) or _dtype(facts, "bf16", "fp16")


def _supports_mqa(facts: Facts) -> str | None:
    if facts["cache_format"] != "model":
        return f"expected a cache of the model's dtype, got {facts['cache_format']}"
    if (facts["c"], facts["r"]) not in _DIMS["sparse_mqa"]:
        return f"this kernel takes latent and rope dims 512+64, got {facts['c']}+{facts['r']}"
    return _machine(facts) or _dtype(facts, "bf16")


def _supports_shared(facts: Facts) -> str | None:
    if facts["heads"] > _FEW:
        return f"two queries share a tile up to {_FEW} heads, got {facts['heads']}"
    if "duplicates" in facts["options"]:
        return "an index that a row names twice counts once in this kernel, and these inputs have such indices"
    return _supports_mqa(facts)


def _supports_indexer(facts: Facts) -> str | None:
    if facts["i"] not in (16, 32, 64) or facts["e"] not in (64, 128):
        return f"this kernel takes 16, 32 or 64 indexer heads of 64 or 128 columns, got {facts['i']} of {facts['e']}"
    return _machine(facts) or _dtype(facts, "e4m3")


def _supports_topk(facts: Facts) -> str | None:
    columns = sum(facts["k_lens"])
    if columns + (3 if columns % 4 else 0) > _WIDEST:
        return f"a row of at most {_WIDEST} scores fits the registers of one program, got {columns}"
    return _machine(facts)


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Implementation("dense_mha/hopper", _ATTENTION, _supports_mha, partial(_load, "dense_mha", "dense_mha")),
    Implementation("masked_mha/hopper", _ATTENTION, _supports_mha, partial(_load, "masked_mha", "masked_mha")),
    Implementation("sparse_mqa/hopper", _ATTENTION, _supports_mqa, partial(_load, "sparse_mqa", "sparse_mqa")),
    Implementation(
        "sparse_mqa/hopper-shared", _SHARING, _supports_shared, partial(_load, "sparse_mqa", "sparse_mqa_shared")
    ),
    Implementation(
        "indexer_scores/hopper", _SCORES, _supports_indexer, partial(_load, "indexer_scores", "indexer_scores")
    ),
    Implementation("topk_select/hopper", _TOPK, _supports_topk, partial(_load, "topk_select", "topk_select")),
)
