"""What a contract says about quantised caches decides: formats of dequantised values and of probabilities."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnoracle.optimized.catalogue import IMPLEMENTATIONS
from attnoracle.optimized.contract import Contract
from attnoracle.optimized.implementation import Implementation
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.reference import sparse_mqa
from attnoracle.reference.layouts import decode_mla_rows

MLA = Case.parse("sparse_mqa:deepseek-v3.2:h16:q6:k200:top96:bf16:randn:contiguous:ds-mla:s1")
PLAIN = Case.parse("sparse_mqa:deepseek-v3.2:h16:q6:k200:top96:e4m3:randn:contiguous:-:s1")
BY_NAME = {one.name: one for one in IMPLEMENTATIONS}


def rounding(dtype: torch.dtype):
    """The reference on keys that were rounded to ``dtype`` after they were decoded."""

    def kernel(q, kv, indices, *, cache_format, value_dim, **options):
        keys = decode_mla_rows(kv, latent=value_dim).to(dtype).double()
        out, lse = sparse_mqa(q.double(), keys, indices, value_dim=value_dim, **options)
        return out.bfloat16(), lse.float()

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


def test_probabilities_in_e4m3_have_to_be_declared():
    kernel = BY_NAME["sparse_mqa/gather-fp8"]
    assert check(PLAIN, kernel).status == "PASS"
    assert check(PLAIN, replace(kernel, contract=Contract())).status == "FAIL"


def test_a_declared_format_of_dequantised_values_widens_nothing_on_a_plain_cache():
    kernel = BY_NAME["sparse_mqa/gather"]
    told = replace(kernel, contract=replace(kernel.contract, dequantised="bf16"))
    assert check(PLAIN, told).measures == check(PLAIN, kernel).measures


@pytest.mark.parametrize(
    "fields",
    [{"probability_scale": 0.0}, {"probability_scale": float("inf")}, {"head_multiple": 0}, {"dequantised": "x"}],
)
def test_a_contract_that_cannot_be_is_refused(fields):
    with pytest.raises(ValueError, match="contract field"):
        Contract(**fields)
