"""The specification: every operator as a pure PyTorch function that reads like its formula.

Imports torch and nothing of ours; runs on any device. Every function computes in
``promote_types(input dtype, float32)``, so float64 inputs give the truth that a verdict is measured against.
Nothing here imitates the rounding of a kernel.

Dimension letters, used in every shape of the project::

    s  query tokens (all requests packed)      c  latent rank (kv_lora_rank)
    t  key tokens (all requests packed)        r  RoPE dim
    h  heads                                   k  selected slots (top-k)
    d  query/key head dim                      i  indexer heads
    v  value head dim                          e  indexer head dim
    n  rows of a cache                         b  requests
    p  pages of a cache                        m  queries of each request (next_n)

Ragged batches are packed; ``cu_q`` and ``cu_k`` are int32 prefix sums [b+1]. Every attention operator returns
``(out, lse)`` with ``lse`` the natural logarithm of the softmax denominator. A query with no key has
``out = 0`` and ``lse = -inf``.

The layout operators (``quantize``, ``write_cache``, ``gather`` and the like) move and convert bytes; their numbers are
exact, bit for bit, in every dtype. Formats and layouts are in ``layouts``. A writer changes its cache in place.
"""

from .build_mask import build_mask
from .chunks import CHUNK_ELEMENTS, Chunk
from .convert_indices import convert_indices
from .dense_mha import dense_chunks, dense_mha
from .gather import gather
from .gather_index import gather_index
from .indexer_scores import indexer_chunks, indexer_scores
from .masked_mha import masked_chunks, masked_mha
from .merge_lse import merge_lse
from .mla import absorb_query, project_output, softmax_scale, split_kv_b, up_project
from .paged_indexer_scores import paged_indexer_scores
from .quantize import quantize
from .rope import Yarn, rope_frequencies, rope_tables, rotate_halves, rotate_interleaved, yarn_mscale
from .softmax import attend, attend_all, probabilities, weighted_sum
from .sparse_mqa import sink_share, sparse_chunks, sparse_mqa
from .topk_select import topk_select
from .write_cache import write_cache
from .write_index import write_index

__all__ = [
    "CHUNK_ELEMENTS",
    "Chunk",
    "Yarn",
    "absorb_query",
    "attend",
    "attend_all",
    "build_mask",
    "convert_indices",
    "dense_chunks",
    "dense_mha",
    "gather",
    "gather_index",
    "indexer_chunks",
    "indexer_scores",
    "masked_chunks",
    "masked_mha",
    "merge_lse",
    "paged_indexer_scores",
    "probabilities",
    "project_output",
    "quantize",
    "rope_frequencies",
    "rope_tables",
    "rotate_halves",
    "rotate_interleaved",
    "sink_share",
    "softmax_scale",
    "sparse_chunks",
    "sparse_mqa",
    "split_kv_b",
    "topk_select",
    "up_project",
    "weighted_sum",
    "write_cache",
    "write_index",
    "yarn_mscale",
]
