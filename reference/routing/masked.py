"""When masked MHA is possible, and when it is worth it: the static gate and the policy table."""

from __future__ import annotations

from .decision import Decision, first_failure
from .deployment import Deployment
from .rules import Gate, Rules


def masked_gate(rules: Rules, deployment: Deployment) -> Decision[bool]:
    """What the provider of masked MHA can do at all on this device, for these dimensions and this cache."""
    gate = rules.gates.get(deployment.provider)
    if gate is None:
        return Decision(False, (f"{rules.name} knows no masked MHA by {deployment.provider!r}",))
    dims = (
        deployment.total_heads,
        deployment.kv_lora_rank,
        deployment.qk_nope_head_dim,
        deployment.qk_rope_head_dim,
        deployment.v_head_dim,
    )
    return first_failure(_gate_conditions(gate, deployment, dims), f"{deployment.provider} takes {dims}")


def _gate_conditions(
    gate: Gate, deployment: Deployment, dims: tuple[int, int, int, int, int]
) -> tuple[tuple[bool, str], ...]:
    family, version = deployment.device_family, deployment.flash_attention
    families, widest = gate.device_families, max(deployment.qk_head_dim, deployment.v_head_dim)
    return (
        (not families or family in families, f"SM{family} is not among {families}"),
        (not gate.geometries or dims in gate.geometries, f"(heads, c, nope, rope, v) {dims} is not listed"),
        (gate.max_head_dim is None or widest <= gate.max_head_dim, f"head dim {widest} > {gate.max_head_dim}"),
        (
            gate.flash_attention is None or version == gate.flash_attention,
            f"flash-attention {version}, needs {gate.flash_attention}",
        ),
        (gate.quantized_cache or deployment.cache == "model", f"quantised cache {deployment.cache}"),
    )


def masked_policy(
    rules: Rules, deployment: Deployment, *, query_len: int, seq_len: int, has_context: bool
) -> Decision[bool]:
    """Whether the table says that masked MHA is faster than sparse MQA.

    ``query_len`` and ``seq_len`` are maxima over the prefills and may come from different requests. The first interval
    with ``seq_len`` at most its length decides. Tensor parallelism is the configured size, not derived from heads.
    """
    backend = rules.table_backend(deployment.backend)
    key = (deployment.qk_head_dim, deployment.v_head_dim, backend, deployment.tensor_parallel)
    row = rules.tables.get(key)
    if row is None:
        return Decision(False, (f"no table row for head dims {key[:2]}, {backend}, TP{key[3]}",))
    which, intervals = "pure", row.pure
    if has_context and row.context is not None:
        which, intervals = "context", row.context
    for longest, shortest_query in intervals:
        if seq_len <= longest:
            holds = query_len >= shortest_query
            sign = ">=" if holds else "<"
            return Decision(holds, (f"{which} interval up to {longest}: query {query_len} {sign} {shortest_query}",))
    return Decision(False, (f"sequence {seq_len} is beyond every {which} interval",))
