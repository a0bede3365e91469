"""Masked MHA on Triton against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from attnoracle.reference.masked_mha import masked_mha as reference
from attnoracle.reference.masked_mha import unpack_bits

RAGGED = ((64, 64), (0, 5), (3, 0), (5, 2), (1, 33), (66, 130))


@pytest.fixture
def words(device):
    """Random mask words, each bit set with probability 2**-halvings."""

    def random(*shape: int, halvings: int = 1, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        packed = torch.full(shape, -1, dtype=torch.int64)
        for _ in range(halvings):
            packed &= torch.randint(-(2**31), 2**31, shape, generator=generator)
        return packed.to(torch.int32).to(device)

    return random


@pytest.fixture
def check(triton_operator, assert_attention, sums):
    function = triton_operator("masked_mha")

    def run(q, k, v, mask, lengths, *, scale=0.1, causal=True):
        cu_q, cu_k = (sums(*column) for column in zip(*lengths, strict=True))
        got = function(q, k, v, mask, cu_q, cu_k, scale=scale, causal=causal)
        wide = [x.double() for x in (q, k, v)]
        expected = reference(*wide, mask, cu_q, cu_k, scale=scale, causal=causal)
        absolute, _ = reference(wide[0], wide[1], wide[2].abs(), mask, cu_q, cu_k, scale=scale, causal=causal)
        assert_attention(got, expected, absolute, q, k, scale, max(length for _, length in lengths))
        return got

    return run


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("d", "v", "h"), [(192, 128, 2), (256, 256, 1)], ids=["v32", "glm"])
def test_ragged_batch(check, draw, words, dtype, d, v, h):
    s, t = (sum(column) for column in zip(*RAGGED, strict=True))
    q, k = draw(s, h, d, seed=1, dtype=dtype), draw(t, h, d, seed=2, dtype=dtype)
    check(q, k, draw(t, h, v, seed=3, dtype=dtype), words(6, 72, 5, halvings=3), RAGGED, scale=d**-0.5)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("keys", [1, 31, 32, 33, 63, 64, 65, 127, 128, 129])
def test_lengths_around_words_and_tiles(check, draw, words, keys, causal):
    q, k, v = draw(65, 1, 16, seed=1), draw(keys, 1, 16, seed=2), draw(keys, 1, 16, seed=3)
    check(q, k, v, words(1, 65, (keys + 31) // 32, halvings=2, seed=keys), ((65, keys),), causal=causal)


def test_every_bit_counts(check, draw, words):
    """One key a row, at every position of a word, the sign bit among them."""
    q, k, v = draw(64, 1, 16, seed=1), draw(64, 1, 16, seed=2), draw(64, 1, 16, seed=3)
    bits = 1 << (torch.arange(64) % 32)
    mask = torch.zeros(1, 64, 2, dtype=torch.int64)
    mask[0, torch.arange(64), torch.arange(64) // 32] = bits
    out, _ = check(q, k, v, mask.to(torch.int32).to(q.device), ((64, 64),), causal=False)
    assert torch.equal(out, v)


def test_empty_rows_and_empty_tiles(check, draw, words):
    mask = words(1, 70, 8)
    mask[0, :, 2:4] = 0  # keys 64 to 127: a whole key tile
    mask[0, 10:20] = 0
    q, k, v = draw(70, 1, 16, seed=1), draw(256, 1, 16, seed=2), draw(256, 1, 16, seed=3)
    out, lse = check(q, k, v, mask, ((70, 256),))
    assert (out[10:20] == 0).all() and (lse[10:20] == -torch.inf).all()


def test_all_masked(check, draw, words):
    q, k, v = draw(5, 2, 16, seed=1), draw(40, 2, 16, seed=2), draw(40, 2, 16, seed=3)
    out, lse = check(q, k, v, words(1, 5, 2) * 0, ((5, 40),))
    assert (out == 0).all() and (lse == -torch.inf).all()


def test_unused_bits_do_not_matter(triton_operator, draw, words, sums):
    """Bits beyond the keys, rows beyond the queries and words beyond both are garbage."""
    lengths = (sums(7, 66), sums(40, 100))
    q, k, v = draw(73, 2, 16, seed=1), draw(140, 2, 16, seed=2), draw(140, 2, 16, seed=3)
    one, other = words(2, 80, 6, seed=1), words(2, 80, 6, seed=2)
    for request, (queries, keys) in enumerate(((7, 40), (66, 100))):
        used = unpack_bits(torch.full((6,), -1, dtype=torch.int32), 192) & (torch.arange(192) < keys)
        packed = (used.view(6, 32).long() << torch.arange(32)).sum(-1).to(torch.int32).to(one.device)
        other[request, :queries] = (one[request, :queries] & packed) | (other[request, :queries] & ~packed)
    function = triton_operator("masked_mha")
    first, second = (function(q, k, v, mask, *lengths, scale=0.2) for mask in (one, other))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


def test_keys_that_no_query_sees_are_not_read(check, draw, words):
    mask = words(1, 33, 3)
    mask[0, :, 1] = 0
    q, k, v = draw(33, 2, 32, seed=1), draw(96, 2, 32, seed=2), draw(96, 2, 32, seed=3)
    k[32:64], v[32:64] = torch.nan, torch.inf
    out, _ = check(q, k, v, mask, ((33, 96),))
    assert out.isfinite().all()


def test_full_mask(check, draw, words):
    q, k, v = (draw(90, 2, 48, seed=seed, dtype=torch.bfloat16) for seed in (1, 2, 3))
    check(q, k, v, words(2, 80, 3, halvings=0), ((10, 10), (80, 80)))


def test_strides_are_free(check, draw, words):
    q = draw(2, 33, 64, seed=1).transpose(0, 1)
    k, v = draw(33, 2, 80, seed=2)[:, :, 16:], draw(33, 4, 32, seed=3)[:, ::2]
    check(q, k, v, words(3, 40, 5)[1:2, 2:, 1:4], ((33, 33),))


def test_mask_of_wrong_type_is_refused(triton_operator, draw, sums):
    q = draw(4, 1, 16, seed=1)
    with pytest.raises(ValueError, match=r"mask: expected torch.int32, got torch.bool"):
        mask = torch.ones(1, 4, 4, dtype=torch.bool, device=q.device)
        triton_operator("masked_mha")(q, q, q, mask, sums(4), sums(4), scale=1.0)
