"""What the other operators mean, on cases small enough to work out by hand."""

from __future__ import annotations

from math import cos, inf, log, nan, pi, sin

import mpmath
import pytest
import torch
from torch import float64, tensor

from attnoracle import reference

#: Exact but for the roundings of a handful of float64 operations.
ROUNDINGS = 16 * 2.0**-53


def test_merge_weighs_by_mass():
    """Masses 1 and 3: weights 1/4 and 3/4; the merged mass is 4."""
    out_a, out_b = tensor([[[4.0, 0.0]]], dtype=float64), tensor([[[8.0, 1.0]]], dtype=float64)
    lse_a, lse_b = tensor([[0.0]], dtype=float64), tensor([[log(3)]], dtype=float64)
    out, lse = reference.merge_lse(out_a, lse_a, out_b, lse_b)
    assert out[0, 0].tolist() == pytest.approx([7, 0.75], rel=ROUNDINGS)
    assert lse.item() == pytest.approx(log(4), rel=ROUNDINGS)


@pytest.mark.parametrize("junk", [nan, inf, 123.0])
def test_merge_of_an_empty_side_is_the_other(junk):
    full, empty = tensor([[[4.0]]], dtype=float64), tensor([[[junk]]], dtype=float64)
    lse, none = tensor([[1.5]], dtype=float64), tensor([[-inf]], dtype=float64)
    assert reference.merge_lse(full, lse, empty, none) == (full, lse)
    assert reference.merge_lse(empty, none, full, lse) == (full, lse)
    assert reference.merge_lse(empty, none, empty, none) == (tensor([[[0.0]]], dtype=float64), none)


def scores(q, k, weights, scale=1.0, window=(0, 1)):
    """One query, one key."""
    ks, ke = (tensor([end]) for end in window)
    one = tensor(k, dtype=float64)[None]
    q, weights = tensor(q, dtype=float64)[None], tensor(weights, dtype=float64)[None]
    return reference.indexer_scores(q, one, tensor([scale], dtype=float64), weights, ks, ke)[0].item()


def test_indexer_sums_weighted_heads():
    """Heads give 3 and 4: 0.5 * (2 * 3 + 10 * 4) = 23."""
    assert scores([[3.0, 0.0], [0.0, 2.0]], [1.0, 2.0], [2.0, 10.0], scale=0.5) == 23


def test_relu_comes_before_the_weights():
    """Heads give 3 and -5. A negative weight stays; a negative product is cut whatever its weight."""
    assert scores([[3.0], [-5.0]], [1.0], [-1.0, 7.0]) == -3
    assert scores([[3.0], [-5.0]], [1.0], [2.0, -7.0]) == 6


def test_indexer_window_excludes_its_end():
    assert scores([[3.0]], [1.0], [1.0], window=(0, 0)) == -inf
    assert scores([[3.0]], [1.0], [1.0], window=(1, 1)) == -inf


def select(row, ks, ke, k):
    return reference.topk_select(tensor([row]), tensor([ks]), tensor([ke]), k=k)[0][0].tolist()


def test_topk_counts_from_the_window():
    assert select([99.0, 1.0, 5.0, 3.0, 99.0], 1, 4, 2) == [1, 2]


def test_topk_ties_go_to_the_lowest_column():
    assert select([1.0, 2.0, 1.0, 2.0, 1.0], 0, 5, 3) == [1, 3, 0]


@pytest.mark.parametrize("k,expected", [(3, [0, 1, 2]), (5, [0, 1, 2, -1, -1])])
def test_topk_of_a_short_window_is_the_identity(k, expected):
    assert select([nan, 1.0, 9.0, -inf, nan], 1, 4, k) == expected


def test_topk_ranks_nan_first_and_ignores_it_outside():
    assert select([nan, -inf, 1.0, nan, inf, nan], 1, 5, 2) == [2, 3]
    assert select([inf, -inf, -inf, -inf, inf], 1, 4, 2) == [0, 1]


def test_topk_of_an_empty_window():
    assert select([1.0, 2.0], 2, 2, 2) == [-1, -1]
    assert select([1.0, 2.0], 2, 1, 2) == [-1, -1]


def test_rope_styles_pair_differently():
    """Pair 0 turns by 90 degrees, pair 1 stays: (1, 2) -> (-2, 1) or (1, 3) -> (-3, 1)."""
    x, quarter = tensor([[1.0, 2.0, 3.0, 4.0]], dtype=float64), tensor([[0.0, 1.0]], dtype=float64)
    turn = tensor([[1.0, 0.0]], dtype=float64)
    assert reference.rotate_interleaved(x, quarter, turn).tolist() == [[-2, 1, 3, 4]]
    assert reference.rotate_halves(x, quarter, turn).tolist() == [[-3, 2, 1, 4]]


def test_rope_turns_slower_from_pair_to_pair():
    """theta = 100 and four dims: 1 and 1/10 radian a position."""
    table_cos, table_sin = reference.rope_tables(tensor([0, 3]), dim=4, theta=100.0)
    assert table_cos.flatten().tolist() == pytest.approx([1, 1, cos(3), cos(0.3)], rel=ROUNDINGS)
    assert table_sin.flatten().tolist() == pytest.approx([0, 0, sin(3), sin(0.3)], rel=ROUNDINGS)


def test_rope_keeps_products_of_equal_distance():
    rng = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 64, generator=rng, dtype=float64)
    for rotate in (reference.rotate_interleaved, reference.rotate_halves):
        near, far = (
            rotate(q, *reference.rope_tables(tensor([p + 7]), dim=64, theta=1e4))
            @ rotate(k, *reference.rope_tables(tensor([p]), dim=64, theta=1e4)).T
            for p in (0, 1000)
        )
        assert near.item() == pytest.approx(far.item(), rel=1e-11)


def test_rope_to_fifty_digits():
    """The slowest and the fastest pair at the last position of DeepSeek-V3.2."""
    mpmath.mp.dps = 50
    table_cos, table_sin = reference.rope_tables(tensor([163839]), dim=64, theta=10000.0)
    for pair in (0, 31):
        angle = 163839 * mpmath.power(10000, mpmath.mpf(-2 * pair) / 64)
        # One rounding of an angle of at most 163839 radians.
        assert float(abs(table_cos[0, pair].item() - mpmath.cos(angle))) < 163839 * 2.0**-53
        assert float(abs(table_sin[0, pair].item() - mpmath.sin(angle))) < 163839 * 2.0**-53


def test_yarn_ramp_of_deepseek():
    """32 turns of 4096 positions lie between pairs 10 and 11, one turn between 22 and 23: the ramp is 10 … 23."""
    yarn = reference.Yarn(factor=40.0, original_positions=4096)
    plain = reference.rope_frequencies(64, 10000.0)
    ratio = reference.rope_frequencies(64, 10000.0, yarn) / plain
    assert [4096 * plain[j].item() / (2 * pi) > 32 for j in (10, 11)] == [True, False]
    assert [4096 * plain[j].item() / (2 * pi) > 1 for j in (22, 23)] == [True, False]
    assert ratio[:11].tolist() == [1.0] * 11
    assert ratio[23:].tolist() == pytest.approx([1 / 40] * 9, rel=ROUNDINGS)
    assert ratio[16].item() == pytest.approx(7 / 13 + 6 / 13 / 40, rel=ROUNDINGS)


def test_yarn_ramp_may_end_beyond_the_last_pair():
    """One turn would lie at pair 26 of 4; the ramp then ends at r - 1 = 7, so pair 3 is three sevenths down it."""
    yarn = reference.Yarn(factor=2.0, original_positions=65536, beta_fast=10000.0, beta_slow=1.0)
    ratio = reference.rope_frequencies(8, 4.0, yarn) / reference.rope_frequencies(8, 4.0)
    assert ratio.tolist() == pytest.approx([1 - j / 7 / 2 for j in range(4)], rel=ROUNDINGS)


def test_yarn_stretches_the_tables():
    """The ratio of the two mscales: 1 if they are equal, as in DeepSeek-V3.2."""
    same = reference.Yarn(factor=40.0, original_positions=4096, mscale=1.0, mscale_all_dim=1.0)
    bare = reference.Yarn(factor=40.0, original_positions=4096, mscale=1.0, mscale_all_dim=0.0)
    assert reference.rope_tables(tensor([0]), dim=64, theta=1e4, yarn=same)[0][0, 0].item() == 1.0
    stretched = reference.rope_tables(tensor([0]), dim=64, theta=1e4, yarn=bare)[0][0, 0].item()
    assert stretched == pytest.approx(0.1 * log(40) + 1, rel=ROUNDINGS)


def test_softmax_scales():
    deepseek = reference.softmax_scale(192, reference.Yarn(factor=40.0, original_positions=4096))
    assert deepseek == pytest.approx(0.13523378, abs=5e-9)
    assert reference.softmax_scale(256) == 0.0625
    assert reference.yarn_mscale(1.0, 1.0) == 1.0


def test_kv_b_is_concatenated_head_by_head():
    """Two heads, p = 2, v = 1: rows uk0, uk0, uv0, uk1, uk1, uv1."""
    w_uk, w_uv = reference.split_kv_b(torch.arange(6.0)[:, None], heads=2, qk_nope_head_dim=2, v_head_dim=1)
    assert w_uk.flatten(1).tolist() == [[0, 1], [3, 4]]
    assert w_uv.flatten(1).tolist() == [[2], [5]]


def test_absorbed_equals_unabsorbed():
    """MHA over up-projected keys = MQA over the latents, projected up; causality as a selection of the prefix."""
    rng = torch.Generator().manual_seed(1)
    heads, nope, rope, value, latent, tokens = 4, 6, 4, 5, 8, 9
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=float64)  # noqa: E731
    w_uk, w_uv = reference.split_kv_b(
        draw(heads * (nope + value), latent), heads=heads, qk_nope_head_dim=nope, v_head_dim=value
    )
    q, kv_c, k_pe = draw(tokens, heads, nope + rope), draw(tokens, latent), draw(tokens, rope)
    scale, cu = reference.softmax_scale(nope + rope), tensor([0, tokens], dtype=torch.int32)
    k, v = reference.up_project(kv_c, k_pe, w_uk, w_uv)
    out, lse = reference.dense_mha(q, k, v, cu, cu, scale=scale)
    seen = torch.arange(tokens, dtype=torch.int32).expand(tokens, -1)
    prefix = torch.where(seen <= seen.T, seen, -1)
    latent_out, latent_lse = reference.sparse_mqa(
        reference.absorb_query(q, w_uk), torch.cat((kv_c, k_pe), 1), prefix, scale=scale, value_dim=latent
    )
    assert torch.allclose(reference.project_output(latent_out, w_uv), out, rtol=0, atol=1e-13)
    assert torch.allclose(latent_lse, lse, rtol=0, atol=1e-13)


def test_mla_keys_of_a_tiny_model():
    """One head, c = 2, p = 1, v = 1, r = 1: k = (1*3 + 2*4, 7) = (11, 7), v = 5*3 + 6*4 = 39."""
    kv_b = tensor([[1.0, 2.0], [5.0, 6.0]])
    w_uk, w_uv = reference.split_kv_b(kv_b, heads=1, qk_nope_head_dim=1, v_head_dim=1)
    k, v = reference.up_project(tensor([[3.0, 4.0]]), tensor([[7.0]]), w_uk, w_uv)
    assert (k.tolist(), v.tolist()) == ([[[11, 7]]], [[[39]]])
    assert reference.absorb_query(tensor([[[2.0, 9.0]]]), w_uk).tolist() == [[[2, 4, 9]]]
    assert reference.project_output(tensor([[[3.0, 4.0]]]), w_uv).tolist() == [[[39]]]
