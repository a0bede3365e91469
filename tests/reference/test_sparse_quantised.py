"""Sparse MQA on quantised caches: both formulations, a row made by hand, pages, and what is refused."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnoracle import reference
from attnoracle.reference.second import sparse_mqa as second

few = settings(derandomize=True, deadline=None, max_examples=30)
FORMATS = ("fp8_e4m3", "fp8_ds_mla")


def call(seed: int, cache_format: str, *, tiles: int = 2, rope: int = 6, rows: int = 9, pages: bool = False) -> dict:
    """Random finite bytes; some indices are invalid, some stand twice."""
    rng = np.random.default_rng(seed)
    c = 128 * tiles if tiles > 1 else 24
    codes = rng.integers(0, 256, (rows, c + (rope if cache_format == "fp8_e4m3" else 0))).astype(np.uint8)
    codes[codes % 128 == 127] = 0x38
    if cache_format == "fp8_ds_mla":
        scales = (2.0 ** rng.integers(-9, -5, (rows, tiles)) * rng.uniform(1, 2, (rows, tiles))).astype(np.float32)
        halves = (rng.standard_normal((rows, rope)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        codes = np.concatenate((codes, scales.view(np.uint8), halves.view(np.uint8)), 1)
    made = {
        "q": rng.standard_normal((3, 2, c + rope)) / 4,
        "kv": codes.reshape(3, -1, codes.shape[1]) if pages else codes,
        "indices": rng.integers(-2, rows + 2, (3, 7)).astype(np.int32),
        "scale": 0.3,
        "value_dim": c,
        "cache_format": cache_format,
    }
    return made | ({"q_scale": 0.37, "k_scale": 0.013} if cache_format == "fp8_e4m3" else {})


@few
@given(cache_format=st.sampled_from(FORMATS), tiles=st.integers(1, 2), pages=st.booleans(), seed=st.integers(0, 999))
def test_both_formulations_agree(cache_format, tiles, pages, seed, tensors, agree):
    made = call(seed, cache_format, tiles=tiles, pages=pages)
    # The first formulation rounds a code times its scale to fp32, once.
    agree(reference.sparse_mqa(**tensors(made)), second.sparse_mqa(**made), relative=2e-6)


def test_a_hand_made_row():
    """Four codes 1, 2, -1, 0.5 (38 40 B8 30), the scale 0.75, two rotated dims 3 and -1.5 in bf16."""
    row = bytes.fromhex("3840B830") + struct.pack("<f", 0.75) + bytes.fromhex("4040C0BF")
    kv = torch.tensor(list(row), dtype=torch.uint8)[None]
    q = torch.tensor([[[1.0, 0.0, 0.0, 2.0, 1.0, 4.0]]], dtype=torch.float64)
    indices = torch.zeros(1, 1, dtype=torch.int32)
    out, lse = reference.sparse_mqa(q, kv, indices, scale=0.5, value_dim=4, cache_format="fp8_ds_mla")
    assert out.tolist() == [[[0.75, 1.5, -0.75, 0.375]]]
    assert lse.item() == 0.5 * (0.75 + 2 * 0.375 + 3.0 - 6.0)


def test_a_plain_row_has_both_scales_in_its_scores_and_one_in_its_values():
    kv = torch.tensor([[0x38, 0x40, 0xB8, 0x30]], dtype=torch.uint8)
    q = torch.tensor([[[1.0, 1.0, 1.0, 2.0]]], dtype=torch.float64)
    out, lse = reference.sparse_mqa(
        q, kv, torch.zeros(1, 1, dtype=torch.int32), scale=0.5, value_dim=3, cache_format="fp8_e4m3", q_scale=3.0,
        k_scale=0.25,
    )  # fmt: skip
    assert out.tolist() == [[[0.25, 0.5, -0.25]]]
    assert lse.item() == 0.5 * 3.0 * 0.25 * 3.0


@pytest.mark.parametrize("cache_format", FORMATS)
def test_pages_are_rows_one_after_another(cache_format, tensors):
    flat, paged = (tensors(call(5, cache_format, pages=pages)) for pages in (False, True))
    assert all(
        torch.equal(*pair) for pair in zip(reference.sparse_mqa(**flat), reference.sparse_mqa(**paged), strict=True)
    )


@pytest.mark.parametrize("cache_format", FORMATS)
def test_rows_nobody_names_may_hold_anything(cache_format, tensors):
    made = tensors(call(6, cache_format))
    before = reference.sparse_mqa(**made)
    named = torch.zeros(9, dtype=torch.bool)
    named[made["indices"][(made["indices"] >= 0) & (made["indices"] < 9)].long()] = True
    made["kv"][~named] = 0xFF
    assert not bool(named.all())
    assert all(torch.equal(*pair) for pair in zip(before, reference.sparse_mqa(**made), strict=True))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["q_scale", "k_scale"])
def test_a_scale_that_is_none_is_refused(name, scale, tensors):
    with pytest.raises(ValueError, match=f"{name}: expected a positive finite number, got {scale}"):
        reference.sparse_mqa(**tensors(call(1, "fp8_e4m3")) | {name: scale})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv": torch.zeros(9, 655, dtype=torch.uint8)}, r"kv: expected bytes \[n, 276\]"),
        ({"kv": torch.zeros(9, 276)}, r"kv: expected bytes .* got torch.float32"),
        ({"cache_format": "fp8"}, "cache_format: expected one of model, fp8_e4m3, fp8_ds_mla, got 'fp8'"),
        ({"cache_format": "fp8_e4m3"}, r"kv: expected bytes \[n, 262\]"),
    ],
    ids=["row-size", "dtype", "format", "other-format"],
)
def test_what_cannot_be_is_refused(change, message, tensors):
    with pytest.raises(ValueError, match=message):
        reference.sparse_mqa(**tensors(call(1, "fp8_ds_mla")) | change)
