"""The plain torch implementations of the sparse operators against their formulas in fp64."""

import pytest
import torch

from attnoracle.optimized.torch_kernels import gather as gather_module
from attnoracle.optimized.torch_kernels import indexer as indexer_module
from attnoracle.oracle.guests.known import find

UNIT = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-18}


def sparse_inputs(dtype: torch.dtype, rows: int = 50) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(31)
    indices = torch.randint(1, max(rows, 2), (9, 12), generator=generator, dtype=torch.int32)
    indices[0] = -1
    indices[1, ::3] = rows
    indices[2, 5] = torch.iinfo(torch.int32).min
    indices[3, :4] = 7 % max(rows, 2)  # counted four times
    kv = torch.randn(rows, 48, generator=generator).to(dtype)
    if rows:
        kv[0] = float("nan")  # nothing selects row 0
    return {"q": torch.randn(9, 3, 48, generator=generator).to(dtype), "kv": kv, "indices": indices}


def exact_sparse(q, kv, indices, lengths=None, sink=None):  # type: ignore[no-untyped-def]
    out, lse = torch.zeros(9, 3, 32, dtype=torch.float64), torch.full((9, 3), -torch.inf, dtype=torch.float64)
    for row in range(9):
        chosen = [j for slot, j in enumerate(indices[row].tolist()) if 0 <= j < len(kv)
                  and (lengths is None or slot < lengths[row])]  # fmt: skip
        if chosen:
            keys = kv[chosen].double()
            scores = q[row].double() @ keys.T * 0.3
            lse[row] = scores.logsumexp(-1)
            out[row] = scores.softmax(-1) @ keys[:, :32]
            if sink is not None:
                out[row] *= torch.sigmoid(lse[row] - sink.double())[:, None]
    return out, lse


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize("options", [(), ("lengths",), ("sink",), ("lengths", "sink")], ids="+".join)
@pytest.mark.parametrize("chunk", [1 << 25, 1], ids=["one chunk", "row by row"])
def test_gather(dtype: torch.dtype, options: tuple[str, ...], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_module, "_CHUNK_ELEMENTS", chunk)
    inputs = sparse_inputs(dtype)
    extra = {}
    if "lengths" in options:
        extra["lengths"] = torch.tensor([12, 0, 3, 12, 1, 5, 12, 7, 2], dtype=torch.int32)
    if "sink" in options:
        extra["sink"] = torch.tensor([0.5, -torch.inf, 40.0])
    out, lse = find("sparse_mqa/gather").prepare(**inputs, **extra, scale=0.3, value_dim=32)()
    expected, expected_lse = exact_sparse(**inputs, **extra)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    limit = 2 * UNIT[dtype] * float(inputs["kv"].nan_to_num().abs().max())
    assert (out.double() - expected).abs().max() <= limit
    assert torch.equal(lse.isneginf(), expected_lse.isneginf())
    assert torch.allclose(lse.double(), expected_lse, rtol=2.0**-20, atol=2.0**-20)


def test_gather_from_an_empty_cache() -> None:
    inputs = sparse_inputs(torch.bfloat16, rows=0)
    out, lse = find("sparse_mqa/gather").prepare(**inputs, scale=0.3, value_dim=32)()
    assert (out == 0).all()
    assert lse.isneginf().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("chunk", [1 << 25, 1], ids=["one chunk", "row by row"])
def test_indexer_scores(dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer_module, "_CHUNK_ELEMENTS", chunk)
    generator = torch.Generator().manual_seed(32)
    q, k = torch.randn(6, 4, 32, generator=generator).to(dtype), torch.randn(20, 32, generator=generator)
    k[19] = float("nan")  # outside every window
    k = k.to(dtype)
    k_scale, weights = torch.rand(20, generator=generator), torch.randn(6, 4, generator=generator)
    ks = torch.tensor([0, 3, 5, 5, 0, 18], dtype=torch.int32)
    ke = torch.tensor([19, 4, 5, 12, 1, 19], dtype=torch.int32)
    (scores,) = find("indexer_scores/torch").prepare(q=q, k=k, k_scale=k_scale, weights=weights, ks=ks, ke=ke)()
    products = torch.einsum("sie,te->sit", q.double(), k.double().nan_to_num())
    expected = k_scale.double() * torch.einsum("sit,si->st", products.relu(), weights.double())
    magnitude = k_scale.double() * torch.einsum("sit,si->st", products.abs(), weights.double().abs())
    inside = (torch.arange(20) >= ks[:, None]) & (torch.arange(20) < ke[:, None])
    assert torch.equal(scores.isneginf(), ~inside)
    # every sum of 32 + 4 + 1 terms in fp32, the partial sums of |q.k| at most 32 times their result
    assert ((scores.double() - expected).abs() <= 40 * 2.0**-24 * (magnitude + 32.0))[inside].all()


SELECTORS = ["topk_select/torch", "topk_select/sort"]


@pytest.mark.parametrize("name", SELECTORS)
def test_selection_takes_the_best_and_nothing_outside(name: str) -> None:
    generator = torch.Generator().manual_seed(33)
    scores = torch.randn(7, 40, generator=generator)
    scores[1, 10:30] = -torch.inf  # inside the window: still better than what is outside
    scores[2, 12] = float("nan")  # above +inf
    scores[2, 13] = torch.inf
    scores[3] = 1.0
    ks = torch.tensor([0, 10, 5, 0, 20, 30, 8], dtype=torch.int32)
    ke = torch.tensor([40, 30, 25, 40, 25, 30, 16], dtype=torch.int32)
    column = torch.arange(40)
    scores[(column < ks[:, None]) | (column >= ke[:, None])] = float("nan")
    before = scores.clone()
    (chosen,) = find(name).prepare(scores=scores, ks=ks, ke=ke, k=8)()
    assert chosen.dtype == torch.int32
    assert torch.equal(scores.nan_to_num(), before.nan_to_num())
    for row in range(7):
        length, picked = int(ke[row] - ks[row]), chosen[row].tolist()
        if length <= 8:
            assert picked == list(range(length)) + [-1] * (8 - length)
            continue
        assert len(set(picked)) == 8
        assert all(0 <= j < length for j in picked)
        window = scores[row, ks[row] : ke[row]]
        assert torch.equal(window[picked].sort().values.nan_to_num(9e9), window.topk(8).values.flip(0).nan_to_num(9e9))


def test_the_sort_takes_the_lowest_index_of_equal_scores() -> None:
    scores = torch.tensor([[1.0, 0.0, -0.0, 0.0, -0.0, 2.0, -1.0, 0.0]])
    bounds = {"ks": torch.tensor([1], dtype=torch.int32), "ke": torch.tensor([8], dtype=torch.int32)}
    (chosen,) = find("topk_select/sort").prepare(scores=scores, **bounds, k=3)()
    assert chosen.tolist() == [[4, 0, 1]]


@pytest.mark.parametrize("name", SELECTORS)
def test_selecting_more_than_there_are_columns(name: str) -> None:
    bounds = {"ks": torch.tensor([1], dtype=torch.int32), "ke": torch.tensor([4], dtype=torch.int32)}
    (chosen,) = find(name).prepare(scores=torch.randn(1, 4), **bounds, k=6)()
    assert chosen.tolist() == [[0, 1, 2, -1, -1, -1]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_merge(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(34)
    out_a, out_b = (torch.randn(5, 2, 16, generator=generator).to(dtype) for _ in range(2))
    lse_a, lse_b = (3 * torch.randn(5, 2, generator=generator) for _ in range(2))
    lse_a[0], lse_b[1], lse_a[2], lse_b[2] = -torch.inf, -torch.inf, -torch.inf, -torch.inf
    lse_a[3], lse_b[3] = 200.0, -200.0
    expected_lse = torch.logaddexp(lse_a.double(), lse_b.double())
    share = torch.exp(lse_a.double() - expected_lse).nan_to_num()[..., None]
    expected = (
        share * out_a.double() + torch.exp(lse_b.double() - expected_lse).nan_to_num()[..., None] * out_b.double()
    )
    out_a[0], out_b[1], out_a[2], out_b[2] = (float("nan"),) * 4  # an empty side may hold anything
    out, lse = find("merge_lse/torch").prepare(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b)()
    assert out.dtype == dtype
    assert (out[2] == 0).all()
    assert lse[2].isneginf().all()
    unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-20}[dtype]
    assert ((out.double() - expected).abs() <= unit * (expected.abs() + 2.0**-10)).all()
    assert torch.allclose(lse.double(), expected_lse, rtol=2.0**-22, atol=2.0**-22)
