"""What cannot be is refused with a message that names the argument; dtypes are widened, never narrowed."""

from __future__ import annotations

import inspect

import pytest
import torch

from attnoracle import reference

F32, F64, I32 = torch.float32, torch.float64, torch.int32


def dense(**changes) -> dict:
    call = {"q": torch.zeros(3, 2, 4), "k": torch.zeros(5, 2, 4), "v": torch.zeros(5, 2, 6)}
    call |= {"cu_q": torch.tensor([0, 3], dtype=I32), "cu_k": torch.tensor([0, 5], dtype=I32), "scale": 1.0}
    return call | changes


def masked(**changes) -> dict:
    return dense(mask=torch.zeros(1, 3, 1, dtype=I32)) | changes


def sparse(**changes) -> dict:
    call = {"q": torch.zeros(3, 2, 4), "kv": torch.zeros(5, 4), "indices": torch.zeros(3, 7, dtype=I32)}
    return call | {"scale": 1.0, "value_dim": 3} | changes


def indexer(**changes) -> dict:
    call = {"q": torch.zeros(3, 2, 4), "k": torch.zeros(5, 4), "k_scale": torch.ones(5), "weights": torch.ones(3, 2)}
    return call | {"ks": torch.zeros(3, dtype=I32), "ke": torch.full((3,), 5, dtype=I32)} | changes


def topk(**changes) -> dict:
    call = {"scores": torch.zeros(3, 5), "ks": torch.zeros(3, dtype=I32), "ke": torch.full((3,), 5, dtype=I32)}
    return call | {"k": 2} | changes


def merge(**changes) -> dict:
    call = {"out_a": torch.zeros(3, 2, 4), "lse_a": torch.zeros(3, 2)}
    return call | {"out_b": torch.zeros(3, 2, 4), "lse_b": torch.zeros(3, 2)} | changes


WRONG = [
    (reference.dense_mha, dense(k=torch.zeros(5, 3, 4)), r"k: expected \[t, h, d\] with h=2, d=4, got \[5, 3, 4\]"),
    (reference.dense_mha, dense(v=torch.zeros(4, 2, 6)), r"v: expected .* with t=5, h=2, got \[4, 2, 6\]"),
    (reference.dense_mha, dense(q=torch.zeros(3, 4)), r"q: expected \[s, h, d\], got \[3, 4\]"),
    (reference.dense_mha, dense(cu_q=torch.tensor([0, 2])), r"cu_q: expected prefix sums .* to 3, got \[0, 2\]"),
    (reference.dense_mha, dense(cu_k=torch.tensor([0, 6, 5])), "cu_k: expected prefix sums"),
    (reference.dense_mha, dense(cu_k=torch.tensor([0, 2, 5])), r"cu_k: expected \[2\] as cu_q, got \[3\]"),
    (reference.dense_mha, dense(cu_q=torch.tensor([0.0, 3.0])), "cu_q: expected integers .* got torch.float32"),
    (reference.masked_mha, masked(mask=torch.zeros(1, 2, 1, dtype=I32)), r"mask: expected int32 \[1, >= 3, >= 1\]"),
    (reference.masked_mha, masked(mask=torch.zeros(1, 3, 1)), "mask: expected int32 .* got torch.float32"),
    (reference.masked_mha, masked(mask=torch.zeros(1, 3, 0, dtype=I32)), r"got torch.int32 \[1, 3, 0\]"),
    (reference.sparse_mqa, sparse(kv=torch.zeros(5, 3)), r"kv: expected floats \[n, 4\] or \[p, page, 4\] for model"),
    (reference.sparse_mqa, sparse(indices=torch.zeros(3, 7)), "indices: expected integers"),
    (reference.sparse_mqa, sparse(indices=torch.zeros(2, 7, dtype=I32)), r"indices: expected \[s, k\] with s=3"),
    (reference.sparse_mqa, sparse(value_dim=5), "value_dim: expected 0 to 4, the columns of kv, got 5"),
    (reference.sparse_mqa, sparse(lengths=torch.zeros(2, dtype=I32)), r"lengths: expected \[s\] with s=3, got \[2\]"),
    (reference.sparse_mqa, sparse(sink=torch.zeros(3)), r"sink: expected \[h\] with h=2, got \[3\]"),
    (reference.indexer_scores, indexer(weights=torch.ones(3, 3)), r"weights: expected \[s, i\] with s=3, i=2"),
    (reference.indexer_scores, indexer(k_scale=torch.ones(4)), r"k_scale: expected \[t\] with t=5, got \[4\]"),
    (reference.indexer_scores, indexer(ks=torch.zeros(3)), "ks: expected integers"),
    (reference.topk_select, topk(ke=torch.full((3,), 6)), r"windows in \[0, 5\], got \[0, 6\) in row 0"),
    (reference.topk_select, topk(ks=torch.tensor([0, -1, 0])), r"got \[-1, 5\) in row 1"),
    (reference.topk_select, topk(k=-1), "k: expected 0 or more, got -1"),
    (reference.merge_lse, merge(lse_b=torch.zeros(2, 3)), r"lse_b: expected \[s, h\] with s=3, h=2, got \[2, 3\]"),
    (
        reference.split_kv_b,
        {"kv_b": torch.zeros(5, 2), "heads": 2, "qk_nope_head_dim": 2, "v_head_dim": 1},
        "kv_b: exp",
    ),
    (reference.absorb_query, {"q": torch.zeros(3, 2, 1), "w_uk": torch.zeros(2, 2, 4)}, r"q: expected \[s, 2, >= 2\]"),
    (reference.rope_frequencies, {"dim": 3, "theta": 10.0}, "dim: expected an even number, got 3"),
    (reference.rope_tables, {"positions": torch.zeros(3), "dim": 4, "theta": 10.0}, "positions: expected integers"),
    (
        reference.rotate_halves,
        {"x": torch.zeros(3, 4), "cos": torch.zeros(3, 2), "sin": torch.zeros(2, 2)},
        r"cos, sin: expected \[3, 2\], got \[3, 2\] and \[2, 2\]",
    ),
]


@pytest.mark.parametrize(
    "operator,call,message", WRONG, ids=[f"{op.__name__}-{n}" for n, (op, _, _) in enumerate(WRONG)]
)
def test_refused(operator, call, message):
    with pytest.raises(ValueError, match=message):
        operator(**call)


ATTENTION = [(reference.dense_mha, dense, "qkv"), (reference.masked_mha, masked, "qkv")]
ATTENTION += [(reference.sparse_mqa, sparse, ("q", "kv"))]


@pytest.mark.parametrize(
    "given,computed",
    [
        (torch.bfloat16, F32),
        (torch.float16, F32),
        (torch.float8_e4m3fn, F32),
        (F32, F32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("operator,make,floats", ATTENTION, ids=["dense", "masked", "sparse"])
def test_compute_dtype(operator, make, floats, given, computed):
    call = make()
    if given is torch.float8_e4m3fn and operator is reference.sparse_mqa:
        call["cache_format"] = "fp8_e4m3"
    out, lse = operator(**call | {name: call[name].to(given) for name in floats})
    assert (out.dtype, lse.dtype) == (computed, computed)


NEEDED = inspect.Parameter.empty
SIGNATURES = {
    "dense_mha": ("q k v cu_q cu_k", {"scale": NEEDED, "causal": True}),
    "masked_mha": ("q k v mask cu_q cu_k", {"scale": NEEDED, "causal": True}),
    "sparse_mqa": (
        "q kv indices",
        {
            "scale": NEEDED,
            "value_dim": NEEDED,
            "lengths": None,
            "sink": None,
            "cache_format": "model",
            "q_scale": 1.0,
            "k_scale": 1.0,
        },
    ),
    "indexer_scores": ("q k k_scale weights ks ke", {"q_scale": None, "max_seqlen_k": None}),
    "paged_indexer_scores": (
        "q k_cache weights context_lens block_table",
        {"max_model_len": NEEDED, "q_scale": None},
    ),
    "topk_select": ("scores ks ke", {"k": NEEDED}),
    "merge_lse": ("out_a lse_a out_b lse_b", {}),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    """Tensors by position, options by keyword: the names that every implementation shares."""
    tensors, options = SIGNATURES[name]
    parameters = inspect.signature(getattr(reference, name)).parameters.values()
    by_kind = {kind: [p for p in parameters if p.kind == kind] for kind in {p.kind for p in parameters}}
    optional = by_kind.pop(inspect.Parameter.KEYWORD_ONLY, [])
    assert [p.name for p in by_kind.pop(inspect.Parameter.POSITIONAL_OR_KEYWORD)] == tensors.split()
    assert {p.name: p.default for p in optional} == options
    assert not by_kind


def test_every_public_name_exists_and_says_what_it_is():
    for name in reference.__all__:
        thing = getattr(reference, name)
        assert name == "CHUNK_ELEMENTS" or inspect.getdoc(thing)
