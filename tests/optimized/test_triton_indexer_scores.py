"""Indexer scores on Triton against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from attnoracle.reference.indexer_scores import indexer_scores as reference

U32 = 2.0**-24


@pytest.fixture
def windows(device):
    def random(s: int, t: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        ends = torch.randint(0, t + 1, (2, s), generator=torch.Generator().manual_seed(seed)).sort(0).values
        return tuple(ends.to(torch.int32).to(device))

    return random


@pytest.fixture
def check(triton_operator, assert_within):
    function = triton_operator("indexer_scores")

    def run(q, k, k_scale, weights, ks, ke):
        (got,) = function(q, k, k_scale, weights, ks, ke)
        assert got.dtype == torch.float32 and got.shape == (q.size(0), k.size(0))
        wide = [x.float().double() for x in (q, k, k_scale, weights)]
        (expected,) = reference(*wide, ks, ke)
        # Every product and every sum rounds once: at most e + i + 3 roundings of the sum of magnitudes.
        magnitude = torch.einsum("sie,te->sit", wide[0].abs(), wide[1].abs())
        magnitude = torch.einsum("si,sit->st", wide[3].abs(), magnitude) * wide[2].abs()
        assert_within(got, expected, (q.size(2) + q.size(1) + 4) * U32 * magnitude.nan_to_num())
        return got

    return run


def draw_inputs(draw, s, t, i, e, dtype):
    q, k = draw(s, i, e, seed=1), draw(t, e, seed=2)
    return q.to(dtype), k.to(dtype), draw(t, seed=3).abs(), draw(s, i, seed=4)


DTYPES = [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("i", "e"), [(8, 128), (1, 16), (3, 40)], ids=["e128", "one-head", "odd"])
def test_dtypes_and_dims(check, draw, windows, dtype, i, e):
    check(*draw_inputs(draw, 70, 261, i, e, dtype), *windows(70, 261))


@pytest.mark.parametrize("t", [1, 127, 128, 129, 255, 256, 257])
@pytest.mark.parametrize("s", [1, 63, 64, 65])
def test_sizes_around_tiles(check, draw, windows, s, t):
    check(*draw_inputs(draw, s, t, 2, 16, torch.bfloat16), *windows(s, t))


def test_empty_and_full_windows(check, draw):
    inputs = draw_inputs(draw, 6, 300, 2, 32, torch.bfloat16)
    ks = torch.tensor([0, 299, 300, 7, 10, 0], dtype=torch.int32, device=inputs[0].device)
    ke = torch.tensor([300, 300, 300, 7, 3, 0], dtype=torch.int32, device=inputs[0].device)
    scores = check(*inputs, ks, ke)
    assert (scores.isfinite().sum(1).cpu() == torch.tensor([300, 1, 0, 0, 0, 0])).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_nothing_outside_a_window_matters(check, draw, dtype):
    q, k, k_scale, weights = draw_inputs(draw, 5, 300, 2, 32, torch.float32)
    k[:20], k[290:], k_scale[:20], k_scale[290:] = torch.nan, torch.nan, torch.nan, torch.inf
    ks = torch.full((5,), 20, dtype=torch.int32, device=q.device)
    scores = check(q.to(dtype), k.to(dtype), k_scale, weights, ks, ks + 270)
    assert scores[:, 20:290].isfinite().all()


@pytest.mark.parametrize("columns", [300, 305])
def test_compressed_rows_are_the_windows_pushed_to_the_left(triton_operator, draw, windows, columns):
    inputs, (ks, ke) = draw_inputs(draw, 70, 300, 3, 32, torch.float8_e4m3fn), windows(70, 300)
    function = triton_operator("indexer_scores")
    (whole,), (short,) = function(*inputs, ks, ke), function(*inputs, ks, ke, max_seqlen_k=columns)
    assert short.shape == (70, columns)
    for row, start, stop in zip(range(70), ks.tolist(), ke.tolist(), strict=True):
        assert torch.equal(short[row, : stop - start], whole[row, start:stop])
        assert (short[row, stop - start :] == -torch.inf).all()


def test_query_scales_multiply_the_weights(triton_operator, draw, windows, device):
    q, k, k_scale, weights = draw_inputs(draw, 70, 90, 3, 32, torch.float8_e4m3fn)
    exact = 2.0 ** torch.randint(-3, 4, (70, 6), generator=torch.Generator().manual_seed(1)).to(device)
    function = triton_operator("indexer_scores")
    (apart,) = function(q, k, k_scale, weights, *windows(70, 90), q_scale=exact[:, :3])
    (folded,) = function(q, k, k_scale, weights * exact[:, :3], *windows(70, 90))
    assert torch.equal(apart, folded)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seqlen_k": 2}, "max_seqlen_k: expected at least 3, the longest window, got 2"),
        ({"q_scale": torch.zeros(3, 4)}, "q_scale: expected finite scales above 0, got 0.0"),
        ({"q_scale": torch.ones(3, 2)}, r"q_scale: expected shape \[s, i\] = \[3, 4\]"),
    ],
    ids=["no-room", "zero", "shape"],
)
def test_options_that_do_not_fit_are_refused(triton_operator, draw, device, options, message):
    ks = torch.zeros(3, dtype=torch.int32, device=device)
    options = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    if device.type == "cuda" and "shape" not in message:
        pytest.skip("values are looked at on the CPU alone")
    with pytest.raises(ValueError, match=message):
        triton_operator("indexer_scores")(*draw_inputs(draw, 3, 6, 4, 16, torch.bfloat16), ks, ks + 3, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_nan_inside_a_window_is_seen(triton_operator, draw, dtype):
    q, k, k_scale, weights = draw_inputs(draw, 5, 30, 2, 32, torch.float32)
    k[7, 3] = torch.nan
    ks = torch.zeros(5, dtype=torch.int32, device=q.device)
    (scores,) = triton_operator("indexer_scores")(q.to(dtype), k.to(dtype), k_scale, weights, ks, ks + 30)
    assert scores[:, 7].isnan().all() and scores.isnan().sum() == 5


def test_every_e4m3_value_is_exact(triton_operator, device):
    """One head, one-hot queries: the scores are the relu of every finite code."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    q = torch.eye(16)[:1, None].to(torch.float8_e4m3fn)
    k = torch.zeros(256, 16).to(torch.float8_e4m3fn)
    k[:, 0] = codes
    one, zero = torch.ones(256), torch.zeros(1, dtype=torch.int32)
    inputs = [x.to(device) for x in (q, k, one, torch.ones(1, 1), zero, zero + 256)]
    (scores,) = triton_operator("indexer_scores")(*inputs)
    assert torch.equal(scores[0].cpu().nan_to_num(nan=-7.0), codes.float().relu().nan_to_num(nan=-7.0))


def test_strides_and_rows_beyond_two_to_the_31(check, draw, windows, far_rows):
    q, k, k_scale, weights = draw_inputs(draw, 3, 3, 4, 16, torch.float8_e4m3fn)
    head_major = q.view(torch.uint8).transpose(0, 1).contiguous().transpose(0, 1)
    assert head_major.stride() != q.stride()
    k = far_rows(k.view(torch.uint8)).view(torch.float8_e4m3fn)
    check(head_major.view(torch.float8_e4m3fn), k, k_scale, weights, *windows(3, 3))


@pytest.mark.parametrize(("s", "t"), [(0, 5), (5, 0)])
def test_no_tokens(triton_operator, draw, windows, s, t):
    (scores,) = triton_operator("indexer_scores")(*draw_inputs(draw, s, t, 2, 16, torch.bfloat16), *windows(s, t))
    assert scores.shape == (s, t)


def test_misfits_are_refused(triton_operator, draw, windows):
    q, k, k_scale, weights = draw_inputs(draw, 3, 6, 4, 16, torch.bfloat16)
    function = triton_operator("indexer_scores")
    with pytest.raises(ValueError, match=r"k: expected torch.bfloat16, got torch.float8_e4m3fn"):
        function(q, k.to(torch.float8_e4m3fn), k_scale, weights, *windows(3, 6))
    with pytest.raises(ValueError, match=r"weights: expected shape \[s, i\] = \[3, 4\], got \[3, 2\]"):
        function(q, k, k_scale, weights[:, :2], *windows(3, 6))
