"""The rules of one dated version, as data.

Nothing here decides; the functions of this package take a :class:`Rules` and the facts of a step. The values come from
files (the caller loads them), so that a new dimension, backend or version is an entry and not code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: (longest sequence, shortest query): sequences up to the first take masked MHA from so many new tokens on.
Interval = tuple[int, int]
#: (query/key head dim, value head dim, backend, tensor-parallel size)
TableKey = tuple[int, int, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Longest query that counts as decode, by local heads."""

    by_heads: Mapping[int, int]
    otherwise: int
    require_uniform: bool = False
    """Whether the decodes of one batch must have equal query lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Intervals of one table key; ``context`` None: as ``pure``; empty: never with cached context."""

    pure: tuple[Interval, ...]
    context: tuple[Interval, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a provider of masked MHA can do at all. Empty or None: no restriction."""

    device_families: tuple[int, ...] = ()
    flash_attention: int | None = None
    quantized_cache: bool = False
    geometries: tuple[tuple[int, int, int, int, int], ...] = ()
    """(total heads, kv_lora_rank, qk_nope, qk_rope, v)."""
    max_head_dim: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskWorkspace:
    """The buffer that bit-packed top-k masks are built in."""

    max_bytes: int
    word_multiple: int
    """Words of a mask row are rounded up to a multiple of this."""
    guarded: bool
    """Whether a mask that does not fit turns masked MHA off; without, it overruns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Everything that a version of the engine lays down about routing."""

    name: str
    date: str
    source: str
    thresholds: Mapping[tuple[str, int], Threshold]
    """By (backend, device family); the family is 90, 100, …"""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Backends that use the thresholds and table rows of another."""
    tables: Mapping[TableKey, TableRow] = field(default_factory=dict)
    gates: Mapping[str, Gate] = field(default_factory=dict)
    """By provider; without an entry the provider has no masked MHA."""
    mask_workspace: MaskWorkspace | None = None
    dense_prefill: bool = True
    dense_excludes_pcp_with_dcp: bool = True
    capability_reads_layer: bool = False
    """Whether the layer's own flag counts besides that of the attention implementation."""
    layer_supports_dense: bool = True
    """The flag that the fused model's layers carry."""
    fused_runs_mha: bool = True
    """Whether the fused layer has an MHA branch at all."""
    indexer_skip: bool = True
    fused_binds_skip: bool = True
    """Whether the fused layer names itself to the indexer (the opt-in to the skip)."""
    context_rows_floor: str = "block_size"
    """The last floor of the context workspace: ``block_size`` or ``max_num_seqs*block_size``."""

    def table_backend(self, backend: str) -> str:
        return self.aliases.get(backend, backend)


def interval_fault(intervals: tuple[Interval, ...]) -> str | None:
    """What is wrong with a list of intervals, or None. First match decides, so order and distinctness matter."""
    previous = 0
    for longest, shortest_query in intervals:
        if longest < 1 or shortest_query < 0:
            return f"({longest}, {shortest_query}): expected a positive length and a query of 0 or more"
        if shortest_query > longest:
            return f"({longest}, {shortest_query}): no query is longer than its sequence, so it can never hold"
        if longest == previous:
            return f"({longest}, {shortest_query}): contradicts the interval before it, which ends at the same length"
        if longest < previous:
            return f"({longest}, {shortest_query}): unsorted, expected a length above {previous}"
        previous = longest
    return None
