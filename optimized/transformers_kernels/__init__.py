"""Stages of the models that transformers ships, driven as implementations of single operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import metadata
from typing import Any

from ..contract import Contract
from ..implementation import Facts, Implementation

_SCORES = Contract(probabilities="fp32", output="fp32", lse_base=None)
#: Elements of the scores of single heads, which the module holds all at once: 1 GiB in fp32.
_MOST = 2**28


def _why_not(facts: Facts) -> str | None:
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return "transformers is not installed"
    if tuple(map(int, version.split(".")[:2])) < (5, 2):
        return f"GLM-MoE-DSA came with transformers 5.2, found {version}"
    if facts["dtype"] not in ("bf16", "fp16", "fp32"):
        return f"the module takes no quantised tensors, got {facts['dtype']}"
    tokens = max(sum(facts["q_lens"]), sum(facts["k_lens"]))
    held = facts["heads"] * tokens * tokens
    return f"the module would hold {held:.1e} scores of single heads at once" if held > _MOST else None


def _load() -> Callable[..., tuple[Any, ...]]:
    from .indexer import indexer_scores, make_indexer

    state = random.getstate()
    make_indexer(1, 8)  # the first one imports transformers, which takes seconds and may draw random numbers
    random.setstate(state)

    return indexer_scores


IMPLEMENTATIONS: tuple[Implementation, ...] = (Implementation("indexer_scores/transformers", _SCORES, _why_not, _load),)
