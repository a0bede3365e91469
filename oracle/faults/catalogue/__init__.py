"""The catalogue: every planted fault, by theme. A fault that was added stays."""

from __future__ import annotations

from dataclasses import replace

from ..escaped import recorded
from ..fault import Fault
from .accumulate import ACCUMULATE
from .bitmask import BITMASK
from .conventions import CONVENTIONS
from .declared import DECLARED
from .harness import HARNESS
from .indexer import INDEXER
from .indices import INDICES
from .latent import LATENT
from .layout import LAYOUT
from .layout_bytes import LAYOUT_BYTES
from .layout_places import LAYOUT_PLACES
from .masks import MASKS
from .merge import MERGE
from .paged_indexer import PAGED_INDEXER
from .pairs import PAIRS
from .pipeline import PIPELINE
from .quantisation import QUANTISATION
from .reach import REACH
from .sizes import SIZES
from .softmax import SOFTMAX
from .state import STATE
from .topk import TOPK
from .triton_attention import TRITON_DENSE, TRITON_MASKED, TRITON_SPARSE
from .triton_latent import TRITON_SPARSE_FP8
from .triton_layouts import TRITON_LAYOUTS
from .triton_paged import TRITON_FP8_INDEXER, TRITON_PAGED_INDEXER
from .triton_ranking import TRITON_INDEXER, TRITON_MERGE, TRITON_TOPK

_LISTED: tuple[Fault, ...] = (
    *SOFTMAX,
    *ACCUMULATE,
    *MASKS,
    *BITMASK,
    *LAYOUT,
    *INDICES,
    *CONVENTIONS,
    *DECLARED,
    *MERGE,
    *QUANTISATION,
    *LATENT,
    *PIPELINE,
    *INDEXER,
    *PAGED_INDEXER,
    *TOPK,
    *STATE,
    *HARNESS,
    *TRITON_DENSE,
    *TRITON_MASKED,
    *TRITON_SPARSE,
    *TRITON_INDEXER,
    *TRITON_SPARSE_FP8,
    *TRITON_FP8_INDEXER,
    *TRITON_PAGED_INDEXER,
    *TRITON_TOPK,
    *TRITON_MERGE,
    *LAYOUT_BYTES,
    *LAYOUT_PLACES,
    *TRITON_LAYOUTS,
    *REACH,
    *SIZES,
    *PAIRS,
)

#: Faults of convention, and the name that the verdict has to give them.
CONVENTIONS_NAMED: dict[str, str] = {
    "lse-base-2": "lse-base",
    "triton-lse-base-2": "lse-base",
    "merge-base-2-lse-as-natural": "lse-base",
    "merge-lse-in-base-2": "lse-base-returned",
    "lse-stored-head-major": "lse-transposed",
    "empty-row-lse-plus-inf": "empty-lse-+inf",
    "empty-row-lse-zero": "empty-lse-zero",
    "empty-row-lse-finite": "empty-lse-sentinel",
    "exp2-without-log2e": "softmax-base",
    "triton-log2e-missing": "softmax-base",
    "scale-from-latent-width": "scale-of-width",
    "causal-top-left": "causal-top-left",
    "triton-causal-top-left": "causal-top-left",
    "mask-bits-reversed-in-word": "mask-bit-order",
    "triton-mask-bits-reversed": "mask-bit-order",
    "mask-bits-reversed-in-byte": "mask-bit-order-bytes",
    "sink-in-base-2": "sink-base",
    "request-local-index-as-physical": "index-space-relative",
    "indices-absolute": "index-space-packed",
    "triton-indices-absolute": "index-space-packed",
    "negative-index-wraps": "minus-one-wraps",
    "invalid-maps-to-row-0": "invalid-index-row-0",
    "index-past-end-clamped": "invalid-index-clamped",
    "duplicates-collapsed": "duplicates-collapsed",
    "lengths-ignored": "lengths-ignored",
    "nan-ranks-lowest": "nan-lowest",
    "lse-both-base-2-and-plus-inf": "lse-base+empty-lse-+inf",
    "lse-natural-though-base-2-declared": "lse-base",
    "lse-minus-inf-though-plus-inf-declared": "empty-lse--inf",
    "indices-counted-from-one": "index-space-one-based",
}

_ESCAPES = recorded()
FAULTS: tuple[Fault, ...] = tuple(
    replace(fault, escapes=_ESCAPES.get(fault.name, ()), convention=CONVENTIONS_NAMED.get(fault.name, ""))
    for fault in _LISTED
)
