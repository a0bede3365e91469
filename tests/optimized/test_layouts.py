"""The layout operators in torch and Triton: the reference's bits, refusals before anything is touched, far offsets."""

from __future__ import annotations

import pytest
import torch

from attnoracle import reference
from attnoracle.optimized.triton_runtime import availability
from attnoracle.oracle.case import Case
from attnoracle.oracle.check import check
from attnoracle.oracle.guests.known import find

OPERATORS = ("quantize", "write_cache", "write_index", "gather", "gather_index", "convert_indices", "build_mask")
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(name == "triton" and availability() is not None, reason="no Triton"))
    for name in ("torch", "triton")
]
INT32 = torch.int32


@pytest.fixture(params=[*BACKENDS, "reference"])
def operators(request):
    """The function of an operator, by name."""
    if request.param == "reference":
        return lambda name: getattr(reference, name)
    return lambda name: find(f"{name}/{request.param}").load()


def ints(*values: int, dtype: torch.dtype = INT32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def bytes_(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def paging(**changes) -> dict:
    return {"block_table": ints(0, 1).view(1, 2), "starts": ints(0), "cu_k": ints(0, 3), "tokens": 3} | changes


def row(**changes) -> dict:
    return {"latent": torch.ones(2, 128), "rope": torch.ones(2, 8), "slots": ints(0, 1, dtype=torch.int64)} | changes


REFUSED = {
    "a row of another size": ("write_cache", row(cache=bytes_(3, 4, 156), cache_format="fp8_ds_mla"), "148"),
    "floats for bytes": ("write_cache", row(cache=torch.zeros(3, 4, 148), cache_format="fp8_ds_mla"), "uint8"),
    "an unknown format": ("write_cache", row(cache=bytes_(3, 4, 136), cache_format="fp4"), "fp8_ds_mla"),
    "a k_scale of 0": ("write_cache", row(cache=bytes_(3, 4, 136), cache_format="fp8_e4m3", k_scale=0.0), "k_scale"),
    "a negative k_scale": (
        "write_cache",
        row(cache=bytes_(3, 4, 136), cache_format="fp8_e4m3", k_scale=-1.0),
        "positive finite number, got -1",
    ),
    "a k_scale of NaN": (
        "gather",
        paging(cache=bytes_(3, 4, 136), cache_format="fp8_e4m3", latent=128, rope=8, k_scale=float("nan")),
        "k_scale: expected a positive finite number, got nan",
    ),
    "an infinite k_scale": (
        "gather",
        paging(cache=bytes_(3, 4, 136), cache_format="fp8_e4m3", latent=128, rope=8, k_scale=float("inf")),
        "k_scale",
    ),
    "rows read with another size": (
        "gather",
        paging(cache=bytes_(3, 4, 150), cache_format="fp8_ds_mla", latent=128, rope=8),
        "148",
    ),
    "a page with a part of a token": ("gather_index", paging(pages=bytes_(3, 4 * 20 + 2), e=16), "20"),
    "a page written in part": (
        "write_index",
        {"k": torch.ones(2, 16), "slots": ints(0, 1, dtype=torch.int64), "pages": bytes_(3, 70)},
        "20",
    ),
    "a rule without a floor": ("quantize", {"x": torch.ones(2, 8), "block": 4}, "floor|positive"),
    "a negative floor": ("quantize", {"x": torch.ones(2, 8), "block": 4, "least_amax": -1.0}, "floor|positive"),
    "an unknown scale": ("quantize", {"x": torch.ones(2, 8), "block": 4, "scale_format": "e5m2"}, "scale_format"),
    "a block that does not divide": ("quantize", {"x": torch.ones(2, 8), "block": 3, "least_amax": 1.0}, "block"),
    "exponents in a row of fp32": (
        "write_cache",
        row(cache=bytes_(3, 4, 148), cache_format="fp8_ds_mla", scale_format="ue8m0"),
        "scale_format",
    ),
    "a cache beyond int32": (
        "convert_indices",
        {"indices": ints(0).view(1, 1), "requests": ints(0), "block_table": ints(0).view(1, 1), "block_size": 64}
        | {"blocks": 2**25 + 1, "page_rows": 64},
        "int32",
    ),
    "pages that overlap": (
        "convert_indices",
        {"indices": ints(0).view(1, 1), "requests": ints(0), "block_table": ints(0).view(1, 1), "block_size": 64}
        | {"blocks": 4, "page_rows": 32},
        "page_rows",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_input_is_refused_before_anything_is_written(operators, what):
    name, call, words = REFUSED[what]
    kept = {key: value.clone() for key, value in call.items() if isinstance(value, torch.Tensor)}
    with pytest.raises(ValueError, match=words):
        operators(name)(**call)
    assert all(torch.equal(call[key], value) for key, value in kept.items())


@pytest.mark.skipif(availability() is not None, reason="no Triton")
def test_bytes_that_are_not_aligned_are_refused():
    pages = bytes_(1 + 3 * 80)[1:].view(3, 80)
    call = paging(pages=pages, e=16)
    with pytest.raises(ValueError, match="pages: expected scales aligned to 4 bytes, got an address = 1 mod 4"):
        find("gather_index/triton").load()(**call)
    (k, _), (expected, _) = find("gather_index/torch").load()(**call), reference.gather_index(**call)
    assert torch.equal(k.view(torch.uint8), expected.view(torch.uint8)), "plain torch reads any bytes"


def test_what_a_block_table_does_not_reach_is_zero_and_nothing_is_read_there(operators):
    cache = torch.arange(1, 9, dtype=torch.float32).view(2, 4, 1).bfloat16()
    call = paging(block_table=ints(1, 2**31 - 1, -(2**31)).view(1, 3), cu_k=ints(0, 14), tokens=14)
    (rows,) = operators("gather")(cache=cache, **call, latent=1, rope=0, cache_format="model")
    assert rows[:, 0].tolist() == [5, 6, 7, 8] + [0] * 10


def test_indices_of_another_space_become_invalid(operators):
    """Rows of the cache handed in as positions: beyond what the table reaches they are -1, never wrapped."""
    table = ints(3, 1).view(1, 2)
    indices = ints(0, 7, 8, 2**31 - 1, 2**30, -(2**31)).view(1, 6)
    physical, counts = operators("convert_indices")(
        indices, ints(0), table, block_size=4, blocks=4, page_rows=4, compact=False
    )
    assert physical.tolist() == [[12, 7, -1, -1, -1, -1]] and counts.tolist() == [2]


def test_nothing_to_do_is_done(operators):
    empty = torch.zeros(0, 128)
    codes, scales = operators("quantize")(empty, block=128, least_amax=1e-4)
    assert codes.shape == (0, 128) and scales.shape == (0, 1)
    cache = bytes_(3, 4, 148)
    none = ints(dtype=torch.int64)
    assert operators("write_cache")(empty, torch.zeros(0, 8), none, cache, cache_format="fp8_ds_mla") == ()
    call = paging(block_table=torch.zeros(1, 0, dtype=INT32), cu_k=ints(0, 0), tokens=0)
    assert operators("gather")(cache, **call, latent=128, rope=8, cache_format="fp8_ds_mla")[0].shape == (0, 136)
    (mask,) = operators("build_mask")(torch.zeros(0, 5, dtype=INT32), ints(0, 0), ints(0), ints(9), rows=2, words=1)
    assert mask.tolist() == [[[0], [0]]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "id_",
    [
        "write_cache:deepseek-v3.2:h1:q3,9:k40,70:bf16:randn:strided:fp8_ds_mla+hugerows:s0",
        "write_cache:deepseek-v3.2:h1:q3:k40:bf16:randn:contiguous:hugerows:s0",
        "write_index:deepseek-v3.2:h1:q3,9:k40,70:bf16:randn:offset:hugerows:s0",
        "gather:deepseek-v3.2:h1:q1,1:k40,70:bf16:randn:strided:fp8_e4m3+hugerows:s0",
        "gather:deepseek-v3.2:h1:q1,1:k40,70:bf16:randn:strided:fp8_ds_mla+hugerows+page-16:s0",
        "gather_index:deepseek-v3.2:h1:q1,1:k40,70:bf16:randn:strided:hugerows:s0",
    ],
)
def test_caches_past_element_2_to_the_31(backend, id_):
    case = Case.parse(id_)
    verdict = check(case, find(f"{case.operator}/{backend}"))
    assert verdict.status == "PASS", verdict.reason


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operator", ["convert_indices", "build_mask"])
def test_index_rows_past_element_2_to_the_31(backend, operator, far_rows, device):
    """Rows of indices and of the block table so far apart that their offsets need 64 bits."""
    if device.type == "cuda":
        pytest.skip("gigabytes of real memory; the CPU covers the offsets")
    indices = torch.tensor([[0, 5, -1, 9], [3, 3, 0, 1], [7, 2, 40, 0]], dtype=INT32)
    function = find(f"{operator}/{backend}").load()
    if operator == "build_mask":
        call = {"cu_q": ints(0, 1, 3), "starts": ints(0, 1), "lengths": ints(10, 5), "rows": 2, "words": 1}
        assert torch.equal(function(far_rows(indices), **call)[0], reference.build_mask(indices, **call)[0])
        return
    table = torch.tensor([[5, 1, 0], [2, 7, 3], [4, 6, 8]], dtype=INT32)
    call = {"requests": ints(2, 0, 1), "block_size": 4, "blocks": 9, "page_rows": 4}
    far = (
        function(far_rows(indices), block_table=far_rows(table), **call)
        if backend == "triton"
        else function(far_rows(indices), block_table=table, **call)
    )
    assert torch.equal(far[0], reference.convert_indices(indices, block_table=table, **call)[0])
