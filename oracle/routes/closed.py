"""Routes that no batch can take in a deployment, whatever the lengths, and the gate that keeps each out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...reference.routing import Deployment, Rules, masked_gate, masked_policy, prefill_backend


@dataclass(frozen=True, slots=True)
class Closed:
    """A route that cannot run, the first link of the chain that says so, and its reasons."""

    route: str
    gate: str
    reasons: tuple[str, ...]


def closed_routes(rules: Rules, deployment: Deployment) -> tuple[Closed, ...]:
    """Dense and masked MHA where they cannot run, in this order; sparse MQA always can."""
    both = next(_both(rules, deployment), None)
    if both is not None:
        return Closed("dense MHA", *both), Closed("masked MHA", *both)
    dense, masked = next(_dense(rules, deployment), None), next(_masked(rules, deployment), None)
    found = [Closed("dense MHA", *dense)] if dense else []
    return (*found, Closed("masked MHA", *masked)) if masked else tuple(found)


def _both(rules: Rules, deployment: Deployment) -> Iterator[tuple[str, tuple[str, ...]]]:
    if deployment.wrapper == "fused" and not rules.fused_runs_mha:
        yield "wrapper", ("the fused layer has no MHA branch",)
    backend = prefill_backend(rules, deployment)
    if not backend.value:
        yield "prefill backend", backend.reasons
    if deployment.force_mqa:
        yield "force", ("sparse_mla_force_mqa",)
    if deployment.hisparse:
        yield "force", ("HiSparse",)


def _dense(rules: Rules, deployment: Deployment) -> Iterator[tuple[str, tuple[str, ...]]]:
    if rules.dense_excludes_pcp_with_dcp and deployment.pcp > 1 and deployment.dcp > 1:
        yield "parallelism", ("PCP and DCP together",)


def _masked(rules: Rules, deployment: Deployment) -> Iterator[tuple[str, tuple[str, ...]]]:
    if deployment.dcp > 1:
        yield "parallelism", (f"DCP {deployment.dcp}",)
    gate = masked_gate(rules, deployment)
    if not gate.value:
        yield "gate", gate.reasons
    backend = rules.table_backend(deployment.backend)
    row = rules.tables.get((deployment.qk_head_dim, deployment.v_head_dim, backend, deployment.tensor_parallel))
    if row is None:
        yield "policy", masked_policy(rules, deployment, query_len=1, seq_len=1, has_context=False).reasons
    elif not row.pure and not row.context:
        yield "policy", ("the table row has no interval",)
