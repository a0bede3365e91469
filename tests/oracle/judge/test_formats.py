"""Spacing of formats, against the neighbours that torch's own bit patterns name."""

import pytest
import torch

from attnoracle.optimized.contract import UNIT_ROUNDOFF
from attnoracle.oracle.judge.formats import SMALLEST_NORMAL, TORCH_DTYPE, format_of, half_ulp, rounded

SIXTEEN = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _finite(dtype: torch.dtype) -> torch.Tensor:
    """Every finite value >= 0 of a 16-bit format, ascending, as fp64."""
    values = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return values[values.isfinite()].double()


@pytest.mark.parametrize("name", SIXTEEN)
def test_half_ulp_is_half_the_distance_to_the_next_number(name):
    values = _finite(SIXTEEN[name])
    assert torch.equal(half_ulp(values[:-1], name), (values[1:] - values[:-1]) / 2)


@pytest.mark.parametrize("name", SIXTEEN)
def test_half_ulp_holds_between_two_numbers(name):
    values = _finite(SIXTEEN[name])
    middle = (values[1:] + values[:-1]) / 2
    assert torch.equal(half_ulp(middle, name), (values[1:] - values[:-1]) / 2)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_half_ulp_of_eight_bits(name):
    values = torch.arange(128, dtype=torch.uint8).view(TORCH_DTYPE[name]).double()
    values = values[values.isfinite()]
    assert torch.equal(half_ulp(values[:-1], name), (values[1:] - values[:-1]) / 2)


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_half_ulp_of_wide_formats_follows_nextafter(name):
    dtype = TORCH_DTYPE[name]
    values = torch.tensor([1.0, 1.5, 2.0, 3.0, 1e-3, 7e5, SMALLEST_NORMAL[name]], dtype=dtype)
    above = torch.nextafter(values, torch.tensor(torch.inf, dtype=dtype))
    assert torch.equal(half_ulp(values.double(), name), (above.double() - values.double()) / 2)


@pytest.mark.parametrize("name", TORCH_DTYPE)
def test_rounding_errs_by_half_an_ulp_at_most(name):
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    error = (rounded(values, name) - values).abs()
    assert bool((error <= half_ulp(values.abs(), name)).all())
    assert (float(error.max()) > 0) == (name != "fp64")


@pytest.mark.parametrize("name", TORCH_DTYPE)
def test_unit_roundoff_is_half_an_ulp_of_one(name):
    one = torch.ones((), dtype=torch.float64)
    assert float(half_ulp(one, name)) == UNIT_ROUNDOFF[name]


def test_names_of_dtypes():
    assert [format_of(dtype) for dtype in TORCH_DTYPE.values()] == list(TORCH_DTYPE)
    with pytest.raises(ValueError, match=r"dtype: expected one of .*, got torch.int32"):
        format_of(torch.int32)
