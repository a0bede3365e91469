"""What a contract says about quantised caches decides: formats of dequantised values and of probabilities."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnoracle.optimized.contract import UNIT_ROUNDOFF, Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.oracle.guests.known import find
from attnoracle.oracle.judge.formats import rounded
from attnoracle.reference import sparse_mqa
from attnoracle.reference.layouts import decode_mla_rows

MLA = Case.parse("sparse_mqa:deepseek-v3.2:h16:q6:k200:top96:bf16:randn:contiguous:ds-mla:s1")
PLAIN = Case.parse("sparse_mqa:deepseek-v3.2:h16:q6:k200:top96:e4m3:randn:contiguous:-:s1")


def rounding(dtype: torch.dtype, *, cut: bool = False, scores: float = 1.0, size: float = 1.0):
    """The reference on keys that were rounded to ``dtype`` (``cut``: truncated) after they were decoded."""

    def kernel(q, kv, indices, *, cache_format, value_dim, scale, **options):
        keys = decode_mla_rows(kv, latent=value_dim)
        keys = (keys.view(torch.int32) & -(2**16)).view(torch.float32) if cut else keys.to(dtype)
        out, lse = sparse_mqa(q.double(), keys.double(), indices, value_dim=value_dim, scale=scale * scores, **options)
        return (out * size).bfloat16(), lse.float()

    return kernel


def verdict(case: Case, kernel, **contract):
    declared = Contract(probabilities="fp32", **contract)
    return check(case, Implementation("sparse_mqa/mine", declared, lambda facts: None, lambda: kernel))


@pytest.mark.parametrize(
    ("dtype", "declared", "status"),
    [
        (torch.float32, None, "PASS"),
        (torch.bfloat16, "bf16", "PASS"),
        (torch.float16, "fp16", "PASS"),
        (torch.bfloat16, None, "FAIL"),
        (torch.bfloat16, "fp16", "FAIL"),
        (torch.float8_e5m2, "bf16", "FAIL"),
    ],
    ids=str,
)
def test_rounding_of_dequantised_values_has_to_be_declared(dtype, declared, status):
    assert verdict(MLA, rounding(dtype), dequantised=declared).status == status


@pytest.mark.parametrize("wrong", [{"cut": True}, {"scores": 1 + 1e-4}, {"size": 1.003}], ids=str)
def test_a_declared_rounding_hides_nothing_else(wrong):
    """It is known element by element, so the truth has it; a variance for it let scores be off by half a percent."""
    assert verdict(MLA, rounding(torch.bfloat16, **wrong), dequantised="bf16").status == "FAIL"


@pytest.mark.parametrize("fmt", ["tf32", "fp22"])
def test_formats_without_a_dtype_are_rounded_to_nearest_even(fmt):
    unit = UNIT_ROUNDOFF[fmt]
    given = torch.tensor([1.0, 1 + unit, 1 + 3 * unit, 1 + 1.01 * unit, -1 - 0.99 * unit, 2 - unit / 4, torch.inf])
    wanted = [1.0, 1.0, 1 + 4 * unit, 1 + 2 * unit, -1.0, 2.0, torch.inf]
    assert rounded(given, fmt).tolist() == wanted


def test_probabilities_in_e4m3_have_to_be_declared():
    kernel = find("sparse_mqa/gather-fp8")
    assert check(PLAIN, kernel).status == "PASS"
    assert check(PLAIN, replace(kernel, contract=Contract())).status == "FAIL"


def test_a_declared_format_of_dequantised_values_widens_nothing_on_a_plain_cache():
    kernel = find("sparse_mqa/gather")
    told = replace(kernel, contract=replace(kernel.contract, dequantised="bf16"))
    assert check(PLAIN, told).measures == check(PLAIN, kernel).measures


@pytest.mark.parametrize(
    "fields",
    [{"probability_scale": 0.0}, {"probability_scale": float("inf")}, {"head_multiple": 0}, {"dequantised": "x"}],
)
def test_a_contract_that_cannot_be_is_refused(fields):
    with pytest.raises(ValueError, match="contract field"):
        Contract(**fields)
