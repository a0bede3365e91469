"""Top-k selection on Triton: exactly the selection that a stable sort makes."""

from __future__ import annotations

import pytest
import torch


def expected(scores: torch.Tensor, ks: torch.Tensor, ke: torch.Tensor, k: int) -> torch.Tensor:
    """Ascending positions of the k highest scores, NaN first, ties to the lowest position."""
    rows = []
    for row, start, end in zip(scores.cpu(), ks.tolist(), ke.tolist(), strict=True):
        window = row[start : max(start, end)]
        chosen = window.argsort(descending=True, stable=True)[:k].sort().values
        rows.append(torch.cat((chosen, torch.full((k - len(chosen),), -1))))
    return torch.stack(rows).to(torch.int32)


@pytest.fixture
def check(triton_operator, device):
    function = triton_operator("topk_select")

    def run(scores, k, ks=None, ke=None):
        s, t = scores.shape
        ks = torch.tensor([0] * s if ks is None else ks, dtype=torch.int32, device=device)
        ke = torch.tensor([t] * s if ke is None else ke, dtype=torch.int32, device=device)
        (indices,) = function(scores, ks, ke, k=k)
        assert indices.dtype == torch.int32
        assert torch.equal(indices.cpu(), expected(scores, ks, ke, k))

    return run


@pytest.mark.parametrize("k", [1, 2, 63, 64, 65, 300, 699, 700, 701])
def test_any_k(check, draw, k):
    check(draw(3, 700, seed=1), k)


@pytest.mark.parametrize("t", [1, 2, 63, 64, 65, 1000, 4095, 4096, 4097, 9000])
def test_any_width(check, draw, t):
    check(draw(2, t, seed=1), max(1, t // 3))


@pytest.mark.parametrize(
    "values",
    [
        lambda x: x.round(),
        lambda x: x * 0,
        lambda x: 1 + x * 1e-6,
        lambda x: x * 1e-42,
        lambda x: -x.abs() * 1e38,
        lambda x: torch.where(x > 0.2, torch.inf, -torch.inf),
        lambda x: torch.where(x > 2.0, torch.nan, x),
        lambda x: torch.where(x > -1.0, torch.nan, x),
        lambda x: torch.where(x > 1.0, -torch.nan, torch.where(x > 0.0, torch.inf, x)),
        lambda x: x.sort().values,
        lambda x: x.sort(descending=True).values,
    ],
    ids=["ties", "all-equal", "clustered", "subnormal", "large-negative", "infinities", "some-nan", "most-nan",
         "nan-above-inf", "ascending", "descending"],
)  # fmt: skip
def test_values(check, draw, values):
    check(values(draw(3, 600, seed=1)), 100)


def test_both_zeros_are_equal(check, device):
    scores = torch.tensor([[-0.0, 0.0, -0.0, -1.0, 0.0, -0.0, 0.0, 1.0]], device=device)
    for k in range(1, 8):
        check(scores, k)


def test_ties_at_the_threshold_across_tiles(check, draw):
    scores = draw(2, 9000, seed=1).clamp(max=1.0)
    check(scores, 1200)
    check(scores, 1600)


def test_windows(check, draw):
    """Windows of k - 1, k and k + 1 columns, empty and reversed ones; everything outside is NaN or inf."""
    scores = draw(6, 500, seed=1)
    ks, ke = [3, 3, 3, 200, 9, 0], [102, 103, 104, 500, 9, 500]
    outside = scores.clone()
    for row, (start, end) in enumerate(zip(ks, ke, strict=True)):
        outside[row, :start], outside[row, end:] = torch.nan, torch.inf
    check(outside, 100, ks, ke)
    check(outside[:1], 100, [50], [20])


def test_short_windows_are_not_read(check, draw):
    scores = draw(2, 40, seed=1) * torch.nan
    check(scores, 64)
    check(scores, 40, [0, 7], [40, 20])


def test_rows_beyond_two_to_the_31(check, draw, far_rows):
    check(far_rows(draw(3, 100, seed=1)), 10)


def test_no_rows_and_no_columns(triton_operator, draw, device):
    function = triton_operator("topk_select")
    nothing = torch.zeros(0, dtype=torch.int32, device=device)
    assert function(draw(0, 9, seed=1), nothing, nothing, k=4)[0].shape == (0, 4)
    zeros = torch.zeros(3, dtype=torch.int32, device=device)
    assert (function(draw(3, 0, seed=1), zeros, zeros, k=4)[0] == -1).all()


def test_misfits_are_refused(triton_operator, draw, device):
    zeros = torch.zeros(3, dtype=torch.int32, device=device)
    function = triton_operator("topk_select")
    with pytest.raises(ValueError, match=r"scores: expected torch.float32, got torch.bfloat16"):
        function(draw(3, 9, seed=1, dtype=torch.bfloat16), zeros, zeros, k=4)
    with pytest.raises(ValueError, match="k: expected at least 1, got 0"):
        function(draw(3, 9, seed=1), zeros, zeros, k=0)
