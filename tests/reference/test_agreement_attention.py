"""Both formulations of the attention operators give the same numbers, also where inputs are broken on purpose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnoracle import reference
from attnoracle.reference.second import dense_mha, masked_mha, sparse_mqa

BATCHES = {
    "one-request": [(6, 6)],
    "ragged": [(3, 3), (7, 7), (1, 1)],
    "cached-context": [(2, 9), (4, 40)],
    "fewer-keys-than-queries": [(6, 2), (3, 3)],
    "empty-requests": [(0, 3), (2, 5), (3, 0), (0, 0), (1, 4)],
    "word-borders": [(2, 31), (2, 32), (2, 33), (3, 65)],
    "decode": [(1, 17), (1, 1), (1, 33)],
}
lengths = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12)), min_size=1, max_size=4)
few = settings(derandomize=True, deadline=None, max_examples=60)


def random_mask(seed: int, batch: list[tuple[int, int]]) -> np.ndarray:
    """Mask words with random bits everywhere, also past the last query and key of every request."""
    rows, words = max(q for q, _ in batch) + 2, max(k for _, k in batch) // 32 + 2
    return np.random.default_rng(seed).integers(-(2**31), 2**31, (len(batch), rows, words), dtype=np.int32)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_dense(batch, causal, ragged, tensors, agree):
    call = {**ragged(1, batch), "scale": 0.4, "causal": causal}
    agree(reference.dense_mha(**tensors(call)), dense_mha.dense_mha(**call))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_masked(batch, causal, ragged, tensors, agree):
    call = {**ragged(2, batch), "mask": random_mask(3, batch), "scale": 0.4, "causal": causal}
    agree(reference.masked_mha(**tensors(call)), masked_mha.masked_mha(**call))


@few
@given(batch=lengths, seed=st.integers(0, 99), causal=st.booleans(), heads=st.integers(1, 3))
def test_dense_drawn(batch, seed, causal, heads, ragged, tensors, agree):
    call = {**ragged(seed, batch, heads=heads), "scale": 1.5, "causal": causal}
    agree(reference.dense_mha(**tensors(call)), dense_mha.dense_mha(**call))


@few
@given(batch=lengths, seed=st.integers(0, 99), causal=st.booleans(), heads=st.integers(1, 3))
def test_masked_drawn(batch, seed, causal, heads, ragged, tensors, agree):
    call = {**ragged(seed, batch, heads=heads), "mask": random_mask(seed, batch), "scale": 1.5, "causal": causal}
    agree(reference.masked_mha(**tensors(call)), masked_mha.masked_mha(**call))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf], ids=str)
def test_hidden_keys_do_not_leak(poison, ragged, tensors, agree):
    """Some queries see the poisoned value and some do not; the second formulation touches only what is seen."""
    batch = [(6, 6), (4, 40), (5, 2)]
    call = {**ragged(4, batch), "mask": random_mask(5, batch), "scale": 0.4}
    for key in (1, 5, 12, 45, 47):
        call["v"][key, :, key % 3] = poison
    out, _ = first = reference.masked_mha(**tensors(call))
    second = masked_mha.masked_mha(**call)
    assert 0 < np.sum(~np.isfinite(second[1])) < second[1].size  # some queries see no key
    assert 0 < (~out.isfinite()).sum() < out.numel() / 2
    agree(first, second)


def test_nan_in_keys_out_of_reach(ragged, tensors, agree):
    batch = [(3, 8), (2, 5)]
    call = {**ragged(6, batch), "mask": random_mask(7, batch), "scale": 0.4}
    call["mask"][0, :, 0] &= ~(1 << 2)
    call["k"][2], call["v"][2] = np.nan, np.nan
    out, lse = reference.masked_mha(**tensors(call))
    assert out.isfinite().all()
    agree((out, lse), masked_mha.masked_mha(**call))


def test_nan_of_both_signs_of_infinity(ragged, tensors, agree):
    call = {**ragged(8, [(5, 5)]), "scale": 0.4}
    call["v"][1, 0, 0], call["v"][3, 0, 0], call["v"][4, 1, 2] = np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = dense_mha.dense_mha(**call)
    assert expected[0][:, 0, 0].tolist()[1:3] == [np.inf, np.inf]
    assert np.isnan(expected[0][3, 0, 0])
    agree(reference.dense_mha(**tensors(call)), expected)


def sparse_call(seed: int, *, s: int, n: int, k: int, lengths: bool = False, sink: bool = False) -> dict:
    """Selections with duplicates, and a third of the entries invalid in every way there is."""
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, max(n, 1), (s, k))
    wrong = rng.choice([-1, -7, n, n + 5, 2**31 - 1, -(2**31)], (s, k))
    indices = np.where(rng.random((s, k)) < 1 / 3, wrong, indices)
    indices[s // 2 :: 4] = -1  # rows with no key
    call = {"q": rng.standard_normal((s, 3, 7)), "kv": rng.standard_normal((n, 7)), "scale": 0.3, "value_dim": 4}
    call["indices"] = indices.astype(np.int32)
    if lengths:
        call["lengths"] = rng.integers(0, k + 2, s).astype(np.int32)
    if sink:
        call["sink"] = np.array([0.7, -np.inf, -2.0])
    return call


@pytest.mark.parametrize("lengths", [False, True], ids=["whole-rows", "lengths"])
@pytest.mark.parametrize("sink", [False, True], ids=["no-sink", "sink"])
@pytest.mark.parametrize("s,n,k", [(9, 11, 8), (1, 1, 5), (6, 0, 4), (0, 5, 3), (4, 50, 33), (3, 4, 0)])
def test_sparse(s, n, k, sink, lengths, tensors, agree):
    call = sparse_call(9, s=s, n=n, k=k, lengths=lengths, sink=sink)
    agree(reference.sparse_mqa(**tensors(call)), sparse_mqa.sparse_mqa(**call))


@few
@given(s=st.integers(0, 9), n=st.integers(0, 9), k=st.integers(0, 12), seed=st.integers(0, 99), extras=st.booleans())
def test_sparse_drawn(s, n, k, seed, extras, tensors, agree):
    call = sparse_call(seed, s=s, n=n, k=k, lengths=extras, sink=extras)
    agree(reference.sparse_mqa(**tensors(call)), sparse_mqa.sparse_mqa(**call))


def test_sparse_reads_only_selected_rows(tensors, agree):
    call = sparse_call(10, s=9, n=40, k=6, lengths=True)
    pairs = zip(call["indices"].tolist(), call["lengths"].tolist(), strict=True)
    used = {entry for row, stop in pairs for entry in row[:stop]}
    call["kv"][[row for row in range(40) if row not in used]] = np.nan
    out, lse = reference.sparse_mqa(**tensors(call))
    assert np.isnan(call["kv"]).any()
    assert out.isfinite().all()
    agree((out, lse), sparse_mqa.sparse_mqa(**call))


def test_sparse_shows_nan_of_a_selected_row(tensors, agree):
    call = sparse_call(11, s=9, n=4, k=6)
    call["kv"][2, 1] = np.nan
    out, lse = reference.sparse_mqa(**tensors(call))
    assert 0 < out.isnan().sum() < out.numel()
    agree((out, lse), sparse_mqa.sparse_mqa(**call))
