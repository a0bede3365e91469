"""Both formulations of the other operators give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnoracle import reference
from attnoracle.reference.second import indexer_scores, merge_lse, mla, rope, topk_select

few = settings(derandomize=True, deadline=None, max_examples=60)
seeds = st.integers(0, 999)


def windows(rng: np.random.Generator, s: int, t: int) -> dict[str, np.ndarray]:
    """ks and ke [s] inside [0, t]; about a quarter of the windows are empty."""
    ends = np.sort(rng.integers(0, t + 1, (s, 2)), axis=1)
    ends[::4, 1] = ends[::4, 0]
    return {"ks": ends[:, 0].astype(np.int32), "ke": ends[:, 1].astype(np.int32)}


@few
@given(s=st.integers(0, 6), t=st.integers(0, 12), i=st.integers(1, 4), seed=seeds)
def test_indexer(s, t, i, seed, tensors, agree):
    rng = np.random.default_rng(seed)
    call = {
        "q": rng.standard_normal((s, i, 5)),
        "k": rng.standard_normal((t, 5)),
        "k_scale": 2.0 ** rng.integers(-3, 4, t),
        "weights": rng.standard_normal((s, i)),
        **windows(rng, s, t),
    }
    agree(reference.indexer_scores(**tensors(call)), [indexer_scores.indexer_scores(**call)])


def test_indexer_on_float8(agree):
    """8-bit inputs are exact in the float32 that the reference computes in."""
    rng = np.random.default_rng(1)
    q, k = (torch.from_numpy(rng.integers(-4, 5, size) / 4).to(torch.float8_e4m3fn) for size in ((3, 2, 8), (6, 8)))
    scale, weights = torch.full((6,), 0.5), torch.from_numpy(rng.integers(-4, 5, (3, 2))).float()
    ks, ke = np.array([0, 1, 6]), np.array([6, 4, 6])
    (scores,) = reference.indexer_scores(q, k, scale, weights, torch.from_numpy(ks), torch.from_numpy(ke))
    expected = indexer_scores.indexer_scores(
        *(x.float().double().numpy() for x in (q, k, scale, weights)), ks=ks, ke=ke
    )
    assert scores.dtype == torch.float32
    agree([scores], [expected], relative=0.0)


@few
@given(s=st.integers(0, 6), t=st.integers(0, 20), k=st.integers(0, 8), seed=seeds)
def test_topk(s, t, k, seed, tensors):
    """Few distinct values, so that ties are everywhere, and NaN and infinities among them."""
    rng = np.random.default_rng(seed)
    values = np.array([0.0, -0.0, 1.0, 1.5, -3.0, np.inf, -np.inf, np.nan])
    call = {"scores": rng.choice(values, (s, t)), "k": k, **windows(rng, s, t)}
    (indices,) = reference.topk_select(**tensors(call))
    assert indices.dtype == torch.int32
    assert np.array_equal(indices.numpy(), topk_select.topk_select(**call))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_topk_dtypes(dtype):
    scores = torch.from_numpy(np.random.default_rng(2).standard_normal((5, 40))).to(dtype)
    ks, ke = np.array([0, 3, 7, 39, 40]), np.array([40, 33, 12, 40, 40])
    (indices,) = reference.topk_select(scores, torch.from_numpy(ks), torch.from_numpy(ke), k=6)
    assert np.array_equal(indices.numpy(), topk_select.topk_select(scores.double().numpy(), ks, ke, k=6))


@few
@given(s=st.integers(0, 5), h=st.integers(1, 3), seed=seeds, spread=st.sampled_from([0.1, 5.0, 300.0]))
def test_merge(s, h, seed, spread, tensors, agree):
    rng = np.random.default_rng(seed)
    call = {}
    for side in "ab":
        lse = spread * rng.standard_normal((s, h))
        lse[rng.random((s, h)) < 0.3] = -np.inf
        out = rng.standard_normal((s, h, 3))
        out[lse == -np.inf] = rng.choice([np.nan, np.inf, 0.0, 7.0])  # an empty side may hold anything
        call |= {f"out_{side}": out, f"lse_{side}": lse}
    agree(reference.merge_lse(**tensors(call)), merge_lse.merge_lse(**call))


YARN = reference.Yarn(factor=40.0, original_positions=4096)
SHORT = reference.Yarn(factor=4.0, original_positions=64, beta_fast=4.0, beta_slow=2.0, mscale=0.7, mscale_all_dim=1.3)


@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "halves"])
@pytest.mark.parametrize("yarn", [None, YARN, SHORT], ids=["plain", "yarn", "short-yarn"])
@pytest.mark.parametrize("shape", [(6, 64), (6, 3, 64)], ids=["keys", "queries"])
def test_rope(interleaved, yarn, shape, agree):
    rng = np.random.default_rng(3)
    x, positions = rng.standard_normal(shape), np.array([0, 1, 2, 4095, 4096, 163839])
    cos, sin = reference.rope_tables(torch.from_numpy(positions), dim=64, theta=10000.0, yarn=yarn)
    rotate = reference.rotate_interleaved if interleaved else reference.rotate_halves
    if yarn is None:
        frequency, stretch = rope.frequencies(64, 10000.0), 1.0
    else:
        names = ("factor", "original_positions", "beta_fast", "beta_slow")
        frequency = rope.yarn_frequencies(64, 10000.0, **{name: getattr(yarn, name) for name in names})
        stretch = (1 + 0.1 * yarn.mscale * np.log(yarn.factor)) / (1 + 0.1 * yarn.mscale_all_dim * np.log(yarn.factor))
    expected = rope.rotate(x, positions, frequency, interleaved=interleaved, stretch=stretch)
    # The angle is position * frequency: one rounding of it, at position 163839, is 3e-11 radians.
    agree([rotate(torch.from_numpy(x), cos, sin)], [expected], relative=163839 * 2.0**-52)


@pytest.mark.parametrize("rope_dim", [4, 0], ids=["rope", "no-rope"])
def test_mla(rope_dim, agree):
    rng, heads, nope, value, latent = np.random.default_rng(4), 3, 5, 2, 6
    kv_b, rows = rng.standard_normal((heads * (nope + value), latent)), rng.standard_normal((7, latent + rope_dim))
    q, out = rng.standard_normal((4, heads, nope + rope_dim)), rng.standard_normal((4, heads, latent))
    keys, values = mla.head_matrices(kv_b, heads=heads, nope=nope, value=value, rope=rope_dim)
    w_uk, w_uv = reference.split_kv_b(torch.from_numpy(kv_b), heads=heads, qk_nope_head_dim=nope, v_head_dim=value)
    kv_c, k_pe = torch.from_numpy(rows).split((latent, rope_dim), dim=1)
    agree(reference.up_project(kv_c, k_pe, w_uk, w_uv), mla.up_project(rows, keys, values, latent=latent))
    agree([reference.absorb_query(torch.from_numpy(q), w_uk)], [mla.absorb_query(q, keys)])
    agree([reference.project_output(torch.from_numpy(out), w_uv)], [mla.project_output(out, values)])
