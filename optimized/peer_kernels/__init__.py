"""Kernels of other projects that are not on PyPI by themselves: thin adapters, each with the contract that was found.

``locate`` says where they are looked for; ``attnoracle doctor`` what was found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from ..contract import Contract
from ..implementation import Implementation
from . import support

#: FlashMLA's sparse prefill: natural LSE (its README says base 2), out 0 and LSE +inf without a valid index (H200,
#: the build inside vLLM 0.26.0).
_FLASHMLA = Contract(probabilities=None, empty_lse="+inf", batch_invariant=True)
#: Products of e4m3 are added in Hopper's fp8 accumulator: scores are 1.3e-4 off in the Frobenius norm (H200), where
#: fp32 accumulation would be 1e-7 off.
_DEEPGEMM = Contract(probabilities="fp32", accumulator="fp22", output="fp32", lse_base=None)


def _load(module: str, name: str) -> Callable[..., tuple[Any, ...]]:
    function: Callable[..., tuple[Any, ...]] = getattr(import_module(f".{module}", __name__), name)
    return function


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Implementation("sparse_mqa/flashmla", _FLASHMLA, support.flashmla, partial(_load, "flashmla", "sparse_mqa")),
    Implementation(
        "indexer_scores/deepgemm", _DEEPGEMM, support.deepgemm, partial(_load, "deepgemm", "indexer_scores")
    ),
)
