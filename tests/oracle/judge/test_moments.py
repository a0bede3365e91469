"""The sums of a chunk: the reference's own answer, and numbers that can be worked out by hand."""

import pytest
import torch

from attnoracle.oracle.judge.moments import moments
from attnoracle.reference.chunks import Chunk
from attnoracle.reference.sparse_mqa import sink_share

CELL = 2.0**-8


def test_answer_and_lse_are_the_references(problem):
    made = problem()
    m = moments(made.chunk, made.scale, CELL, None)
    assert torch.equal(m.out.transpose(0, 1), made.out)
    assert torch.equal(m.lse.transpose(0, 1), made.lse)


def test_sums_are_their_formulas(problem):
    made = problem(h=1, s=3, t=7)
    m = moments(made.chunk, made.scale, CELL, None)
    p = torch.softmax(made.scale * made.chunk.queries @ made.chunk.keys.mT, -1)
    v = made.chunk.values
    size = v.norm(dim=-1)
    expected = {
        "b1": torch.einsum("xmt,xtv->xmv", p, v**2).sqrt(),
        "b2": torch.einsum("xmt,xtv->xmv", p**2, v**2).sqrt(),
        "weight2": (p**2).sum(-1),
        "spread": (p**4 @ size[..., None] ** 4)[..., 0] / (p**2 @ size[..., None] ** 2)[..., 0] ** 2,
        "top": p.amax(-1),
        "value_max": size.amax(1).view(1, 1, 1),
        "score_size_max": made.scale * made.chunk.queries.norm(dim=-1) * made.chunk.keys.norm(dim=-1).amax(-1),
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(m, name), value, rtol=1e-12, atol=0.0)
    assert bool((m.b1 >= torch.einsum("xmt,xtv->xmv", p, v.abs())).all())
    exact = moments(made.chunk, made.scale, CELL, None, underflow=True).value_max
    assert torch.equal(exact, v.abs().amax(1, keepdim=True)) and bool((exact <= m.value_max).all())
    assert bool((m.seen == 7).all())
    assert torch.equal(m.top_value[0], v[0, p.argmax(-1)[0]])


def test_coherence_is_1_for_equal_scores_and_near_0_for_spread_ones(problem, normal):
    equal = problem(queries=torch.zeros(2, 4, 16).double())
    assert moments(equal.chunk, 0.25, CELL, None).coherence.tolist() == [[1.0] * 4] * 2
    spread = problem(t=400, queries=normal(2, 12, 16, seed=5) * 8)
    assert float(moments(spread.chunk, 0.25, CELL, None).coherence.mean()) < 0.01


def test_coherence_sees_keys_that_alternate_between_two_scores(problem):
    keys = torch.zeros(1, 40, 16).double()
    keys[:, ::2, 0] = 1.0
    made = problem(h=1, keys=keys, values=torch.ones(1, 40, 2).double(), queries=torch.ones(1, 2, 16).double())
    assert float(moments(made.chunk, made.scale, CELL, None).coherence.min()) > 0.3


def test_a_sink_attenuates_what_scales_with_the_output_alone(problem):
    made = problem()
    sink = torch.tensor([1.5, torch.inf])
    # Heads come second in the chunk of the operator that has sinks.
    parts = (getattr(made.chunk, name) for name in ("queries", "keys", "values", "allowed"))
    turned = Chunk(slice(0, 2), *parts, False)
    plain = moments(turned, made.scale, CELL, None)
    sunk = moments(turned, made.scale, CELL, torch.full((12,), 1.5))
    share = sink_share(plain.lse, torch.full((12,), 1.5))[..., None]
    for name in ("out", "b1", "b2", "top_value"):
        torch.testing.assert_close(getattr(sunk, name), getattr(plain, name) * share)
    for name in ("lse", "weight2", "top", "coherence", "score_size"):
        assert torch.equal(getattr(sunk, name), getattr(plain, name))
    drowned = moments(turned, made.scale, CELL, sink[1].expand(12))
    assert not drowned.out.any() and not drowned.b1.any()


@pytest.mark.parametrize("bad", [torch.nan, 1e30], ids=["nan", "huge"])
def test_keys_that_nobody_sees_have_no_size(problem, bad):
    allowed = torch.ones(2, 12, 40, dtype=torch.bool)
    allowed[..., 7] = False
    made = problem(allowed=allowed)
    clean = moments(made.chunk, made.scale, CELL, None)
    for side in (made.chunk.keys, made.chunk.values):
        side[:, 7] = bad
    dirty = moments(made.chunk, made.scale, CELL, None)
    for name in ("out", "b1", "b2", "score_size", "score_size_max", "value_max"):
        torch.testing.assert_close(getattr(dirty, name), getattr(clean, name), rtol=1e-12, atol=1e-300)


def test_a_chunk_without_keys_is_empty(problem):
    made = problem(keys=torch.zeros(2, 0, 16).double(), values=torch.zeros(2, 0, 8).double())
    m = moments(made.chunk, made.scale, CELL, None)
    assert bool(m.empty.all()) and not m.out.any() and bool(m.lse.isneginf().all())
