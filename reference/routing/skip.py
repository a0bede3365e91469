"""When the indexer may skip scoring: dense MHA reads every key, so nobody reads a selection."""

from __future__ import annotations

from typing import Literal

from .capability import dense_capability
from .decision import Decision, first_failure
from .deployment import Deployment
from .rules import Rules

#: How a step runs: without a graph, in pieces between eager breaks, or as one graph.
Mode = Literal["NONE", "PIECEWISE", "FULL"]
#: A layer with its own indexer, one that reuses the selection of the last such layer, or a draft (MTP) layer.
LayerKind = Literal["full", "shared", "mtp"]


def skip_binding(rules: Rules, deployment: Deployment, *, layer: str, kind: LayerKind) -> Decision[str]:
    """The layer name that the indexer is given to look up metadata by; empty: it never skips.

    MTP layers never skip because later draft iterations may reuse their indices.
    """
    allowed = first_failure(
        (
            (rules.indexer_skip, f"{rules.name} has no skip"),
            (kind != "mtp", "MTP layer"),
            (kind != "shared", "shared layer: it has no indexer"),
            (deployment.pcp == 1, "PCP"),
            (deployment.platform == "cuda", f"platform {deployment.platform}"),
            (dense_capability(rules, deployment).value, "dense prefill capability off"),
            (deployment.wrapper != "fused" or rules.fused_binds_skip, "the fused layer does not opt in"),
        ),
        f"bound to {layer}",
    )
    return Decision(layer if allowed.value else "", allowed.reasons)


def skip_indexer(
    binding: str, *, mode: Mode, dense: bool | None, num_decode_tokens: int, capturing: bool = False
) -> Decision[bool]:
    """Whether scoring is skipped in this step.

    ``dense``: ``use_dense_mha`` of the bound layer's prefill metadata, None where there is none.
    ``num_decode_tokens``: of the main attention's classification, not the indexer's. Neither masked MHA nor the
    prefill backend is asked; the force flag is already folded into ``dense``.
    """
    return first_failure(
        (
            (bool(binding), "no layer is bound"),
            (mode != "FULL", "full graph"),
            (dense is not None, "no prefill metadata"),
            (dense is not False, "dense MHA is not taken"),
            (num_decode_tokens == 0, f"{num_decode_tokens} decode tokens of the main attention"),
            (not capturing, "the stream is capturing"),
        ),
        "dense MHA reads every key",
    )
