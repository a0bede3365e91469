"""Faults of the catalogue that act on some lengths only: what a suite misses that does not draw them.

Each is a faulty kernel and the right one it was made from; which of them answers is decided by the lengths of the call.
The lengths are of the kinds that public reports name (a tile's edge, q = k, one key more than top-k), and none of them
is drawn by the quick suite, which a test holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...optimized.implementation import Implementation
from ..case import Case
from ..errors import unknown
from . import Fault, fault
from .simulated import simulated


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a kernel can see of the lengths of its call."""

    requests: tuple[tuple[int, int], ...]
    """Queries and keys of each request; of operators that are not told about requests, the sums."""
    topk: int

    @classmethod
    def of(cls, case: Case) -> Lengths:
        """Those of a case."""
        if case.operator in ("dense_mha", "masked_mha"):
            return cls(tuple(zip(case.q_lens, case.k_lens, strict=True)), case.topk)
        return cls(((case.queries, case.keys),), case.topk)

    @classmethod
    def seen(cls, operator: str, inputs: dict[str, Any], topk: int) -> Lengths:
        """Those of a call."""
        if operator in ("dense_mha", "masked_mha"):
            ends = inputs["cu_q"].diff().tolist(), inputs["cu_k"].diff().tolist()
            return cls(tuple(zip(*ends, strict=True)), topk)
        if operator == "sparse_mqa":
            return cls(((len(inputs["q"]), -1),), inputs["indices"].shape[1])
        if operator == "topk_select":
            return cls(((len(inputs["scores"]), -1),), inputs["k"])
        if operator == "merge_lse":
            return cls(((len(inputs["out_a"]), len(inputs["out_a"])),), topk)
        return cls(((len(inputs["q"]), len(inputs["k"])),), topk)


@dataclass(frozen=True, slots=True)
class Hidden:
    """One fault and the lengths that it acts on."""

    name: str
    fault: str
    lengths: str
    """The condition in words."""
    acts: Callable[[Lengths], bool]

    @property
    def operator(self) -> str:
        return fault(self.fault).operator

    def acts_on(self, case: Case) -> bool:
        """Whether the fault acts on the lengths of a case."""
        return self.acts(Lengths.of(case))

    def implementation(self) -> Implementation:
        """A kernel that is right but on these lengths."""
        planted = fault(self.fault)
        faulty = planted.implementation()
        right = _right(planted)

        def load() -> Callable[..., tuple[Any, ...]]:
            wrong, good = faulty.load(), right()

            def kernel(**inputs: Any) -> tuple[Any, ...]:
                acts = self.acts(Lengths.seen(planted.operator, inputs, 0))
                return (wrong if acts else good)(**inputs)

            return kernel

        return replace(faulty, name=f"{planted.operator}/hidden-{self.name}", load=load, plan=None)


def _right(planted: Fault) -> Callable[[], Callable[..., tuple[Any, ...]]]:
    """The kernel that the fault was planted in, unchanged."""
    if planted.planted_in == "triton":
        from ..guests import known

        return known.find(f"{planted.operator}/triton").load
    return lambda: simulated(planted.operator)


#: Ten faults: six in shipped Triton kernels, four in simulated ones.
HIDDEN = (
    Hidden(
        "last-key", "triton-last-key-dropped", "a request has q = k, one more than a multiple of 64",
        lambda at: any(q == k and k % 64 == 1 and k > 1 for q, k in at.requests),
    ),
    Hidden(
        "diagonal", "triton-causal-off-by-one", "a request has one key of context and a multiple of 16 queries",
        lambda at: any(k == q + 1 and q % 16 == 0 and q for q, k in at.requests),
    ),
    Hidden(
        "decode-tail", "triton-partial-tile-dropped", "a decode has one key less than a multiple of 128",
        lambda at: any(q == 1 and k % 128 == 127 for q, k in at.requests),
    ),
    Hidden(
        "full-mask", "triton-mask-last-tile-skipped", "a request has q = k, one less than a multiple of 128",
        lambda at: any(q == k and k % 128 == 127 for q, k in at.requests),
    ),
    Hidden(
        "window-end", "triton-window-end-inclusive", "several queries, and in all one key more than a multiple of 64",
        lambda at: any(q > 1 and k % 64 == 1 and k > 1 for q, k in at.requests),
    ),
    Hidden(
        "merge-base", "triton-merge-one-side-base-2", "one query less than a multiple of 64",
        lambda at: any(q % 64 == 63 for q, _ in at.requests),
    ),
    Hidden(
        "first-slot", "first-entry-dropped", "one slot less than a multiple of 64, one query more than one of 16",
        lambda at: at.topk % 64 == 63 and any(q % 16 == 1 for q, _ in at.requests),
    ),
    Hidden(
        "value-tail", "value-tail-zero", "one slot more than a multiple of 64 and a multiple of 64 queries",
        lambda at: at.topk % 64 == 1 and any(q % 64 == 0 and q for q, _ in at.requests),
    ),
    Hidden(
        "mask-word", "mask-last-word-dropped", "a request has one query more than one of 16, keys a multiple of 64",
        lambda at: any(q % 16 == 1 and q > 1 and k % 64 == 0 and k for q, k in at.requests),
    ),
    Hidden(
        "selection", "one-member-wrong", "one slot less than a multiple of 16 and one query more than one of 64",
        lambda at: at.topk % 16 == 15 and any(q % 64 == 1 for q, _ in at.requests),
    ),
)  # fmt: skip


def hidden(name: str) -> Hidden:
    """The hidden fault of that name. Raises BadInput with the nearest names for an unknown one."""
    for one in HIDDEN:
        if one.name == name:
            return one
    raise unknown("hidden fault", name, (one.name for one in HIDDEN))
