"""Whether prefills may run as multi-head attention at all."""

from __future__ import annotations

from .decision import Decision, first_failure
from .deployment import Deployment
from .rules import Rules
from .split import Split


def dense_capability(rules: Rules, deployment: Deployment) -> Decision[bool]:
    """Implementation AND layer, in versions whose layers carry a flag (vllm#52512); else the implementation alone."""
    layer = deployment.layer_supports_dense
    if layer is None:
        layer = rules.layer_supports_dense
    flags = [(deployment.implementation_supports_dense, "the attention implementation has no dense prefill")]
    if rules.capability_reads_layer:
        flags.append((layer, "the layer declares supports_dense_mha_prefill = False"))
    otherwise = "implementation and layer can" if rules.capability_reads_layer else "the implementation can"
    return first_failure(tuple(flags), otherwise)


def prefill_backend(rules: Rules, deployment: Deployment) -> Decision[bool]:
    """Whether the layer gets a dense prefill backend; without one it has the top-k MQA path only.

    Raises ValueError if the user named a backend that is not usable: a silent fallback would not be what was asked.
    """
    if not rules.dense_prefill:
        return Decision(False, (f"{rules.name} has no dense prefill for sparse MLA",))
    capability = dense_capability(rules, deployment)
    if not capability.value:
        return Decision(False, capability.reasons)
    if deployment.prefill_backend_usable:
        return Decision(True, (*capability.reasons, "a dense prefill backend is usable"))
    if deployment.prefill_backend_named is not None:
        raise ValueError(
            f"prefill backend {deployment.prefill_backend_named!r}: expected a backend that supports this model, "
            "got one that does not; name another or none"
        )
    return Decision(False, ("no dense prefill backend supports this model: top-k MQA only",))


def use_dense_mha(rules: Rules, deployment: Deployment, split: Split, *, has_backend: bool) -> Decision[bool]:
    """The batch-level flag of the prefill metadata.

    Dense attention over at most ``index_topk`` keys is sparse attention exactly: every key is selected. The limit is
    inclusive and counts context and new tokens of the longest prefill.
    """
    longest, topk = split.prefill_max_seq_len, deployment.index_topk
    both = rules.dense_excludes_pcp_with_dcp and deployment.pcp > 1 and deployment.dcp > 1
    return first_failure(
        (
            (bool(split.prefills), "no prefill in the batch"),
            (has_backend, "no dense prefill backend, so no prefill metadata"),
            (not deployment.hisparse, "HiSparse"),
            (not deployment.force_mqa, "sparse_mla_force_mqa"),
            (longest <= topk, f"longest prefill {longest} > top-k {topk}"),
            (not both, "PCP and DCP together"),
        ),
        f"longest prefill {longest} <= top-k {topk}",
    )
