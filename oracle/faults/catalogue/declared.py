"""Conventions that are mixed up: what the contract declares and what the kernel does differ, each without the other."""

from __future__ import annotations

from dataclasses import replace
from math import log

import torch

from ..fault import sited
from ..simulated import SIMULATED
from ..simulated.sites import INF

fault = sited("conventions")

DECLARED = (
    fault(
        "lse-both-base-2-and-plus-inf",
        "dense_mha",
        "The LSE is base 2, and +inf for a query with no key.",
        "flash-attention#1778",
        "lse",
        options=("k<q",),
        lse=lambda lse, out: (lse / log(2)).masked_fill(lse == -INF, INF),
    ),
    fault(
        "lse-natural-though-base-2-declared",
        "sparse_mqa",
        "The contract says base 2, the LSE is natural.",
        "sglang#33064",
        "lse",
        contract=replace(SIMULATED, lse_base="2"),
        lse=lambda lse, out: lse,
    ),
    fault(
        "lse-minus-inf-though-plus-inf-declared",
        "dense_mha",
        "The contract says +inf for a query with no key, as FlashMLA does; the LSE is -inf.",
        "vllm#15492",
        "lse",
        options=("k<q",),
        contract=replace(SIMULATED, empty_lse="+inf"),
        lse=lambda lse, out: lse,
    ),
    fault(
        "indices-counted-from-one",
        "sparse_mqa",
        "Indices are counted from 1.",
        "",
        "element",
        indices=lambda i, n: torch.where((i >= 0) & (i < n), i - 1, i),
    ),
)
