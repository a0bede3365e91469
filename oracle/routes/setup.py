"""From names to what the rules decide on: the rules themselves, the backend and the deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...reference.routing import Deployment, Rules
from ..config import load
from ..errors import BadInput, unknown
from ..geometry import Geometry
from ..policies import load_rules, read_rules, rule_versions

#: Major version of flash-attention that engines load on a device family (vLLM 0.33: FA3 on SM90, FA4 on SM100).
_FLASH_ATTENTION: Mapping[int, int] = {90: 3, 100: 4}
#: Local heads up to which an unquantised cache on SM100 prefers the backends made for few heads.
_FEW_HEADS = 16


def rules_named(name: str) -> Rules:
    """Shipped rules by version, or those of a file. Raises BadInput with the nearest versions, or file and row."""
    return read_rules(Path(name)) if is_file_name(name) else load_rules(name)


def is_file_name(name: str) -> bool:
    return name.endswith(".toml") or "/" in name or "\\" in name


def backend_priority(family: int, *, quantized: bool, local_heads: int) -> tuple[str, ...]:
    """Sparse-MLA backends in the order an engine tries them (vLLM 0.33 ``vllm/platforms/cuda.py``).

    The FA4 backend takes unquantised caches only and the FA3 one of SM90 as well, so both are left out for others.
    """
    if family == 90:
        return ("FLASHMLA_SPARSE",) if quantized else ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE")
    if quantized:
        return ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
    if local_heads <= _FEW_HEADS:
        return ("FLASH_ATTN_MLA_SPARSE_FA4", "FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
    return ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE")


def known_backends(rules: Rules, family: int) -> tuple[str, ...]:
    """Backends that a version has decode thresholds for on a device family, aliases included."""
    own = {backend for backend, known in rules.thresholds if known == family}
    return tuple(sorted(own | {alias for alias, target in rules.aliases.items() if target in own}))


def choose_backend(
    versions: Sequence[Rules], family: int, name: str | None, *, quantized: bool, local_heads: int
) -> str:
    """The backend of a name, or the first of the priority, that every one of these versions knows. Raises BadInput."""
    known = sorted(set.intersection(*(set(known_backends(rules, family)) for rules in versions)))
    told = " and ".join(rules.name for rules in versions)
    if not known:
        families = sorted(set.intersection(*({family for _, family in rules.thresholds} for rules in versions)))
        raise BadInput(f"--sm {family}: expected a device family of rules {told}: {', '.join(map(str, families))}")
    if name is None:
        order = backend_priority(family, quantized=quantized, local_heads=local_heads)
        name = next((backend for backend in order if backend in known), known[0])
    if name not in known:
        raise unknown(f"backend of {told} on SM{family}", name, known)
    return name


def check_provider(name: str, versions: Sequence[Rules]) -> None:
    """Raises BadInput with the nearest names unless some version has a gate for this provider of masked MHA."""
    shipped = (load_rules(version) for version in rule_versions())
    known = {provider for rules in (*versions, *shipped) for provider in rules.gates}
    if name not in known:
        raise unknown("provider of masked MHA", name, known)


def make_deployment(
    versions: Sequence[Rules],
    geometry: str,
    *,
    backend: str | None,
    tensor_parallel: int,
    family: int,
    cache: str,
    **switches: Any,
) -> Deployment:
    """The deployment of a model under rules, or under both of two versions. Raises BadInput for what cannot be."""
    model = load(geometry)
    require_topk(model)
    if model.heads % tensor_parallel:
        raise BadInput(f"--tp {tensor_parallel}: expected a divisor of the {model.heads} heads of {model.name}")
    local_heads = model.heads // tensor_parallel
    if switches.get("flash_attention") is None:
        switches["flash_attention"] = _FLASH_ATTENTION.get(family)
    check_provider(switches.get("provider", "flash-attention"), versions)
    fields: dict[str, Any] = {
        "backend": choose_backend(versions, family, backend, quantized=cache != "model", local_heads=local_heads),
        "device_family": family,
        "local_heads": local_heads,
        "tensor_parallel": tensor_parallel,
        "kv_lora_rank": model.kv_lora_rank,
        "qk_nope_head_dim": model.qk_nope_head_dim,
        "qk_rope_head_dim": model.qk_rope_head_dim,
        "v_head_dim": model.v_head_dim,
        "index_topk": model.index_topk,
        "cache": cache,
    }
    try:
        return Deployment(**fields, **switches)
    except ValueError as error:
        raise BadInput(str(error)) from None


def require_topk(model: Geometry) -> None:
    if not model.index_topk:
        raise BadInput(f"geometry {model.name}: expected an indexer with index_topk, got a config without one")
