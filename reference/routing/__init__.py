"""How a sparse-MLA layer decides what its tokens run as: pure functions, without torch.

Each returns a :class:`Decision`, the value and the reasons. ``Rules`` (a dated version, as data), ``Deployment`` (the
facts of an installation) and ``Batch`` (the facts of a step) are all that they see.

The order in a layer is index, ready, route, attend: the indexer decides alone whether it skips, because masked MHA
reads its selection and only dense MHA makes it dead.
"""

from .batch import Batch, Request
from .capability import dense_capability, prefill_backend, use_dense_mha
from .choice import Route, choose_route
from .chunks import ContextChunk, dcp_rows, longest_chunk, plan_chunks
from .decision import Decision
from .deployment import Deployment
from .masked import masked_gate, masked_policy
from .route import ORDER, StepRoute, classify, context_plan, decide_route, decide_skip
from .rules import Gate, Interval, MaskWorkspace, Rules, TableKey, TableRow, Threshold, interval_fault
from .skip import LayerKind, Mode, skip_binding, skip_indexer
from .split import Split, decode_threshold, indexer_threshold, split_batch
from .workspace import (
    context_buffer_rows,
    context_rows,
    global_mask_fits,
    mask_bytes,
    mask_shape,
    max_requests,
    workspace_guard,
)

__all__ = [
    "ORDER",
    "Batch",
    "ContextChunk",
    "Decision",
    "Deployment",
    "Gate",
    "Interval",
    "LayerKind",
    "MaskWorkspace",
    "Mode",
    "Request",
    "Route",
    "Rules",
    "Split",
    "StepRoute",
    "TableKey",
    "TableRow",
    "Threshold",
    "choose_route",
    "classify",
    "context_buffer_rows",
    "context_plan",
    "context_rows",
    "dcp_rows",
    "decide_route",
    "decide_skip",
    "decode_threshold",
    "dense_capability",
    "global_mask_fits",
    "indexer_threshold",
    "interval_fault",
    "longest_chunk",
    "mask_bytes",
    "mask_shape",
    "masked_gate",
    "masked_policy",
    "max_requests",
    "plan_chunks",
    "prefill_backend",
    "skip_binding",
    "skip_indexer",
    "split_batch",
    "use_dense_mha",
    "workspace_guard",
]
