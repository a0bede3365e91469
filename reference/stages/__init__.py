"""One sparse-MLA layer from hidden states to the output projection, stage by stage, with given weights.

The routes of ``layer`` take projected inputs; here every intermediate has a name, a formula and a shape, so that code
under test can be held against one stage at a time. Keys are all tokens of a request, queries its last ``s``.
"""

from .draft import draft_input
from .indexer import hadamard, index_key, index_query, index_scores, index_weights, select
from .latent import attention, kv_latent, output, q_latent, query, rms_norm, rotate, rotate_key, rotate_query
from .model import INDEX_NORM_EPS, Model, Weights, random_weights
from .ranks import kept, merge_ranks, rank_attention
from .run import run
from .table import DRAFT_STAGES, RANK_STAGES, STAGES, Stage, stages_of

__all__ = [
    "DRAFT_STAGES",
    "INDEX_NORM_EPS",
    "RANK_STAGES",
    "STAGES",
    "Model",
    "Stage",
    "Weights",
    "attention",
    "draft_input",
    "hadamard",
    "index_key",
    "index_query",
    "index_scores",
    "index_weights",
    "kept",
    "kv_latent",
    "merge_ranks",
    "output",
    "q_latent",
    "query",
    "random_weights",
    "rank_attention",
    "rms_norm",
    "rotate",
    "rotate_key",
    "rotate_query",
    "run",
    "select",
    "stages_of",
]
