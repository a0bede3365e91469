"""Sparse MQA on Triton against the reference in float64."""

from __future__ import annotations

import pytest
import torch

from attnoracle.reference.sparse_mqa import sparse_mqa as reference


@pytest.fixture
def check(triton_operator, assert_attention):
    function = triton_operator("sparse_mqa")

    def run(q, kv, indices, *, c, scale=0.1, **options):
        got = function(q, kv, indices, scale=scale, value_dim=c, **options)
        wide_q, wide_kv = q.double(), kv.double()
        expected = reference(wide_q, wide_kv, indices, scale=scale, value_dim=c, **options)
        # The same scores over |v|: values beside keys of their own.
        beside = torch.cat((torch.zeros_like(wide_q[..., :c]), wide_q), -1)
        absolute, _ = reference(
            beside, torch.cat((wide_kv[:, :c].abs(), wide_kv), -1), indices, scale=scale, value_dim=c, **options
        )
        assert_attention(got, expected, absolute, q, kv, scale, indices.size(1))
        return got

    return run


@pytest.fixture
def picks(device):
    """Distinct rows of a cache of n for every query."""

    def distinct(s: int, k: int, n: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.stack([torch.randperm(n, generator=generator)[:k] for _ in range(s)]).to(torch.int32).to(device)

    return distinct


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("c", "r"), [(512, 64), (512, 0), (40, 24)], ids=["mla", "nope", "odd"])
def test_dims(check, draw, picks, dtype, c, r):
    q, kv = draw(3, 16, c + r, seed=1, dtype=dtype), draw(150, c + r, seed=2, dtype=dtype)
    check(q, kv, picks(3, 130, 150), c=c, scale=0.0625)


@pytest.mark.parametrize("h", [1, 5, 16, 17, 33, 128, 130])
def test_head_counts(check, draw, picks, h):
    check(draw(2, h, 48, seed=1), draw(40, 48, seed=2), picks(2, 20, 40), c=32)


@pytest.mark.parametrize("k", [1, 15, 16, 63, 64, 65, 127, 128, 129, 200])
def test_selection_around_tiles(check, draw, picks, k):
    check(draw(2, 2, 48, seed=1), draw(300, 48, seed=2), picks(2, k, 300), c=32)


@pytest.mark.parametrize("where", ["leading", "trailing", "interleaved", "whole-tile", "all", "one-left"])
@pytest.mark.parametrize("invalid", [-1, -(2**31), 150, 2**31 - 1], ids=["minus-one", "int-min", "n", "int-max"])
def test_invalid_entries_are_ignored(check, draw, picks, where, invalid):
    holes = {
        "leading": slice(0, 70),
        "trailing": slice(70, None),
        "interleaved": slice(1, None, 2),
        "whole-tile": slice(64, 128),
        "all": slice(None),
        "one-left": slice(1, None),
    }
    indices = picks(2, 131, 150)
    indices[1, holes[where]] = invalid
    kv = draw(150, 48, seed=2, dtype=torch.bfloat16)
    out, lse = check(draw(2, 3, 48, seed=1, dtype=torch.bfloat16), kv, indices, c=32)
    if where == "all":
        assert (out[1] == 0).all() and (lse[1] == -torch.inf).all()
    if where == "one-left":
        assert torch.equal(out[1], kv[indices[1, 0].item(), :32].expand(3, -1))


def test_duplicates_count_each_time(check, draw, picks):
    indices = picks(2, 80, 100)
    indices[0, 5:40] = indices[0, 3]
    indices[1] = 7
    check(draw(2, 3, 48, seed=1), draw(100, 48, seed=2), indices, c=32)


def test_lengths(check, draw, picks):
    lengths = torch.tensor([0, 1, 63, 64, 65, 129, 500], dtype=torch.int32)
    q, kv, indices = draw(7, 3, 48, seed=1), draw(200, 48, seed=2), picks(7, 130, 200)
    indices[5, 100] = -1
    out, _ = check(q, kv, indices, c=32, lengths=lengths.to(q.device))
    assert (out[0] == 0).all()


def test_sink(check, draw, picks):
    sink = torch.tensor([0.0, -3.0, 4.0, -torch.inf, torch.inf, 80.0])
    q, kv, indices = draw(3, 6, 48, seed=1), draw(60, 48, seed=2), picks(3, 50, 60)
    indices[2] = -1
    out, _ = check(q, kv, indices, c=32, sink=sink.to(q.device))
    assert (out[2] == 0).all() and (out[:, 4] == 0).all()


def test_unnamed_rows_do_not_matter(check, draw, picks):
    q, kv, indices = draw(2, 3, 48, seed=1), draw(100, 48, seed=2), picks(2, 70, 80)
    kv[80:] = torch.nan
    indices[0, ::3], indices[1, ::3] = -1, 100
    out, _ = check(q, kv, indices, c=32)
    assert out.isfinite().all()


def test_named_nan_is_seen(triton_operator, draw, picks):
    q, kv, indices = draw(2, 3, 48, seed=1), draw(100, 48, seed=2), picks(2, 70, 80)
    indices[1] = torch.where(indices[1] == 90, 91, indices[1])
    indices[0, 66] = 90
    kv[90] = torch.nan
    out, lse = triton_operator("sparse_mqa")(q, kv, indices, scale=0.1, value_dim=32)
    assert out[0].isnan().all() and lse[0].isnan().all() and out[1].isfinite().all()


def test_rows_beyond_two_to_the_31(check, draw, far_rows, device):
    kv = far_rows(draw(3, 48, seed=2, dtype=torch.bfloat16))
    indices = torch.tensor([[2, 0], [1, 2]], dtype=torch.int32, device=device)
    check(draw(2, 3, 48, seed=1, dtype=torch.bfloat16), kv, indices, c=32)


def test_strides_are_free(check, draw, picks):
    q = draw(5, 4, 60, seed=1).transpose(0, 1)[:, :, 12:]
    kv = draw(120, 2, 48, seed=2)[:, 1]
    check(q, kv, picks(8, 100, 120)[::2, 3:83], c=32)


def test_a_query_does_not_depend_on_its_batch(triton_operator, draw, picks):
    function = triton_operator("sparse_mqa")
    q, kv = draw(6, 20, 48, seed=1, dtype=torch.bfloat16), draw(90, 48, seed=2, dtype=torch.bfloat16)
    indices = picks(6, 70, 90)
    together = function(q, kv, indices, scale=0.1, value_dim=32)
    alone = function(q[4:5], kv, indices[4:5], scale=0.1, value_dim=32)
    assert torch.equal(together[0][4:5], alone[0]) and torch.equal(together[1][4:5], alone[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": torch.zeros(2, 4, dtype=torch.int64)}, "indices: expected torch.int32, got torch.int64"),
        ({"indices": torch.zeros(3, 4, dtype=torch.int32)}, r"indices: expected shape \[s, k\] = \[2, 'any'\]"),
        ({"kv": torch.zeros(9, 40)}, r"kv: expected shape \[n, c\+r\] = \['any', 48\], got \[9, 40\]"),
        ({"value_dim": 49}, "value_dim: expected 1 to 48"),
        ({"sink": torch.zeros(3, dtype=torch.bfloat16)}, "sink: expected torch.float32"),
        ({"lengths": torch.zeros(4, dtype=torch.int32)}, "lengths: expected shape"),
    ],
    ids=["int64", "rows", "width", "value-dim", "sink", "lengths"],
)
def test_misfits_are_refused(triton_operator, device, change, message):
    fits = {"q": torch.zeros(2, 3, 48), "kv": torch.zeros(9, 48), "indices": torch.zeros(2, 4, dtype=torch.int32)}
    inputs = {"value_dim": 32} | fits | change
    inputs = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    with pytest.raises(ValueError, match=message):
        triton_operator("sparse_mqa")(**inputs, scale=1.0)
