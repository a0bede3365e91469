"""Merging on Triton against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from attnoracle.reference.merge_lse import merge_lse as reference

U32 = 2.0**-24


@pytest.fixture
def check(triton_operator, assert_within):
    function = triton_operator("merge_lse")

    def run(out_a, lse_a, out_b, lse_b):
        out, lse = function(out_a, lse_a, out_b, lse_b)
        assert out.dtype == out_a.dtype and lse.dtype == torch.float32
        wide = [x.double() for x in (out_a, lse_a, out_b, lse_b)]
        expected = reference(*wide)
        absolute, _ = reference(wide[0].abs(), wide[1], wide[2].abs(), wide[3])
        unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: U32}[out_a.dtype]
        # Weights carry the rounding of the difference of two LSEs and an exp of relative error 2**-22.
        gap = (wide[1] - wide[3]).abs().nan_to_num(nan=0.0, posinf=0.0)
        eta = 2.0**-22 + (8 + gap) * U32
        bound = unit * expected[0].abs() + absolute * 2 * eta[..., None] + 2.0**-25 * (unit > U32)
        assert_within(out, expected[0], bound)
        assert_within(lse, expected[1], eta + 2 * U32 * expected[1].abs().nan_to_num(posinf=0.0))
        return out, lse

    return run


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("s", "h", "v"), [(33, 3, 128), (7, 2, 512), (1, 1, 1), (5, 1, 24)])
def test_shapes(check, draw, dtype, s, h, v):
    out_a, out_b = (draw(s, h, v, seed=seed, dtype=dtype) for seed in (1, 2))
    check(out_a, draw(s, h, seed=3) * 5, out_b, draw(s, h, seed=4) * 5)


def test_empty_sides(check, draw):
    out_a, out_b = draw(4, 2, 32, seed=1), draw(4, 2, 32, seed=2)
    lse_a, lse_b = draw(4, 2, seed=3), draw(4, 2, seed=4)
    lse_a[0], out_a[0] = -torch.inf, torch.nan
    lse_b[1], out_b[1] = -torch.inf, torch.inf
    lse_a[2], lse_b[2], out_a[2], out_b[2] = -torch.inf, -torch.inf, torch.nan, torch.nan
    out, lse = check(out_a, lse_a, out_b, lse_b)
    assert torch.equal(out[0], out_b[0]) and torch.equal(out[1], out_a[1])
    assert torch.equal(lse[0], lse_b[0]) and torch.equal(lse[1], lse_a[1])
    assert (out[2] == 0).all() and (lse[2] == -torch.inf).all()


@pytest.mark.parametrize("shift", [-3e4, -200.0, 200.0, 3e4])
def test_far_from_zero(check, draw, shift):
    out_a, out_b = draw(4, 2, 32, seed=1), draw(4, 2, 32, seed=2)
    check(out_a, draw(4, 2, seed=3) + shift, out_b, draw(4, 2, seed=4) + shift)


def test_one_side_far_heavier(check, draw):
    out_a, out_b = draw(4, 2, 32, seed=1), draw(4, 2, 32, seed=2)
    out, _ = check(out_a, draw(4, 2, seed=3) + 500, out_b, draw(4, 2, seed=4))
    assert torch.equal(out, out_a)


def test_strides_are_free(check, draw):
    out_a = draw(3, 5, 64, seed=1).transpose(0, 1)[:, :, 16:]
    out_b = draw(10, 3, 48, seed=2)[::2]
    check(out_a, draw(3, 5, seed=3).T, out_b, draw(5, 6, seed=4)[:, ::2])


def test_rows_beyond_two_to_the_31(check, draw, far_rows):
    out_a, out_b = (draw(3, 2, 16, seed=seed, dtype=torch.bfloat16) for seed in (1, 2))
    check(far_rows(out_a), draw(3, 2, seed=3), out_b, draw(3, 2, seed=4))


def test_misfits_are_refused(triton_operator, draw):
    out, lse = draw(3, 2, 16, seed=1), draw(3, 2, seed=2)
    function = triton_operator("merge_lse")
    with pytest.raises(ValueError, match=r"lse_b: expected shape \[s, h\]"):
        function(out, lse, out, lse.T)
    with pytest.raises(ValueError, match=r"lse_a: expected torch.float32, got torch.float64"):
        function(out, lse.double(), out, lse)
