"""Which keys the queries are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnoracle.oracle.case import Case
from attnoracle.oracle.inputs import Inputs, patterns
from attnoracle.oracle.inputs.attention import Form, latents
from attnoracle.oracle.inputs.batch import batch_of
from attnoracle.oracle.inputs.cache import SPARE
from attnoracle.oracle.inputs.patterns import INDEX_PATTERNS, MASK_PATTERNS

Build = Callable[..., Inputs]
CASE = Case(operator="sparse_mqa", geometry="tiny", heads=3, q_lens=(3, 0, 1, 5), k_lens=(140, 7, 0, 3), topk=24)
VISIBLE = [138, 139, 140, 0, 0, 0, 1, 2, 3]


def drawn(pattern: str, slots: int = 24, case: Case = CASE) -> list[list[int]]:
    q = batch_of(case, torch.device("cpu")).q
    return patterns.positions(pattern, 0, slots, q, q.visible()).tolist()


def test_visible_keys_are_bottom_right_causal() -> None:
    q = batch_of(CASE, torch.device("cpu")).q
    assert q.visible().tolist() == VISIBLE
    assert q.visible(causal=False).tolist() == [140] * 3 + [0] + [3] * 5


@pytest.mark.parametrize("pattern", INDEX_PATTERNS)
def test_positions_are_causal_and_distinct_unless_asked_otherwise(pattern: str) -> None:
    for row, visible in zip(drawn(pattern), VISIBLE, strict=True):
        keys = [key for key in row if key >= 0]
        assert len(row) == 24 and all(key < visible for key in keys)
        if pattern != "duplicates":
            assert len(set(keys)) == len(keys)
        full = pattern in ("causal-random", "prefix", "window")
        if full:
            assert len(keys) == min(24, visible)


def test_random_rows_hold_the_tile_edge_keys_and_differ() -> None:
    rows = drawn("causal-random")
    for row, visible in zip(rows[:3], VISIBLE, strict=False):
        assert {0, 63, 127, visible - 1} <= set(row)
    assert sorted(rows[0]) != sorted(rows[1])


def test_edge_keys_meet_the_first_and_last_slots() -> None:
    row = drawn("causal-random")[2]
    assert (row[0], row[23]) == (139, 0)
    assert sorted(row, reverse=True) != row


def test_where_the_minus_ones_lie() -> None:
    leading, trailing, interleaved = (drawn(name)[0] for name in ("leading", "trailing", "interleaved"))
    assert leading[:12] == [-1] * 12 and min(leading[12:]) >= 0
    assert trailing[12:] == [-1] * 12 and min(trailing[:12]) >= 0
    holes = [slot for slot, key in enumerate(interleaved) if key < 0]
    assert len(holes) == 12 and holes not in (list(range(12)), list(range(12, 24)))
    assert drawn("causal-random")[8][3:] == [-1] * 21


def test_islands_lie_between_empty_tiles(build: Build) -> None:
    tensors = build("sparse_mqa", q_lens=(3,), k_lens=(400,), topk=192, options=("islands",)).tensors
    used = (tensors["indices"] >= 0).view(3, 3, 64).any(-1)
    assert used.tolist() == [[True, False, True]] * 3
    kept = tensors["indices"][0][tensors["indices"][0] >= 0]
    assert len(kept) == 96 == len(kept.unique())


@pytest.mark.parametrize("operator", ["gather", "gather_index", "convert_indices", "paged_indexer_scores"])
def test_requests_of_one_prompt_share_their_first_page(build: Build, operator: str) -> None:
    lens = {"q_lens": (1, 1, 1), "k_lens": (140, 70, 3)}
    table = build(operator, options=("shared",), **lens).tensors["block_table"]
    assert table[:, 0].unique().numel() == 1 and int(table[0, 1]) != int(table[1, 1])
    one, same = (build(operator, options=("shared",), seed=4, **lens).fingerprint() for _ in range(2))
    assert one == same


def test_late_requests_start_pages_into_their_context(build: Build) -> None:
    for operator in ("gather", "gather_index"):
        inputs = build(operator, options=("late", "page-16"))
        assert int(inputs.tensors["starts"].min()) >= 128
    starts = build("build_mask", options=("late",), k_lens=(140, 70, 9, 30)).tensors["starts"]
    assert bool((starts >= torch.tensor([70, 35, 4, 15])).all())


def test_reversed_tokens_have_descending_slots(build: Build) -> None:
    lens = {"q_lens": (12,), "k_lens": (12,)}
    plain, turned = (build("write_cache", options=o, **lens).tensors["slots"] for o in ((), ("reversed",)))
    assert torch.equal(plain.flip(0), turned) and bool((turned.diff() < 0).all())


def test_prefix_window_and_duplicates() -> None:
    assert drawn("prefix")[0] == list(range(24))
    assert drawn("window")[0] == list(range(114, 138))
    twice = drawn("duplicates")[0]
    assert len(set(twice)) < 24 and min(twice) >= 0


def test_cache_rows_are_permuted_and_belong_to_the_position(build: Build) -> None:
    inputs = build("sparse_mqa", options=("prefix",), dtype="fp32")
    kv, indices = inputs.tensors["kv"], inputs.tensors["indices"]
    batch = batch_of(inputs.case, torch.device("cpu"))
    expected = latents("randn", _mqa(inputs), batch.k)
    assert torch.equal(kv[indices[0].long()], expected[:24])
    assert torch.equal(kv[indices[8, :3].long()], expected[147:150])
    assert indices[0].tolist() != sorted(indices[0].tolist())
    assert not bool((indices == 0).any()) and len(kv) == 150 + SPARE


def _mqa(inputs: Inputs) -> Form:
    geometry = inputs.geometry
    return Form(inputs.case.seed, geometry.softmax_scale, geometry.latent_dim, geometry.kv_lora_rank, True)


def test_a_packed_cache_is_used_from_its_first_row_to_its_last(build: Build) -> None:
    tensors = build("sparse_mqa", q_lens=(9, 2), k_lens=(40, 2), topk=50, options=("packed",)).tensors
    used = tensors["indices"][tensors["indices"] >= 0].unique()
    assert len(tensors["kv"]) == 42 and used.tolist() == list(range(42))
    windows = build("sparse_mqa", q_lens=(2,), k_lens=(40,), topk=8, options=("packed", "window")).tensors["indices"]
    assert bool((windows.diff(dim=1) == 1).all())


@pytest.mark.parametrize("operator", ["gather", "gather_index", "convert_indices", "write_cache", "write_index"])
def test_packed_pages_are_used_from_the_first_to_the_last(build: Build, operator: str) -> None:
    lens = {"q_lens": (17, 5), "k_lens": (17, 5), "topk": 24, "options": ("packed", "page-16")}
    inputs = build(operator, **lens)
    if operator.startswith("write"):
        assert inputs.tensors["slots"].tolist() == [*range(17), *range(32, 37)]
    else:
        assert inputs.tensors["block_table"][:, :2].flatten()[:3].tolist() == [0, 1, 2]
    held = {"gather": "cache", "gather_index": "pages", "write_cache": "cache", "write_index": "pages"}.get(operator)
    assert (len(inputs.tensors[held]) if held else inputs.options["blocks"]) == 3


def test_packed_pages_of_a_decode_are_used_from_the_first_to_the_last(build: Build) -> None:
    tensors = build("paged_indexer_scores", q_lens=(1, 1), k_lens=(70, 9), options=("packed",)).tensors
    assert len(tensors["k_cache"]) == 3 and tensors["block_table"][0, :2].tolist() == [0, 1]
    assert int(tensors["block_table"][1, 0]) == 2


def test_invalid_values_cover_both_sides(build: Build) -> None:
    inputs = build("sparse_mqa", options=("invalid",), topk=64)
    indices, n = inputs.tensors["indices"], len(inputs.tensors["kv"])
    bad = set(indices[(indices < 0) | (indices >= n)].tolist())
    assert bad == {-(2**31), -123456, -1, n, n + 1, n + 114514, 2**31 - 1}


def test_empty_rows_combine_with_other_options(build: Build) -> None:
    indices = build("sparse_mqa", options=("empty-rows", "leading")).tensors["indices"]
    assert bool((indices[0] == -1).all()) and bool((indices[4] == -1).all())
    assert bool((indices >= 0).any())


def test_lengths_include_zero_and_tails_lie(build: Build) -> None:
    inputs = build("sparse_mqa", options=("lengths",), q_lens=(64,), k_lens=(200,))
    indices, lengths, n = inputs.tensors["indices"], inputs.tensors["lengths"], len(inputs.tensors["kv"])
    assert {0, 1, 24} <= set(lengths.tolist()) and lengths.dtype is torch.int32
    slot = torch.arange(24)
    head, tail = indices[slot < lengths[:, None]], indices[slot >= lengths[:, None]]
    assert bool(((head >= 0) & (head < n)).all())
    assert bool((tail == -1).any()) and bool((tail >= n).any()) and bool(((tail >= 0) & (tail < n)).any())


def test_sinks_are_finite_but_for_two_heads(build: Build) -> None:
    sink = build("sparse_mqa", options=("sink",), heads=6).tensors["sink"]
    assert sink.dtype is torch.float32 and sink[1] == float("-inf") and sink[4] == float("inf")
    assert bool(sink[[0, 2, 3, 5]].isfinite().all())


def test_highrows_put_the_rows_in_use_last(build: Build) -> None:
    inputs = build("sparse_mqa", options=("highrows",))
    indices = inputs.tensors["indices"]
    assert int(indices[indices >= 0].min()) > 65536 and len(inputs.tensors["kv"]) == 65536 + 150 + SPARE


def bits(inputs: Inputs) -> Tensor:
    """The mask as bools [b, s_padded, 32 * words]."""
    words = inputs.tensors["mask"].long()
    return ((words.unsqueeze(-1) >> torch.arange(32)) & 1).flatten(2).bool()


@pytest.mark.parametrize("pattern", MASK_PATTERNS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "noncausal"])
def test_mask_gives_each_query_its_keys(build: Build, pattern: str, causal: bool) -> None:
    options = (() if pattern == "causal-random" else (pattern,)) + (() if causal else ("noncausal",))
    inputs = build("masked_mha", options=tuple(sorted(options)))
    mask = bits(inputs)
    assert mask.shape == (4, 128, 256) and inputs.tensors["mask"].dtype is torch.int32
    for i, visible in enumerate((138, 139, 140) if causal else (140,) * 3):
        row = mask[0, i, :140]
        if pattern == "dense-mask":
            assert bool(row.all())
        elif pattern != "blocks":
            assert int(row.sum()) == 24 and not bool(row[visible:].any())
        if pattern == "prefix":
            assert bool(row[:24].all())
        if pattern == "window":
            assert bool(row[visible - 24 : visible].all())


def test_blocks_leave_whole_tiles_empty(build: Build) -> None:
    mask = bits(build("masked_mha", options=("blocks",), q_lens=(64,), k_lens=(1024,)))[0, :64]
    tiles = mask.view(64, 8, 128).any(-1)
    halves = mask.view(64, 16, 64).any(-1)
    assert not bool(tiles.all()) and bool(tiles.any())
    assert bool((tiles.repeat_interleave(2, 1) & ~halves).any())


@pytest.mark.parametrize("seed", range(4))
def test_mask_garbage_surrounds_the_part_that_counts(build: Build, seed: int) -> None:
    mask = bits(build("masked_mha", seed=seed))
    assert bool(mask[0, :3, 140:].any()) and bool(mask[0, 3:].any()) and bool(mask[1].any())


def test_mask_empty_rows(build: Build) -> None:
    mask = bits(build("masked_mha", options=("empty-rows",)))
    assert not bool(mask[0, 0, :140].any()) and not bool(mask[3, 0, :3].any())


def test_wider_batches_pad_queries_to_256(build: Build) -> None:
    mask = build("masked_mha", q_lens=(129, 1), k_lens=(129, 300)).tensors["mask"]
    assert mask.shape == (2, 256, 12)


@pytest.mark.parametrize("operator", ["indexer_scores", "topk_select"])
def test_windows_start_at_the_request_and_end_causally(build: Build, operator: str) -> None:
    tensors = build(operator).tensors
    assert tensors["ks"].tolist() == [0, 0, 0, 147, 147, 147, 147, 147, 147]
    assert (tensors["ke"] - tensors["ks"]).tolist() == VISIBLE
