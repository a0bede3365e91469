"""One sparse-MLA layer from hidden states to the output projection, stage by stage, with given weights.

The routes of ``layer`` take projected inputs; here every intermediate has a name, a formula and a shape, so that code
under test can be held against one stage at a time. Keys are all tokens of a request, queries its last ``s``.
"""

from .indexer import hadamard, index_key, index_query, index_scores, index_weights, select
from .latent import attention, kv_latent, output, q_latent, query, rms_norm, rotate, rotate_key, rotate_query
from .model import INDEX_NORM_EPS, Model, Weights, random_weights
from .run import STAGES, Stage, run

__all__ = [
    "INDEX_NORM_EPS",
    "STAGES",
    "Model",
    "Stage",
    "Weights",
    "attention",
    "hadamard",
    "index_key",
    "index_query",
    "index_scores",
    "index_weights",
    "kv_latent",
    "output",
    "q_latent",
    "query",
    "random_weights",
    "rms_norm",
    "rotate",
    "rotate_key",
    "rotate_query",
    "run",
    "select",
]
