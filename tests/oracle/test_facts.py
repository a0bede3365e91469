"""What an implementation is told about a case before any tensor exists."""

from __future__ import annotations

from attnoracle.optimized.triton_runtime import interpreted
from attnoracle.oracle.case import Case
from attnoracle.oracle.config import load
from attnoracle.oracle.facts import facts

SPARSE = Case.parse("sparse_mqa:glm-5:h3:q3,0,1:k140,7,0:top24:bf16:randn:contiguous:sink:s0")
INDEXER = Case.parse("indexer_scores:glm-5:h3:q3:k140:e4m3:randn:strided:-:s0")


def test_facts_are_plain_values() -> None:
    assert facts(SPARSE, load("glm-5"), "cpu") == {
        "operator": "sparse_mqa",
        "device": "cpu",
        "capability": None,
        "interpreted": interpreted(),
        "dtype": "bf16",
        "cache_format": "model",
        "heads": 3,
        "d": 256,
        "v": 256,
        "c": 512,
        "r": 64,
        "k": 24,
        "i": 32,
        "e": 128,
        "q_lens": (3, 0, 1),
        "k_lens": (140, 7, 0),
        "causal": True,
        "layout": "contiguous",
        "options": ("sink",),
    }


def test_the_indexer_has_the_heads_of_the_case() -> None:
    found = facts(INDEXER, load("glm-5"), "cpu")
    assert (found["i"], found["e"], found["layout"]) == (3, 128, "strided")
