"""Chunks cover every query once, stay within the limit, and do not change the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnoracle import reference

LENGTHS = [(7, 9), (0, 4), (5, 0), (1, 40), (6, 3)]
LIMITS = [1, 7, 100, 1000, 2**24]
HEADS, D, V, SLOTS = 3, 6, 4, 11


def attention(ragged, kind: str) -> tuple[Callable[[int], Iterator[reference.Chunk]], torch.Tensor, torch.Tensor]:
    """Chunks by limit, and the operator's own out and lse."""
    arrays = ragged(1, LENGTHS, heads=HEADS, d=D, v=V)
    call = {name: torch.from_numpy(array) for name, array in arrays.items()}
    rng = torch.Generator().manual_seed(2)
    if kind == "sparse":
        q, kv = call["q"], call["k"][:, 0]
        indices = torch.randint(-3, len(kv) + 3, (len(q), SLOTS), generator=rng)
        out, lse = reference.sparse_mqa(q, kv, indices, scale=0.5, value_dim=V)
        return lambda limit: reference.sparse_chunks(q, kv, indices, value_dim=V, limit=limit), out, lse
    if kind == "masked":
        mask = torch.randint(-(2**31), 2**31, (len(LENGTHS), 7, 2), generator=rng).int()
        out, lse = reference.masked_mha(**call, mask=mask, scale=0.5)
        return lambda limit: reference.masked_chunks(**call, mask=mask, limit=limit), out, lse
    out, lse = reference.dense_mha(**call, scale=0.5)
    return lambda limit: reference.dense_chunks(**call, limit=limit), out, lse


kinds = pytest.mark.parametrize("kind", ["dense", "masked", "sparse"])
limits = pytest.mark.parametrize("limit", LIMITS)


@kinds
@limits
def test_result_does_not_depend_on_the_limit(kind, limit, ragged):
    chunks, out, lse = attention(ragged, kind)
    got_out, got_lse = reference.attend_all(
        chunks(limit), 0.5, torch.full_like(out, torch.nan), torch.full_like(lse, torch.nan)
    )
    assert torch.allclose(got_out, out, rtol=1e-14, atol=1e-14)
    assert torch.allclose(got_lse, lse, rtol=1e-14, atol=1e-14)


@kinds
@limits
def test_rows_cover_every_query_once(kind, limit, ragged):
    chunks, out, _ = attention(ragged, kind)
    rows = [row for chunk in chunks(limit) for row in range(chunk.rows.start, chunk.rows.stop)]
    assert rows == list(range(len(out)))


@kinds
@limits
def test_sizes_stay_within_the_limit(kind, limit, ragged):
    chunks, _, _ = attention(ragged, kind)
    for chunk in chunks(limit):
        x, m, _ = chunk.queries.shape
        tokens = chunk.rows.stop - chunk.rows.start
        assert (x, m) == ((HEADS, tokens) if chunk.heads_first else (tokens, HEADS))
        assert chunk.heads_first == (kind != "sparse")
        keys = chunk.keys.shape[1]
        assert chunk.values.shape == (x, keys, V)
        chunk.allowed.expand(x, m, keys)
        gathered = 0 if chunk.heads_first else chunk.keys.numel()
        assert tokens == 1 or max(x * m * keys, gathered) <= limit
        assert chunk.place(torch.empty(x, m, 5)).shape == (tokens, HEADS, 5)


@kinds
def test_probabilities_of_a_chunk(kind, ragged):
    """Each row sums to one over allowed keys, or has none; exactly zero elsewhere."""
    chunks, _, _ = attention(ragged, kind)
    for chunk in chunks(50):
        p, lse = reference.probabilities(chunk, 0.5)
        allowed = chunk.allowed.expand(p.shape)
        assert not p[~allowed].any()
        some = allowed.any(-1)
        assert torch.allclose(p.sum(-1), some.double(), rtol=1e-14, atol=0)
        assert torch.equal(lse > -torch.inf, some)


def test_unused_slots_hold_zeros(ragged):
    chunks, _, _ = attention(ragged, "sparse")
    for chunk in chunks(200):
        assert not chunk.keys[~chunk.allowed[:, 0]].any()


@limits
def test_indexer_does_not_depend_on_the_limit(limit):
    rng = torch.Generator().manual_seed(3)
    q, k, weights = (torch.randn(size, generator=rng, dtype=torch.float64) for size in ((6, 4, 8), (9, 8), (6, 4)))
    call = {"q": q, "k": k, "k_scale": torch.ones(9), "weights": weights}
    call |= {"ks": torch.tensor([0, 0, 3, 3, 9, 1]), "ke": torch.tensor([9, 4, 7, 3, 9, 2])}
    parts = list(reference.indexer_chunks(**call, limit=limit))
    assert [row for rows, _ in parts for row in range(rows.start, rows.stop)] == list(range(6))
    whole = torch.cat([part for _, part in parts])
    assert torch.allclose(whole, reference.indexer_scores(**call)[0], rtol=1e-14, atol=1e-14)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@kinds
def test_nothing_larger_than_the_limit_is_made(kind, ragged):
    """64 queries, 3 heads and 2000 keys or slots: 384,000 scores whole, 20,000 elements at a time."""
    call = {name: torch.from_numpy(x) for name, x in ragged(4, [(64, 2000)], heads=HEADS, d=D, v=V).items()}
    limit, out = 20_000, torch.zeros(64, HEADS, V, dtype=torch.float64)
    lse = torch.zeros(64, HEADS, dtype=torch.float64)
    if kind == "sparse":
        indices = torch.arange(2000).expand(64, -1)
        chunks = reference.sparse_chunks(call["q"], call["k"][:, 0], indices, value_dim=V, limit=limit)
    elif kind == "masked":
        mask = torch.full((1, 64, 63), -1, dtype=torch.int32)
        chunks = reference.masked_chunks(**call, mask=mask, limit=limit)
    else:
        chunks = reference.dense_chunks(**call, limit=limit)
    with Largest() as largest:
        reference.attend_all(chunks, 0.5, out, lse)
    inputs = max(tensor.numel() for tensor in call.values())
    assert 8 * limit < 64 * HEADS * 2000
    assert largest.elements <= max(limit, inputs)
