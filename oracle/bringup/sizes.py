"""Bytes: a cached token by format, the masks of masked MHA, the chunked-context workspace, the selections."""

from __future__ import annotations

from dataclasses import dataclass

from ...reference.layouts import CACHE_FORMATS, SCALE_BYTES, row_width
from ...reference.routing import Deployment, Rules, context_rows, mask_bytes
from ..geometry import Geometry

#: Lengths that a table of masks shows.
LENGTHS = (2048, 4096, 8192, 16384, 32768, 65536)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Bytes of one token. ``layer`` None: the format cannot hold this geometry, for ``why``."""

    cache: str
    layer: int | None
    index: int
    """Of the indexer's key, in a full layer: codes and a scale."""
    model: int | None
    """All layers; None where the config does not say how many there are."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class WorkSize:
    name: str
    tokens: int
    bytes: int
    fits: bool
    """Within the room of the rules; a workspace without a limit fits."""


def cache_sizes(g: Geometry) -> tuple[CacheSize, ...]:
    """Every format of a latent row; the indexer's key is counted in full layers only."""
    index = (g.index_head_dim or 0) + SCALE_BYTES if g.index_topk else 0
    found = []
    for cache in CACHE_FORMATS:
        try:
            width = row_width(cache, g.kv_lora_rank, g.qk_rope_head_dim)
        except ValueError as error:
            found.append(CacheSize(cache, None, index, None, str(error)))
            continue
        layer = width * (2 if cache == "model" else 1)
        total = None if g.num_layers is None else g.num_layers * layer + len(g.indexer_full_layers) * index
        found.append(CacheSize(cache, layer, index, total))
    return tuple(found)


def work_sizes(rules: Rules, deployment: Deployment) -> tuple[WorkSize, ...]:
    """Masks of one fresh prompt a length, the context workspace in bf16, and the shared buffer of selections."""
    found = []
    workspace = rules.mask_workspace
    if workspace is not None:
        for length in LENGTHS:
            need = mask_bytes(workspace, 1, length, length)
            found.append(WorkSize("mask of one fresh prompt", length, need, need <= workspace.max_bytes))
    rows = context_rows(rules, deployment).value
    found.append(WorkSize("context workspace, bf16 rows", rows, rows * deployment.latent_dim * 2, True))
    tokens = 8192
    found.append(WorkSize("selections of a step, int32", tokens, tokens * deployment.index_topk * 4, True))
    return tuple(found)
