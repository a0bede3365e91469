"""Both formulations of the layout operators give the same bits, and what is written is what is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnoracle import reference
from attnoracle.reference import layouts, second
from attnoracle.reference.second import (
    build_mask,
    convert_indices,
    float8,
    gather,
    gather_index,
    quantize,
    write_cache,
    write_index,
)

few = settings(derandomize=True, deadline=None, max_examples=25)
seeds = st.integers(0, 999)
sizes = st.sampled_from([1, 2, 3, 16])
RULES = [("pow2", 1e-4, 0.0), ("pow2", 1e-10, 0.0), ("pow2", 0.0, 1e-4), ("fp32", 1e-4, 0.0), ("ue8m0", 1e-10, 0.0)]


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Values over many magnitudes, as fp32 in fp64: zeros, edges of the format, halves between codes among them."""
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, (*shape[:-1], 1))
    special = rng.choice([0.0, -0.0, 448.0, 464.0, 336.0, 1.0625, 2.0**-10, 1.1875, np.nextafter(1.0625, 2)], shape)
    values = np.where(rng.random(shape) < 0.3, special * 2.0 ** rng.integers(-3, 4, (*shape[:-1], 1)), values)
    values[rng.random(shape[:-1]) < 0.2] = 0.0
    return values.astype(np.float32).astype(np.float64)


def strange(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    return np.where(rng.random(values.shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf], values.shape), values)


def same_codes(first: torch.Tensor, expected: np.ndarray) -> bool:
    """Equal codes, the two codes of NaN counting as one."""
    a, b = first.view(torch.uint8).numpy(), np.asarray(expected)
    return a.shape == b.shape and bool(np.all((a == b) | ((a & 127 == 127) & (b & 127 == 127))))


def paged(rng: np.random.Generator, blocks: int, size: int) -> dict[str, np.ndarray]:
    """A block table with pages outside the cache, chunk starts, and prefix sums of three requests."""
    most = 4
    table = rng.permutation(max(blocks, 3 * most))[: 3 * most].reshape(3, most)
    table = np.where(rng.random(table.shape) < 0.2, rng.choice([-1, blocks, 2**31 - 1], table.shape), table)
    lengths = rng.integers(0, 3 * size + 2, 3)
    return {
        "block_table": table.astype(np.int32),
        "starts": rng.integers(0, 2 * size, 3).astype(np.int32),
        "cu_k": np.cumsum([0, *lengths]).astype(np.int32),
    }


def test_codes_of_every_fp32_exponent_and_midpoint():
    bits = torch.arange(0, 2**31, 2**19 - 1, dtype=torch.int64).to(torch.int32)
    values = torch.cat((bits.view(torch.float32), -bits.view(torch.float32)))
    middles = torch.from_numpy((float8.VALUES[1:] + float8.VALUES[:-1]) / 2).float()
    beside = (middles.view(torch.int32)[:, None] + torch.tensor([-1, 0, 1])).to(torch.int32).view(torch.float32)
    for some in (values, beside, -beside):
        assert same_codes(layouts.encode_e4m3(some), float8.encode(some.double().numpy()))


def test_decoded_codes():
    codes = np.arange(256).astype(np.uint8)
    assert np.array_equal(layouts.decode_e4m3(torch.from_numpy(codes)).numpy(), float8.decode(codes), equal_nan=True)


@few
@given(s=st.integers(0, 5), block=st.sampled_from([1, 3, 8]), rule=st.sampled_from(RULES), seed=seeds)
def test_quantize(s, block, rule, seed):
    rng = np.random.default_rng(seed)
    x = strange(rng, drawn(rng, s, 3 * block))
    call = dict(zip(("scale_format", "least_amax", "least_scale"), rule, strict=True))
    codes, scales = reference.quantize(torch.from_numpy(x).float(), block=block, **call)
    expected = quantize.quantize(x, block=block, **call)
    assert same_codes(codes, expected[0])
    assert np.array_equal(scales.numpy(), expected[1]) and scales.numpy().dtype == expected[1].dtype


@pytest.mark.parametrize("cache_format", layouts.CACHE_FORMATS)
@few
@given(size=sizes, rope=st.sampled_from([0, 2, 5]), latent=st.sampled_from([8, 256]), seed=seeds)
def test_writing_and_reading_a_latent_cache(cache_format, size, rope, latent, seed):
    rng = np.random.default_rng(seed)
    blocks, s = 5, 4
    width = layouts.row_width(cache_format, latent, rope)
    values = drawn(rng, s, latent + rope)
    slots = rng.permutation(blocks * size + 3)[:s] - 1 if blocks * size > s else np.array([0, -1, 3, 99])
    call = {"cache_format": cache_format, "k_scale": 0.7, "scale_format": rng.choice(["fp32", "pow2"])}
    if cache_format == "model":
        before = float8.bf16(rng.standard_normal((blocks, size, width)))
        cache = torch.from_numpy(before).bfloat16()
    else:
        before = rng.integers(0, 256, (blocks, size, width)).astype(np.uint8)
        cache = torch.from_numpy(before.copy())
    parts = torch.from_numpy(values).float().split((latent, rope), 1)
    assert reference.write_cache(*parts, torch.from_numpy(slots), cache, **call) == ()
    after = write_cache.write_cache(values[:, :latent], values[:, latent:], slots, before, **call)
    found = cache.double().numpy() if cache_format == "model" else cache.numpy()
    assert np.array_equal(found, after)

    where = paged(rng, blocks, size)
    tokens = int(where["cu_k"][-1])
    shape = {"tokens": tokens, "latent": latent, "rope": rope, "cache_format": cache_format, "k_scale": 0.7}
    tensors = {name: torch.from_numpy(x) for name, x in where.items()}
    (rows,) = reference.gather(cache, **tensors, **shape)
    assert rows.dtype == torch.bfloat16
    assert np.array_equal(rows.double().numpy(), gather.gather(found, **where, **shape), equal_nan=True)


@few
@given(size=sizes, e=st.sampled_from([1, 8, 128]), rule=st.sampled_from(["fp32", "pow2"]), seed=seeds)
def test_writing_and_reading_the_indexers_cache(size, e, rule, seed):
    rng = np.random.default_rng(seed)
    blocks, s = 4, 5
    keys, slots = drawn(rng, s, e), rng.permutation(blocks * size + s)[:s] - 1
    before = rng.integers(0, 256, (blocks, size * (e + 4))).astype(np.uint8)
    pages = torch.from_numpy(before.copy())
    reference.write_index(torch.from_numpy(keys).float(), torch.from_numpy(slots), pages, scale_format=rule)
    assert np.array_equal(pages.numpy(), write_index.write_index(keys, slots, before, scale_format=rule))

    where = paged(rng, blocks, size)
    shape = {"tokens": int(where["cu_k"][-1]), "e": e}
    k, scale = reference.gather_index(pages, **{name: torch.from_numpy(x) for name, x in where.items()}, **shape)
    expected = gather_index.gather_index(pages.numpy(), **where, **shape)
    assert np.array_equal(k.view(torch.uint8).numpy(), expected[0])
    assert np.array_equal(scale.view(torch.int32).numpy(), expected[1].view(np.int32))


@few
@given(size=sizes, k=st.integers(0, 7), compact=st.booleans(), far=st.booleans(), seed=seeds)
def test_converting_indices(size, k, compact, far, seed):
    rng = np.random.default_rng(seed)
    blocks = 2**31 // (size + 1) if far else 20
    table = paged(rng, 20, size)["block_table"]
    table = np.where((table >= 0) & far, table + blocks - 20, table).astype(np.int32)
    call = {
        "indices": rng.integers(-3, 5 * size, (6, k)).astype(np.int32),
        "requests": rng.integers(-1, 4, 6).astype(np.int32),
        "block_table": table,
    }
    options = {"block_size": size, "blocks": blocks, "page_rows": size + 1, "compact": compact}
    first = reference.convert_indices(**{name: torch.from_numpy(x) for name, x in call.items()}, **options)
    for got, expected in zip(first, convert_indices.convert_indices(**call, **options), strict=True):
        assert got.dtype == torch.int32 and np.array_equal(got.numpy(), expected)


@few
@given(k=st.integers(0, 9), chunk=st.booleans(), keyed=st.booleans(), seed=seeds)
def test_building_masks(k, chunk, keyed, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 100, 3).astype(np.int32)
    call = {
        "indices": rng.integers(-5, 120, (7, k)).astype(np.int32),
        "cu_q": np.array([0, 4, 4, 7], dtype=np.int32),
        "starts": (rng.integers(0, 50, 3) if chunk else np.zeros(3)).astype(np.int32),
        "lengths": lengths,
    }
    if keyed:
        call["key_starts"] = rng.integers(0, 2**31, 3).astype(np.int32)
    (mask,) = reference.build_mask(**{name: torch.from_numpy(x) for name, x in call.items()}, rows=5, words=6)
    assert np.array_equal(mask.numpy(), build_mask.build_mask(**call, rows=5, words=6))


@few
@given(seed=seeds, rule=st.sampled_from(RULES))
def test_dequantised_blocks_are_within_half_a_step_of_their_values(seed, rule):
    """Codes have three fraction bits: half a step is 1/16 of the value, and 2^-10 scales near zero."""
    x = torch.from_numpy(drawn(np.random.default_rng(seed), 4, 8)).float()
    codes, stored = reference.quantize(
        x, block=8, **dict(zip(("scale_format", "least_amax", "least_scale"), rule, strict=True))
    )
    scale = (layouts.decode_ue8m0(stored) if stored.dtype == torch.uint8 else stored).double()
    error = (layouts.decode_e4m3(codes).double() * scale - x.double()).abs()
    assert bool((error <= torch.maximum(x.double().abs() / 16, scale * 2.0**-10) * (1 + 2.0**-20)).all())


@few
@given(seed=seeds, size=sizes, rule=st.sampled_from(["fp32", "pow2"]))
def test_writing_what_was_read_changes_nothing(seed, size, rule):
    """With power-of-two scales a row that is read and written again keeps its values, bit for bit."""
    rng = np.random.default_rng(seed)
    cache = torch.zeros(2, size, layouts.row_width("fp8_ds_mla", 256, 4), dtype=torch.uint8)
    slots = torch.arange(2 * size)
    values = torch.from_numpy(drawn(rng, 2 * size, 260)).float()
    options = {"cache_format": "fp8_ds_mla", "scale_format": rule}
    reference.write_cache(values[:, :256], values[:, 256:], slots, cache, **options)
    first = layouts.decode_mla_rows(cache.flatten(0, 1), latent=256)
    reference.write_cache(first[:, :256], first[:, 256:], slots, cache, **options)
    again = layouts.decode_mla_rows(cache.flatten(0, 1), latent=256)
    if rule == "pow2":
        assert torch.equal(again, first)
    else:
        assert torch.allclose(again, first, rtol=2.0**-3, atol=0)


@few
@given(seed=seeds, size=sizes)
def test_pages_may_lie_anywhere(seed, size):
    """Moving pages and renaming them in the block table changes nothing that is read."""
    rng = np.random.default_rng(seed)
    cache = torch.from_numpy(rng.integers(0, 256, (9, size, 12)).astype(np.uint8))
    table = torch.from_numpy(rng.permutation(9)[:6].reshape(2, 3).astype(np.int32))
    order = torch.from_numpy(rng.permutation(9))
    moved, renamed = torch.empty_like(cache), order[table.long()].int()
    moved[order] = cache
    tokens = 3 * size
    call = {"starts": torch.tensor([0, 1]), "cu_k": torch.tensor([0, 2 * size, tokens]), "tokens": tokens}
    call |= {"latent": 12, "rope": 0, "cache_format": "fp8_e4m3", "k_scale": 0.3}
    first, other = reference.gather(cache, table, **call)[0], reference.gather(moved, renamed, **call)[0]
    assert torch.equal(first.view(torch.int16), other.view(torch.int16))


def test_second_formulations_share_no_code():
    assert not any(hasattr(second, name) for name in ("torch", "layouts"))
