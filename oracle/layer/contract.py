"""The layer contract, checked at run time for any layer that returns a trace.

route executed = route decided          declared capability = executed capability
selections fresh where read             skip only where the rules allow it and nobody reads
caches written before the decision      -1 only where the keys run out
nothing of another request              the query fits the branch
the guard asked before masked MHA       the masks fit their workspace
no metadata field missing, none of another batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from ...reference.layer import LayerInputs, MissingMetadata, PrefillMetadata, StepBatch, StepMetadata, Trace
from ...reference.routing import Deployment, Mode, Rules, decide_route, decide_skip
from ..errors import BadInput
from .evidence import Evidence, Rule, Violation
from .reads import gathered_whole, rows_own, selection_valid, topk_computed
from .rules import (
    caches_written,
    capability,
    guard_asked,
    mask_fits,
    order,
    query_fits,
    route_executed,
    skip_allowed,
)

RULES: tuple[Rule, ...] = (
    route_executed,
    capability,
    order,
    skip_allowed,
    caches_written,
    query_fits,
    guard_asked,
    mask_fits,
    topk_computed,
    selection_valid,
    rows_own,
    gathered_whole,
)


class LayerUnderTest(Protocol):
    """Any layer: ours, a variant, or an engine's behind an adapter that reports a trace."""

    def forward(self, inputs: LayerInputs, metadata: StepMetadata | None) -> tuple[Tensor, Trace]: ...


def check_metadata(
    metadata: StepMetadata, step: StepBatch, rules: Rules, deployment: Deployment
) -> tuple[Violation, ...]:
    """Fields that are missing, and fields that describe another batch than the scheduler's (an arranged step)."""
    route = decide_route(rules, deployment, step.batch)
    split = route.split.value
    truth = {
        "ids": step.ids,
        "num_decodes": len(split.decodes),
        "num_decode_tokens": split.num_decode_tokens,
        "num_prefills": len(split.prefills),
        "query_lens": tuple(request.query_len for request in step.batch.requests),
        "context_lens": tuple(request.context_len for request in step.batch.requests),
        "prefill_max_seq_len": split.prefill_max_seq_len,
    }
    found: list[Violation] = []

    def compare(record: StepMetadata | PrefillMetadata, prefix: str, values: Mapping[str, object]) -> None:
        for field, expected in values.items():
            came = getattr(record, field)
            if came is None:
                parties = (f"the step needs {prefix}{field}", "the metadata holds none")
                found.append(Violation("metadata-missing", step.step, "metadata", (), parties))
            elif expected is not None and came != expected:
                parties = (f"the scheduler says {prefix}{field} = {expected}", f"the metadata says {came}")
                found.append(Violation("metadata-foreign", step.step, "metadata", (), parties))

    compare(metadata, "", truth)
    compare(metadata, "", dict.fromkeys(("positions", "request_rows", "slots", "block_table", "owners", "seq_lens")))
    if split.prefills and route.backend.value:
        if metadata.prefill is None:
            parties = ("the layers have a dense prefill backend", "the metadata has no prefill part")
            found.append(Violation("metadata-missing", step.step, "metadata", (), parties))
        else:
            longest = {"use_dense_mha": route.dense.value, "max_query_len": split.prefill_max_query_len, "chunks": None}
            compare(metadata.prefill, "prefill.", longest)
    return tuple(found)


def check_traces(
    traces: Sequence[Trace],
    step: StepBatch,
    rules: Rules,
    deployment: Deployment,
    *,
    mode: Mode = "NONE",
    capturing: bool = False,
    only: Sequence[Rule] = RULES,
) -> tuple[Violation, ...]:
    """What the layers of one step, in model order, violate. ``step`` is the scheduler's, arranged.

    ``only``: rules whose evidence the traces hold; a layer that is watched from outside shows less.
    """
    route = decide_route(rules, deployment, step.batch)
    found: list[Violation] = []
    source: Trace | None = None
    for trace in traces:
        if trace.dummy:
            parties = (f"the scheduler runs {step.batch.num_tokens} tokens", "the layer ran without metadata")
            found.append(Violation("dummy", step.step, trace.layer, (), parties))
            continue
        source = source if trace.kind == "shared" else trace
        skip = decide_skip(rules, deployment, route, layer=trace.layer, kind=trace.kind, mode=mode, capturing=capturing)
        evidence = Evidence(trace, step, rules, deployment, route, skip, source)
        for rule in only:
            found += rule(evidence)
    return tuple(found)


class Monitor:
    """Runs layers step by step and checks each step when it ends.

    ``begin`` a step, ``run`` its layers in order, ``end`` it for its violations. A layer that stops because a metadata
    field is missing counts as a violation that names the field; the error goes on to the caller.
    """

    def __init__(self, rules: Rules, deployment: Deployment) -> None:
        self.rules, self.deployment = rules, deployment
        self.traces: list[Trace] = []
        self._found: list[Violation] = []
        self._step: StepBatch | None = None
        self._metadata: StepMetadata | None = None

    def begin(self, step: StepBatch, metadata: StepMetadata) -> None:
        """``step``: what the scheduler runs, arranged. ``metadata``: what the layers are told."""
        self.traces, self._step, self._metadata = [], step, metadata
        self._found = list(check_metadata(metadata, step, self.rules, self.deployment))

    def run(self, layer: LayerUnderTest, inputs: LayerInputs) -> Tensor:
        """The layer's output."""
        step, metadata = self._open()
        try:
            out, trace = layer.forward(inputs, metadata)
        except MissingMetadata as error:
            parties = (f"a layer needs {error.field}", "the metadata holds none")
            self._found.append(Violation("metadata-missing", step.step, "metadata", (), parties))
            raise
        self.traces.append(trace)
        return out

    def end(self) -> tuple[Violation, ...]:
        """The violations of the step; its traces stay in ``traces`` until the next begins."""
        step, metadata = self._open()
        self._step = self._metadata = None
        checked = check_traces(
            self.traces, step, self.rules, self.deployment, mode=metadata.mode, capturing=metadata.capturing
        )
        return (*self._found, *checked)

    def _open(self) -> tuple[StepBatch, StepMetadata]:
        if self._step is None or self._metadata is None:
            raise BadInput("layer monitor: expected begin() before run() and end(), got no open step")
        return self._step, self._metadata
