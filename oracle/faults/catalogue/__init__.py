"""The catalogue: every planted fault, by theme. A fault that was added stays."""

from __future__ import annotations

from dataclasses import replace

from ..escapes import recorded
from ..fault import Fault
from .accumulate import ACCUMULATE
from .bitmask import BITMASK
from .conventions import CONVENTIONS
from .harness import HARNESS
from .indexer import INDEXER
from .indices import INDICES
from .layout import LAYOUT
from .masks import MASKS
from .merge import MERGE
from .paged_indexer import PAGED_INDEXER
from .pipeline import PIPELINE
from .quantisation import QUANTISATION
from .softmax import SOFTMAX
from .state import STATE
from .topk import TOPK
from .triton_attention import TRITON_DENSE, TRITON_MASKED, TRITON_SPARSE
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
    *MERGE,
    *QUANTISATION,
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
    *TRITON_FP8_INDEXER,
    *TRITON_PAGED_INDEXER,
    *TRITON_TOPK,
    *TRITON_MERGE,
)

_ESCAPES = recorded()
FAULTS: tuple[Fault, ...] = tuple(replace(fault, escapes=_ESCAPES.get(fault.name, ())) for fault in _LISTED)
