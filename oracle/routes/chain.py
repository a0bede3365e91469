"""What stands around a policy table: backend priority, capability, static gate, workspaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...reference.routing import Deployment, Rules, TableKey, context_rows
from .findings import Finding
from .intervals import group_name
from .setup import backend_priority, known_backends

#: The cap of the context workspace, in rows, and block sizes and request counts that engines are run with.
_CAP, _BLOCK, _MOST_SEQS = 65536, 64, 1 << 14
_FAMILY = 100


def any_deployment(rules: Rules, **changes: Any) -> Deployment:
    """A deployment with an engine's default sizes; which model it is does not matter to a context workspace."""
    fields: dict[str, Any] = {
        "backend": next(iter(rules.thresholds), ("none", _FAMILY))[0],
        "device_family": _FAMILY,
        "local_heads": 16,
        "tensor_parallel": 1,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "index_topk": 2048,
        "block_size": _BLOCK,
    }
    return Deployment(**(fields | changes))


def chain_findings(rules: Rules, heads: Mapping[TableKey, int | None]) -> Iterator[Finding]:
    """Rows that the links before the table keep out. ``heads``: of the model that a row is for, where one is known."""
    if rules.tables and rules.capability_reads_layer and not rules.layer_supports_dense:
        yield Finding("capability", "every row", "note", "the fused layer declares no dense prefill: no row is asked")
    elif rules.tables and not rules.fused_runs_mha:
        yield Finding(
            "capability", "every row", "note", "the fused layer has no MHA branch: only the generic layer asks the rows"
        )
    for key, total in heads.items():
        _, _, backend, parallel = key
        row = group_name(key)
        if not any(_admits(rules, provider, key, total) for provider in rules.gates):
            yield Finding("gate", row, "warning", "no provider's gate admits these head dims: the row is never asked")
        if total is not None and total % parallel == 0:
            first = _first_backend(rules, total // parallel)
            if first is not None and rules.table_backend(first) != backend:
                message = f"with {total // parallel} local heads {first} comes first: asked only if that is left out"
                yield Finding("priority", row, "note", message)


def _admits(rules: Rules, provider: str, key: TableKey, total: int | None) -> bool:
    gate = rules.gates[provider]
    listed = not gate.geometries or any(
        (nope + rope, value) == key[:2] and total in (None, heads) for heads, _, nope, rope, value in gate.geometries
    )
    return listed and (gate.max_head_dim is None or max(key[:2]) <= gate.max_head_dim)


def _first_backend(rules: Rules, local_heads: int) -> str | None:
    known = known_backends(rules, _FAMILY)
    order = backend_priority(_FAMILY, quantized=False, local_heads=local_heads)
    return next((backend for backend in order if backend in known), None)


def context_findings(rules: Rules) -> Iterator[Finding]:
    """A floor of the context workspace that lifts it over its own cap."""
    seqs = 1
    while seqs <= _MOST_SEQS:
        rows = context_rows(rules, any_deployment(rules, max_num_seqs=seqs)).value
        if rows > _CAP:
            message = (
                f"the last floor {rules.context_rows_floor} overrides the cap of {_CAP} rows: "
                f"{rows} at max_num_seqs {seqs}, block size {_BLOCK}"
            )
            yield Finding("cap-overridden", "context workspace", "warning", message, None, (_CAP, rows))
            return
        seqs *= 2


def threshold_of(rules: Rules, key: TableKey, heads: int | None) -> int | None:
    """The decode threshold that the model of a row has on SM100, where both are known."""
    entry = rules.thresholds.get((key[2], _FAMILY))
    if entry is None or heads is None:
        return None
    return entry.by_heads.get(heads // key[3], entry.otherwise)
