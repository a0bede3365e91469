"""Hands the stages of ``model.py`` to the suite; every argument and result is a tensor of one request."""

import model

#: What the code computes in: float32 or float64.
DTYPE = "float32"
#: Whether both sides of the indexer are rotated by a Hadamard matrix.
HADAMARD = False
#: Whether dense prefills run as MHA. The suite asks the layer of ``make_layer`` and sees which operator ran.
SUPPORTS_DENSE_MHA_PREFILL = False


def build(config, weights):
    """``config``: the fields of tiny.json. ``weights``: tensors under their checkpoint names."""
    return model.OtterAttention(config, weights)


def q_latent(mine, *, hidden):
    return mine.q_latent(hidden)


def query(mine, *, q_c):
    return mine.query(q_c)


def kv_latent(mine, *, hidden):
    return mine.kv_latent(hidden)


def rotate_query(mine, *, q, positions):
    return mine.rotate_query(q, positions)


def rotate_key(mine, *, k_pe, positions):
    return mine.rotate_key(k_pe, positions)


def index_query(mine, *, q_c, positions):
    return mine.index_query(q_c, positions)


def index_key(mine, *, hidden, positions):
    return mine.index_key(hidden, positions)


def index_weights(mine, *, hidden):
    return mine.index_weights(hidden)


def index_scores(mine, *, index_q, index_k, weights):
    return mine.index_scores(index_q, index_k, weights)


def select(mine, *, scores):
    return mine.select(scores)


def attention(mine, *, q, kv_c, k_pe, indices):
    return mine.attention(q, kv_c, k_pe, indices.long())


def output(mine, *, attended):
    return mine.output(attended)


def draft_input(mine, *, previous, embedded, positions):
    return mine.draft_input(previous, embedded)


def rank_attention(mine, *, q, kv_c, k_pe, indices, ranks, interleave):
    return mine.rank_attention(q, kv_c, k_pe, indices.long(), ranks, interleave)


def merge_ranks(mine, *, outs, lses):
    return mine.merge_ranks(outs, lses)


def write_latent(mine, *, kv_c, k_pe):
    return model.write_latent(kv_c, k_pe)


def read_latent(mine, *, rows):
    return model.read_latent(rows, mine.latent)


def write_index(mine, *, index_k):
    return model.write_index(index_k)


def read_index(mine, *, codes, scales):
    return model.read_index(codes, scales)


def full_layers(mine):
    return mine.full_layers()
