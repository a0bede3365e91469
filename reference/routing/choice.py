"""The branch of the prefill tokens, once every guard has answered."""

from __future__ import annotations

from typing import Literal

from .decision import Decision
from .deployment import Deployment

#: What prefill tokens run as; decode tokens always run as sparse MQA. ``none``: the batch has no prefill.
Route = Literal["dense_mha", "masked_mha", "sparse_mqa", "none"]


def choose_route(
    deployment: Deployment,
    *,
    num_prefills: int,
    longest: int,
    backend: Decision[bool],
    dense: Decision[bool],
    gate: Decision[bool],
    policy: Decision[bool],
    guard: Decision[bool],
) -> Decision[Route]:
    """The branch of the prefill tokens; ``longest`` is their longest sequence, context and new tokens together."""
    if not num_prefills:
        return Decision("none", ("every request counts as decode",))
    if not backend.value:
        return Decision("sparse_mqa", backend.reasons)
    if deployment.force_mqa:
        return Decision("sparse_mqa", ("sparse_mla_force_mqa",))
    if deployment.hisparse:
        return Decision("sparse_mqa", ("HiSparse",))
    if dense.value:
        return Decision("dense_mha", dense.reasons)
    if deployment.dcp > 1:
        return Decision("sparse_mqa", (*dense.reasons, f"DCP {deployment.dcp}: no masked MHA"))
    for decision in (gate, policy, guard):
        if not decision.value:
            return Decision("sparse_mqa", (*dense.reasons, *decision.reasons))
    if longest <= deployment.index_topk:
        # The branch tests the length again and not the flag, so a short batch is never masked.
        return Decision("dense_mha", (*dense.reasons, *policy.reasons, "short enough for every key to be selected"))
    return Decision("masked_mha", (*dense.reasons, *gate.reasons, *policy.reasons, *guard.reasons))
