"""A readable sparse-MLA attention layer with injected operators, a provenance for all it caches, and a trace."""

from .buffer import TopkBuffer
from .cache import IndexCache, LatentCache
from .dispatch import dispatch
from .events import (
    STAMPS,
    BufferRead,
    BufferWrite,
    CacheRead,
    CacheWrite,
    Event,
    GuardAsked,
    OperatorCall,
    QueryForm,
    Range,
    Reached,
    Routed,
    SkipDecided,
    Stamp,
)
from .inputs import LayerInputs
from .layer import SparseMLALayer
from .masks import build_mask
from .metadata import MissingMetadata, PrefillMetadata, StepMetadata, build_metadata, need
from .packing import pack_e4m3
from .pages import Pages, to_slots
from .parts import Operators, Parts
from .query import PreparedQuery, Query, Rotate, mha_query, prepare_query
from .row_cache import RowCache
from .step import StepBatch
from .trace import Trace

__all__ = [
    "STAMPS",
    "BufferRead",
    "BufferWrite",
    "CacheRead",
    "CacheWrite",
    "Event",
    "GuardAsked",
    "IndexCache",
    "LatentCache",
    "LayerInputs",
    "MissingMetadata",
    "OperatorCall",
    "Operators",
    "Pages",
    "Parts",
    "PrefillMetadata",
    "PreparedQuery",
    "Query",
    "QueryForm",
    "Range",
    "Reached",
    "Rotate",
    "Routed",
    "RowCache",
    "SkipDecided",
    "SparseMLALayer",
    "Stamp",
    "StepBatch",
    "StepMetadata",
    "TopkBuffer",
    "Trace",
    "build_mask",
    "build_metadata",
    "dispatch",
    "mha_query",
    "need",
    "pack_e4m3",
    "prepare_query",
    "to_slots",
]
