"""Planted graph faults: an engine or a layer that is wrong only because something was frozen, kept or padded.

Each names the check that must see it and the shortest sequence that shows it. None changes an operator but two, which
are right for what an eager step hands them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...reference.layer import LayerInputs, SparseMLALayer, StepMetadata, need
from ..errors import unknown
from . import faulty_engines as engines
from . import faulty_layers as layers
from .engine import Engine
from .violation import CHECKS


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFault:
    """One fault."""

    name: str
    what: str
    source: str
    """A public report, or the mechanism that the fault stands for."""
    check: str
    """The check that must see it."""
    sequence: str
    engine: type[Engine] = Engine
    subject: str = "fused"
    version: str = "attnoracle"
    """Rules that its layers follow."""
    truth: str = "attnoracle"
    """Rules of the right layers."""

    def __post_init__(self) -> None:
        if self.check not in CHECKS:
            raise unknown("check", self.check, CHECKS)


def _with(kind: type[SparseMLALayer]) -> type[Engine]:
    return type(f"EngineOf{kind.__name__}", (Engine,), {"layer": kind})


def _call(name: str, what: str, call: Callable[[StepMetadata, LayerInputs], object], source: str = "") -> GraphFault:
    return GraphFault(
        name=name,
        what=what,
        source=source or "CUDA programming guide: no synchronising call on a capturing stream",
        check="illegal-call",
        sequence="PIECEWISE 4 at 6: a3",
        engine=_with(layers.calling(call)),
    )


_FACTS = "vLLM 0.33.0, CUDA graphs of the fused sparse-MLA wrapper"

GRAPH_FAULTS: tuple[GraphFault, ...] = (
    GraphFault(
        name="route-frozen",
        what="the route of the capture is taken at every replay",
        source="vllm-project/vllm#53785: the route is decided in the eager part",
        check="route-trace",
        sequence="PIECEWISE 8 at 20: a6",
        engine=engines.FreezesTheRoute,
    ),
    GraphFault(
        name="pr-52512",
        what="captured with a long batch; a short prefill skips scoring and runs sparse MQA over -1",
        source="vllm-project/vllm#52512",
        check="route-trace",
        sequence="PIECEWISE 8,24 at 20: a20; b6; b1",
        version="vllm-51298",
        truth="vllm-53785",
    ),
    GraphFault(
        name="topk-buffer-reallocated",
        what="the top-k buffer is allocated anew in each step",
        source="NVIDIA/TensorRT-LLM#16290",
        check="addresses",
        sequence="PIECEWISE 8 at 20: a6",
        engine=engines.ReallocatesTheBuffer,
    ),
    GraphFault(
        name="metadata-rebuilt",
        what="metadata tensors are built anew instead of copied into",
        source="sgl-project/sglang#26019",
        check="addresses",
        sequence="FULL 4 at 9: a5; a1",
        engine=engines.RebuildsMetadata,
    ),
    GraphFault(
        name="page-table-not-refilled",
        what="the page table is never filled",
        source="sgl-project/sglang#26019",
        check="metadata-current",
        sequence="FULL 4 at 9: a5; a1",
        engine=engines.KeepsThePageTable,
    ),
    GraphFault(
        name="inputs-not-copied",
        what="the inputs of the first replay stay",
        source="static inputs must be copied before each replay (PyTorch, CUDA graphs)",
        check="metadata-current",
        sequence="PIECEWISE 8 at 20: a6; b6",
        engine=engines.KeepsTheInputs,
    ),
    GraphFault(
        name="padding-into-a-row",
        what="padded tokens are written to a real cache row",
        source="slot mapping of padding not neutral",
        check="padding-out",
        sequence="PIECEWISE 8 at 20: a6",
        engine=engines.PadsIntoARow,
    ),
    GraphFault(
        name="stale-padded-slots",
        what="padded tokens keep the slots of an earlier, larger step",
        source="vllm-project/vllm#41841",
        check="padding-out",
        sequence="PIECEWISE 8 at 20: a8; b3",
        engine=engines.KeepsPaddedSlots,
    ),
    GraphFault(
        name="fake-prefills",
        what="a padded row keeps an old state and turns a decode into a prefill",
        source="vllm-project/vllm#41841",
        check="route-trace",
        sequence="FULL_AND_PIECEWISE 8 at 9: a5; a1",
        engine=engines.FakesPrefills,
    ),
    GraphFault(
        name="plan-not-rerun",
        what="the schedule of the context chunks is that of an earlier step",
        source="flashinfer: plan() must run again before each replay",
        check="layer-contract",
        sequence="PIECEWISE 16 at 20: a12; a9; a9",
        engine=engines.PlansOnce,
    ),
    GraphFault(
        name="nan-through-a-reduction",
        what="padded rows are left as they were, and a largest value is taken over all rows",
        source="vllm-project/vllm#37442",
        check="padding-in",
        sequence="PIECEWISE 8 at 20: a6",
        engine=engines.LeavesPadding,
    ),
    GraphFault(
        name="null-block-poisoned",
        what="dummy batches are written to slot 0",
        source="vllm-project/vllm#57156",
        check="live-blocks",
        sequence="FULL 4 at 9: a5; a1",
        engine=engines.WritesTheNullBlock,
    ),
    GraphFault(
        name="relies-on-weight-zero",
        what="an invalid index reads slot 0 and counts on its weight of 0",
        source="vllm-project/vllm#57156",
        check="null-block",
        sequence="FULL 4 at 9: a3; a1",
        engine=engines.ReliesOnWeightZero,
    ),
    GraphFault(
        name="longest-baked-in",
        what="the keys are gathered up to the longest sequence of the captured batch",
        source="flashinfer-ai/flashinfer#4647",
        check="frozen-host",
        sequence="FULL 4 at 3: a12; a1",
        engine=engines.BakesTheLongest,
    ),
    GraphFault(
        name="stale-split-count",
        what="the number of key splits is that of the captured batch",
        source="flashinfer-ai/flashinfer#4647; vllm-project/vllm#47188",
        check="frozen-host",
        sequence="FULL 4 at 3: a12; a1",
        engine=engines.BakesTheSplits,
    ),
    GraphFault(
        name="positions-baked-in",
        what="positions count on from a number of the captured batch",
        source="a host scalar frozen at capture",
        check="frozen-host",
        sequence="PIECEWISE 8 at 6: a6; a5",
        engine=engines.BakesThePositions,
    ),
    GraphFault(
        name="captured-lengths",
        what="the graph reads the sequence lengths of the captured batch",
        source="sgl-project/sglang#26019",
        check="captured-metadata",
        sequence="FULL 4 at 3: a12; a1",
        engine=engines.ReadsTheCapturesLengths,
    ),
    GraphFault(
        name="shared-workspace",
        what="graph and eager prefill share a workspace",
        source="workspaces shared between paths; vllm-project/vllm#50781",
        check="after-eager",
        sequence="PIECEWISE 8 at 20: a6",
        engine=engines.SharesAWorkspace,
    ),
    GraphFault(
        name="prepare-and-dispatch-disagree",
        what="the query is prepared by the lengths, the branch chosen by the force flag too",
        source=_FACTS,
        check="prepare-dispatch",
        sequence="NONE: force a6",
        engine=_with(layers.PreparesByLength),
    ),
    GraphFault(
        name="query-not-captured",
        what="a capture with a dense batch prepares no MQA query",
        source=_FACTS,
        check="superset",
        sequence="PIECEWISE 8 at 6: force a6",
        engine=_with(layers.PreparesAsEager),
    ),
    GraphFault(
        name="latents-not-materialised",
        what="a capture with decodes keeps no kv_c for MHA",
        source=_FACTS,
        check="superset",
        sequence="PIECEWISE 8 at 2: a6",
        engine=engines.MaterialisesByRoute,
    ),
    GraphFault(
        name="rotated-twice",
        what="the MHA branch rotates whenever an MQA query was prepared, packed or not",
        source=_FACTS,
        check="rope-once",
        sequence="PIECEWISE 8 at 20: a6",
        engine=_with(layers.RotatesAgain),
    ),
    GraphFault(
        name="eager-part-reads-a-copy",
        what="the eager part is handed a copy of kv_c that an earlier step made",
        source=_FACTS,
        check="static-inputs",
        sequence="PIECEWISE 8 at 20: a6; b6",
        engine=engines.HandsOnACopy,
    ),
    GraphFault(
        name="scoring-left-out",
        what="a full graph was captured without scoring",
        source=_FACTS,
        check="full-scores",
        sequence="FULL 4 at 9: a12; a1",
        engine=_with(layers.SkipsInFull),
    ),
    GraphFault(
        name="full-graph-for-a-prefill",
        what="a short prefill is sent to the full graph of decodes",
        source="vLLM: sparse MLA declares UNIFORM_BATCH, full graphs for uniform decodes only",
        check="full-scores",
        sequence="FULL 8 at 9: a6",
        engine=engines.FullForAnything,
    ),
    GraphFault(
        name="output-is-the-pool",
        what="outputs are handed out in the graph's own memory",
        source="PyTorch: a replay writes over the outputs of the one before",
        check="outputs-stable",
        sequence="PIECEWISE 8 at 20: a6; b5",
        engine=engines.HandsOutThePool,
    ),
    GraphFault(
        name="accumulates",
        what="a replay adds to what the one before left",
        source="buffers zeroed outside of the graph",
        check="replay-twice",
        sequence="PIECEWISE 8 at 20: a6",
        engine=engines.Accumulates,
    ),
    GraphFault(
        name="calibrated-once",
        what="outputs are clipped at what the first step reached",
        source="a scale that only the first step sets",
        check="outputs",
        sequence="PIECEWISE 8 at 20: a6; b6",
        engine=engines.ClampsToTheFirst,
    ),
    GraphFault(
        name="size-by-prefills",
        what="the captured size is chosen by the prefills alone; decodes beside them do not fit",
        source="vLLM: batches are padded by all scheduled tokens",
        check="raised",
        sequence="PIECEWISE 8,16 at 20: a9; b8 a1",
        engine=engines.SizesByPrefills,
    ),
    GraphFault(
        name="scratch-too-small",
        what="a scratch buffer is as large as the first step needed",
        source="NVIDIA/TensorRT-LLM#13677",
        check="raised",
        sequence="PIECEWISE 8 at 20: a3; b6",
        engine=engines.SizesByTheFirst,
    ),
    _call("calls-tolist", "positions are listed on the host", lambda told, _: need(told, "positions").tolist()),
    _call("calls-item", "the largest position goes to the host", lambda told, _: need(told, "positions").max().item()),
    _call("calls-cpu", "slots are copied to the host", lambda told, _: need(told, "slots").cpu()),
    _call(
        "calls-equal",
        "the host compares two tensors",
        lambda told, _: torch.equal(need(told, "slots"), need(told, "positions")),
    ),
    _call(
        "calls-bool", "the host asks whether all slots are valid", lambda told, _: bool((need(told, "slots") < 0).all())
    ),
    _call("calls-int", "the host slices by a device value", lambda told, _: int(need(told, "positions")[0])),
    _call("calls-nonzero", "padding is found by nonzero", lambda told, _: (need(told, "slots") >= 0).nonzero()),
    _call("calls-mask", "padding is dropped by a mask", lambda told, given: given.kv_c[need(told, "slots") >= 0]),
    _call(
        "calls-tensor",
        "request ids are copied from a list",
        lambda told, _: torch.tensor([1, 2, 3], device=need(told, "slots").device),
    ),
)


def graph_fault(name: str) -> GraphFault:
    """The fault of that name. Raises BadInput with the nearest names."""
    known = {fault.name: fault for fault in GRAPH_FAULTS}
    if name not in known:
        raise unknown("graph fault", name, known)
    return known[name]
