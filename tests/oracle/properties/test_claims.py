"""What a claim says about two tensors: NaN is never close to a number, nothing may differ where nothing is allowed."""

import math

import pytest
import torch

from attnoracle.oracle.properties.claim import near, same

NAN = math.nan


@pytest.mark.parametrize(
    ("got", "want", "allowed", "ratio"),
    [
        ([1.0], [1.0], 0.0, 0.0),
        ([1.0], [1.5], 1.0, 0.5),
        ([1.0], [3.0], 1.0, 2.0),
        ([1.0], [1.5], 0.0, math.inf),
        ([NAN], [1.0], 1.0, math.inf),
        ([1.0], [NAN], 1.0, math.inf),
        ([NAN], [NAN], 0.0, 0.0),
        ([-math.inf], [-math.inf], 0.0, 0.0),
        ([-math.inf], [5.0], 1.0, math.inf),
        ([], [], 0.0, 0.0),
    ],
)
def test_how_far_apart(got, want, allowed, ratio):
    claim = near("x", torch.tensor(got), torch.tensor(want), allowed)
    assert claim.worst() == ratio
    if ratio == math.inf:
        assert "1 of 1 elements differ" in claim.told()


def test_bits():
    codes = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    assert same("codes", codes, codes).worst() == 0.0
    assert same("codes", codes, codes[[1, 0]]).worst() == math.inf
    assert same("out", torch.zeros(2), torch.zeros(3)).worst() == math.inf
    assert "expected [3]" in same("out", torch.zeros(2), torch.zeros(3)).told()
