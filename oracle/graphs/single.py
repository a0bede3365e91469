"""Single implementations under a graph: captured on one case, replayed on others, judged by the one loop.

Only those that declare ``graph_safe`` are held to it. The graphed kernel is an implementation like any other, whose
call copies its inputs to where the graph reads them and replays, so ``check`` judges it as it judges the kernel itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ...optimized.catalogue import IMPLEMENTATIONS
from ...optimized.implementation import Implementation
from ..case import Case
from ..check import check
from ..config import load
from ..facts import facts
from ..inputs import make
from .backend import Maker
from .checks import difference
from .makers import EagerMaker
from .run import StepSeen
from .violation import CaptureFailed, Violation

#: By operator: the case that is captured, and cases of the same shapes whose lengths, values or windows differ.
CASES: dict[str, tuple[str, ...]] = {
    "dense_mha": (
        "dense_mha:glm-5:h2:q37,1,64:k37,130,64:bf16:randn:contiguous:-:s0",
        "dense_mha:glm-5:h2:q64,37,1:k64,37,130:bf16:mixed:contiguous:-:s1",
        "dense_mha:glm-5:h2:q1,100,1:k1,100,130:bf16:needle:contiguous:-:s2",
    ),
    "masked_mha": (
        "masked_mha:glm-5:h2:q37,1,64:k37,130,64:top24:bf16:randn:contiguous:-:s0",
        "masked_mha:glm-5:h2:q64,37,1:k64,37,130:top24:bf16:mixed:contiguous:-:s1",
    ),
    "sparse_mqa": (
        "sparse_mqa:glm-5:h16:q8:k344:top64:bf16:randn:contiguous:-:s0",
        "sparse_mqa:glm-5:h16:q8:k344:top64:bf16:needle:contiguous:-:s1",
        "sparse_mqa:glm-5:h16:q8:k344:top64:bf16:wide:contiguous:-:s2",
    ),
    "indexer_scores": (
        "indexer_scores:glm-5:h8:q12,4:k100,33:bf16:randn:contiguous:-:s0",
        "indexer_scores:glm-5:h8:q4,12:k33,100:bf16:wide:contiguous:-:s1",
    ),
    "topk_select": (
        "topk_select:glm-5:h1:q6,2:k500,40:top64:bf16:randn:contiguous:-:s0",
        "topk_select:glm-5:h1:q2,6:k40,500:top64:bf16:ties:contiguous:-:s1",
    ),
    "merge_lse": (
        "merge_lse:glm-5:h4:q33:k33:bf16:randn:contiguous:-:s0",
        "merge_lse:glm-5:h4:q33:k33:bf16:wide:contiguous:-:s1",
    ),
}


def graph_safe() -> tuple[Implementation, ...]:
    """The implementations that declare it."""
    return tuple(one for one in IMPLEMENTATIONS if one.contract.graph_safe and one.operator in CASES)


def run_single(implementation: Implementation, maker: Maker, device: str) -> list[StepSeen]:
    """The capture as step 0, then one step a case; empty where the implementation cannot run here."""
    first, *others = map(Case.parse, CASES[implementation.operator])
    geometry = load(first.geometry)
    if implementation.supports(facts(first, geometry, device)) is not None:
        return []
    inputs = make(first, geometry, device).kwargs()
    try:
        graphed = _Graphed(implementation, inputs, maker)
    except CaptureFailed as error:
        found = Violation("illegal-call", 0, f"{error.what}: {error.call or error.told}", "the capture fails")
        return [StepSeen(0, first.id, "FULL", 0, 0, (), (found,))]
    seen = [StepSeen(0, first.id, "FULL", first.queries, first.queries, (), ())]
    for number, case in enumerate(others, 1):
        verdict = check(case, graphed.implementation(), device=device)
        found_here = list(graphed.frozen(make(case, geometry, device).kwargs(), number))
        if verdict.status not in ("PASS", "WEAK"):
            told = f"{implementation.name} captured on {first.id}"
            found_here.append(Violation("outputs", number, told, f"{verdict.status}: {verdict.reason}"))
        seen.append(StepSeen(number, case.id, "FULL", case.queries, case.queries, (), tuple(found_here)))
    return seen


class _Graphed:
    def __init__(self, original: Implementation, inputs: Mapping[str, Any], maker: Maker) -> None:
        self.original = original
        self.static = {name: value.clone() for name, value in inputs.items() if isinstance(value, Tensor)}
        self.options = {name: value for name, value in inputs.items() if not isinstance(value, Tensor)}
        self.function: Callable[[], Any] = original.prepare(**self.static, **self.options)
        self.graph = maker.capture(original.name, self.function, self.static)

    def implementation(self) -> Implementation:
        """The graph as an implementation of the same contract."""
        one = self.original
        return Implementation(f"{one.name}-graphed", one.contract, one.supports, lambda: self.call)

    def call(self, **inputs: Any) -> tuple[Any, ...]:
        """Copy the inputs in, replay, copy the outputs out."""
        for name, buffer in self.static.items():
            buffer.copy_(inputs[name])
        self.graph.replay()
        return tuple(output.clone() for output in self.graph.outputs)

    def frozen(self, inputs: Mapping[str, Any], number: int) -> list[Violation]:
        """What the graph froze and the same call would do otherwise on these inputs."""
        for name, buffer in self.static.items():
            buffer.copy_(inputs[name])
        shadow = EagerMaker().capture(self.original.name, self.function, self.static)
        shadow.replay()
        found = difference(self.graph, shadow)
        if found is None:
            return []
        return [Violation("frozen-host", number, f"graph {self.original.name} {found[0]}", found[1])]
