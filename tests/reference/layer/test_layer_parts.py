"""The pieces of the layer: pages, masks, caches, buffer, query."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from attnoracle.reference.layer import (
    LatentCache,
    LayerInputs,
    Pages,
    StepBatch,
    TopkBuffer,
    Trace,
    build_mask,
    mha_query,
    prepare_query,
    to_slots,
)
from attnoracle.reference.masked_mha import unpack_bits
from attnoracle.reference.routing import Batch


@pytest.fixture
def trace() -> Trace:
    return Trace(step=4, layer="layers.1", position=1, kind="full", supports_dense=True, runs_mha=True)


def test_pages_are_reused_lowest_first() -> None:
    pages = Pages(6, 4)
    pages.reserve(1, 5)
    pages.reserve(2, 4)
    pages.release(1)
    pages.reserve(3, 9)
    assert pages.held == {2: [2], 3: [0, 1, 3]}
    assert pages.table([3, 2]).tolist() == [[0, 1, 3], [2, -1, -1]]
    with pytest.raises(ValueError, match="expected 3 free pages for request 4, got 2"):
        pages.reserve(4, 12)


def test_slots_of_positions() -> None:
    table = torch.tensor([[5, 2], [7, -1]], dtype=torch.int32)
    rows = torch.tensor([0, 0, 1, 1, 0])
    slots = to_slots(table, rows, torch.tensor([0, 5, 3, 4, -1]), 4)
    assert slots.tolist() == [20, 9, 31, -1, -1]
    wide = to_slots(table, rows[:2, None], torch.tensor([[8, 1], [4, -1]]), 4)
    assert wide.tolist() == [[-1, 21], [8, -1]]


@pytest.mark.parametrize("multiple", [1, 4])
def test_mask_bits_are_the_selected_keys(multiple: int) -> None:
    generator = torch.Generator().manual_seed(1)
    query_lens, starts, lengths = (3, 0, 5), (10, 0, 64), (33, 1, 40)
    indices = torch.randint(-1, 120, (8, 30), generator=generator, dtype=torch.int32)
    mask = build_mask(indices, query_lens, starts, lengths, word_multiple=multiple)
    assert mask.dtype == torch.int32
    assert mask.shape == (3, 5, 2 if multiple == 1 else 4)
    row = 0
    for request, count in enumerate(query_lens):
        for query in range(count):
            chosen = set(indices[row].tolist())
            expected = [starts[request] + key in chosen for key in range(lengths[request])]
            assert unpack_bits(mask[request, query], lengths[request]).tolist() == expected
            row += 1


def test_the_sign_bit_is_a_key_like_any_other() -> None:
    mask = build_mask(torch.tensor([[31, 63]]), (1,), (0,), (64,))
    assert mask.flatten().tolist() == [-(2**31), -(2**31)]


def test_e4m3_rows_round_trip_within_their_rounding(trace: Trace) -> None:
    cache = LatentCache(2, 4, 6, dtype=torch.float8_e4m3fn, k_scale=0.125)
    latents = torch.linspace(-3, 3, 24).view(4, 6)
    slots, ids, positions = torch.tensor([1, -1, 7, 2]), torch.tensor([3, 3, 3, 9]), torch.arange(4)
    cache.write(slots, latents, ids, positions, trace)
    assert cache.owners.tolist() == [-1, 3, 9, -1, -1, -1, -1, 3]
    kept = torch.tensor([0, 2, 3])
    found = cache.rows(slots[kept], torch.float32)
    assert ((found - latents[kept]).abs() <= latents[kept].abs() * 2**-4 + 2**-12).all()
    assert cache.rows(None, torch.float32).shape == (8, 6)


def test_the_buffer_knows_its_writers(trace: Trace) -> None:
    buffer = TopkBuffer(6, 2, initial=7)
    buffer.reset((0, 4), trace)
    buffer.write((1, 3), torch.tensor([[0, 1], [2, 3]], dtype=torch.int32), torch.tensor([8, 9]), trace)
    read = buffer.read((0, 6), "test", trace)
    assert read.tolist() == [[-1, -1], [0, 1], [2, 3], [-1, -1], [7, 7], [7, 7]]
    assert buffer.steps.tolist() == [4, 4, 4, 4, -1, -1]
    assert buffer.stamps.tolist() == [1, 2, 2, 1, 0, 0]
    assert buffer.requests.tolist() == [-1, 8, 9, -1, -1, -1]
    with pytest.raises(ValueError, match="expected at most 6 tokens, got 7"):
        buffer.reset((0, 7), trace)


@pytest.mark.parametrize(("absorb", "q_scale"), list(product([False, True], [None, 0.5])), ids=str)
def test_four_cells_of_the_prepared_query(absorb: bool, q_scale: float | None) -> None:
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(3, 2, 6, generator=generator, dtype=torch.float64)
    w_uk = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    positions = torch.arange(3)

    def rotate(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x + 1 + at.view(-1, *[1] * (x.dim() - 1))

    prepared = prepare_query(q, positions, w_uk=w_uk, rotate=rotate, absorb=absorb, q_scale=q_scale)
    assert (prepared.mqa is not None) is absorb
    assert (prepared.rotated is None) is (absorb and q_scale is not None)
    query = mha_query(prepared, positions, rotate)
    assert torch.equal(query.tensor[..., :4], q[..., :4])
    assert torch.equal(query.tensor[..., 4:], rotate(q[..., 4:], positions))
    assert query.form.rotations == 1
    if prepared.mqa is not None:
        expected = torch.cat((torch.einsum("shp,hpc->shc", q[..., :4], w_uk), rotate(q[..., 4:], positions)), -1)
        found = prepared.mqa.tensor.double() * (q_scale or 1.0)
        torch.testing.assert_close(found, expected, rtol=2**-4 if q_scale else 1e-12, atol=2**-8 if q_scale else 1e-12)


def test_a_step_wants_one_id_a_request() -> None:
    with pytest.raises(ValueError, match="expected 2 distinct ids"):
        StepBatch(step=1, ids=(3, 3), batch=Batch.of([(1, 0), (2, 0)]))


def test_an_indexer_input_that_is_not_there() -> None:
    empty = torch.empty(0)
    with pytest.raises(ValueError, match="layer input 'index_q'"):
        LayerInputs(q=empty, kv_c=empty, k_pe=empty).need("index_q")
