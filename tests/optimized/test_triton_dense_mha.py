"""Dense MHA on Triton against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from attnoracle.reference.dense_mha import dense_mha as reference

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
RAGGED = ((64, 64), (0, 5), (3, 0), (5, 2), (1, 33), (66, 130))


@pytest.fixture
def check(triton_operator, assert_attention, sums):
    function = triton_operator("dense_mha")

    def run(q, k, v, lengths, *, scale=0.1, causal=True):
        cu_q, cu_k = (sums(*column) for column in zip(*lengths, strict=True))
        got = function(q, k, v, cu_q, cu_k, scale=scale, causal=causal)
        wide = [x.double() for x in (q, k, v)]
        expected = reference(*wide, cu_q, cu_k, scale=scale, causal=causal)
        absolute, _ = reference(wide[0], wide[1], wide[2].abs(), cu_q, cu_k, scale=scale, causal=causal)
        assert_attention(got, expected, absolute, q, k, scale, max(length for _, length in lengths))
        return got

    return run


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("d", "v", "h"), [(192, 128, 2), (256, 256, 1), (40, 24, 3)], ids=["v32", "glm", "odd"])
def test_ragged_batch(check, draw, dtype, d, v, h):
    s, t = (sum(column) for column in zip(*RAGGED, strict=True))
    q, k = draw(s, h, d, seed=1, dtype=dtype), draw(t, h, d, seed=2, dtype=dtype)
    out, lse = check(q, k, draw(t, h, v, seed=3, dtype=dtype), RAGGED, scale=d**-0.5)
    # Requests 2 and 3: three queries without keys; of five queries with two keys the first three see none.
    assert (out[64:70] == 0).all() and (lse[64:70] == -torch.inf).all()


def test_not_causal(check, draw):
    q, k, v = draw(70, 1, 64, seed=1), draw(135, 1, 64, seed=2), draw(135, 1, 32, seed=3)
    check(q, k, v, ((64, 64), (0, 5), (5, 2), (1, 64)), causal=False)


@pytest.mark.parametrize("keys", [1, 31, 32, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("queries", [1, 63, 65])
def test_lengths_around_tiles(check, draw, queries, keys):
    q, k, v = draw(queries, 1, 16, seed=1), draw(keys, 1, 16, seed=2), draw(keys, 1, 16, seed=3)
    check(q, k, v, ((queries, keys),), scale=0.25)


def test_large_scores(check, draw):
    q, k, v = (draw(40, 2, 32, seed=seed, dtype=torch.bfloat16) * 30 for seed in (1, 2, 3))
    check(q, k, v, ((40, 40),), scale=0.2)


def test_strides_are_free(check, draw):
    dtype = torch.bfloat16
    q = draw(2, 33, 192, seed=1, dtype=dtype).transpose(0, 1)
    k = draw(33, 4, 200, seed=2, dtype=dtype)[:, 1:3, 8:]
    v = draw(33, 2, 160, seed=3, dtype=dtype)[:, :, 32:]
    check(q, k, v, ((33, 33),))


def test_rows_beyond_two_to_the_31(check, draw, far_rows):
    q, k, v = (draw(3, 2, 32, seed=seed, dtype=torch.bfloat16) for seed in (1, 2, 3))
    check(q, far_rows(k), far_rows(v), ((3, 3),))


def test_padding_tokens_are_written_and_not_read(triton_operator, draw, sums):
    q, k, v = (draw(80, 1, 32, seed=seed) for seed in (1, 2, 3))
    k[70:], v[70:] = torch.nan, torch.nan
    function = triton_operator("dense_mha")
    out, lse = function(q, k, v, sums(4, 66), sums(4, 66), scale=0.2)
    real = function(q[:70], k[:70], v[:70], sums(4, 66), sums(4, 66), scale=0.2)
    assert torch.equal(out[:70], real[0]) and torch.equal(lse[:70], real[1])
    assert (out[70:] == 0).all() and (lse[70:] == -torch.inf).all()


def test_keys_of_other_requests_do_not_matter(triton_operator, draw, sums):
    """A request alone and in a batch beside NaN agree bit for bit."""
    q, k, v = (draw(90, 2, 48, seed=seed, dtype=torch.bfloat16) for seed in (1, 2, 3))
    for x in (q, k, v):
        x[:10], x[80:] = torch.nan, torch.nan
    function = triton_operator("dense_mha")
    together = function(q, k, v, sums(10, 70, 10), sums(10, 70, 10), scale=0.2)
    alone = function(q[10:80], k[10:80], v[10:80], sums(70), sums(70), scale=0.2)
    assert torch.equal(together[0][10:80], alone[0]) and torch.equal(together[1][10:80], alone[1])


def test_no_tokens(triton_operator, draw, sums):
    function = triton_operator("dense_mha")
    nothing = draw(0, 2, 32, seed=1)
    out, lse = function(nothing, nothing, nothing, sums(0), sums(0), scale=0.2)
    assert out.shape == (0, 2, 32) and lse.shape == (0, 2)
    out, lse = function(draw(3, 2, 32, seed=1), nothing, nothing, sums(3), sums(0), scale=0.2)
    assert (out == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(4, 2, 16)}, r"k: expected shape \[t, h, d\] = \['any', 2, 32\], got \[4, 2, 16\]"),
        ({"v": torch.zeros(3, 2, 32)}, r"v: expected shape"),
        ({"q": torch.zeros(4, 2, 32, dtype=torch.float64)}, "q: expected torch.bfloat16 or .*, got torch.float64"),
        ({"k": torch.zeros(4, 2, 32, dtype=torch.bfloat16)}, "k: expected torch.float32, got torch.bfloat16"),
        ({"q": torch.zeros(4, 32, 2).transpose(1, 2)}, "q: expected stride 1 in the last dimension, got 2"),
        ({"cu_q": torch.tensor([0, 4])}, "cu_q: expected torch.int32, got torch.int64"),
        ({"cu_q": torch.tensor([0], dtype=torch.int32)}, "cu_k: expected shape"),
    ],
    ids=["dim", "keys", "fp64", "mixed", "inner-stride", "int64", "requests"],
)
def test_misfits_are_refused(triton_operator, sums, device, change, message):
    fits = {name: torch.zeros(4, 2, 32) for name in "qkv"} | {"cu_q": sums(4), "cu_k": sums(4)}
    inputs = {name: tensor.to(device) for name, tensor in (fits | change).items()}
    with pytest.raises(ValueError, match=message):
        triton_operator("dense_mha")(**inputs, scale=1.0)
