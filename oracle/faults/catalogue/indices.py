"""Index rows of sparse attention: invalid entries, duplicates, lengths, pages and address arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..fault import sited
from ..wrapped import mangled

fault = sited("indices")


def _in_range(entry: Tensor, n: int) -> Tensor:
    return (entry >= 0) & (entry < n)


def _unique(indices: Tensor, n: int) -> Tensor:
    """Repeats of an entry within its row become -1."""
    order = indices.sort(dim=1, stable=True)
    repeated = torch.zeros_like(indices, dtype=torch.bool)
    repeated[:, 1:] = order.values[:, 1:] == order.values[:, :-1]
    return indices.masked_fill(torch.zeros_like(repeated).scatter(1, order.indices, repeated), -1)


def _until_invalid(indices: Tensor, n: int) -> Tensor:
    ended = (~_in_range(indices, n)).cumsum(1) > 0
    return indices.masked_fill(ended, -1)


def _prefix_of_count(indices: Tensor, n: int) -> Tensor:
    count = _in_range(indices, n).sum(1, keepdim=True)
    slots = torch.arange(indices.shape[1], device=indices.device)
    return indices.masked_fill(slots >= count, -1)


def _power_of_two_width(indices: Tensor, n: int) -> Tensor:
    width = 1 << (indices.shape[1].bit_length() - 1)
    slots = torch.arange(indices.shape[1], device=indices.device)
    return indices.masked_fill(slots >= width, -1) if width < indices.shape[1] else indices[:, : width - 1]


def _tail_of_next_row(indices: Tensor, slots: Tensor) -> Tensor:
    """Slots past the row end, clamped by the caller to the last one, hold the next query's entries."""
    repeated = torch.zeros_like(slots, dtype=torch.bool)
    repeated[1:] = slots[1:] == slots[:-1]
    past = torch.where(repeated, repeated.cumsum(0) - 1, 0)
    following = indices.roll(-1, 0)[:, past.clamp(max=indices.shape[1] - 1)]
    return torch.where(repeated, following, indices[:, slots])


def _int32_product(kv: Tensor, rows: Tensor) -> Tensor:
    """Rows gathered at a 32-bit product of row and stride; stray addresses wrap inside the storage."""
    size = kv.untyped_storage().nbytes() // kv.element_size()
    start = (rows.to(torch.int32) * torch.tensor(kv.stride(0), dtype=torch.int32)).long() + int(kv.storage_offset())
    flat = kv.as_strided((size,), (1,), 0)
    return flat[(start[..., None] + torch.arange(kv.shape[1], device=kv.device)) % size]


def _pages(indices: Tensor, change: Any) -> Tensor:
    """Valid entries with ``change`` applied; the rest as they were."""
    return torch.where(indices >= 0, change(indices), indices)


def _owned_by_local_table(indices: Tensor, n: int) -> Tensor:
    half = max(n // 2, 1)
    return torch.where(_in_range(indices, n), indices % half, indices)


def _cleared(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"indices": torch.full_like(inputs["indices"], -1)}


def _row_of_neighbour(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"indices": inputs["indices"].roll(1, 0)}


def _lengths_of_first(lengths: Tensor | None, indices: Tensor) -> Tensor | None:
    return None if lengths is None else lengths[:1].expand_as(lengths)


def _lengths_off_by_one(lengths: Tensor | None, indices: Tensor) -> Tensor | None:
    return None if lengths is None else lengths - 1


def _zero_length_is_all(lengths: Tensor | None, indices: Tensor) -> Tensor | None:
    return None if lengths is None else torch.where(lengths == 0, indices.shape[1], lengths)


INDICES = (
    fault(
        "invalid-maps-to-row-0", "sparse_mqa", "Invalid entries are converted to slot 0 and count.", "vllm#45324",
        "element", options=("invalid",), indices=lambda i, n: torch.where(_in_range(i, n), i, 0),
    ),
    fault(
        "invalid-loads-row-0-with-weight-0", "sparse_mqa",
        "Invalid entries load slot 0 with weight 0: NaN there leaks.",
        "vllm#57156", "structure", options=("invalid",), keep=torch.ones_like,
    ),
    fault(
        "negative-index-wraps", "sparse_mqa", "-1 names the last row, as in Python.", "flashinfer#5078", "element",
        options=("invalid",), indices=lambda i, n: torch.where(i == -1, n - 1, i),
    ),
    fault(
        "only-minus-one-is-invalid", "sparse_mqa", "Other negative entries are taken modulo the cache size.", "",
        "element", options=("invalid",),
        indices=lambda i, n: torch.where((i < -1), i.long() % n, i.long()).to(torch.int32),
    ),
    fault(
        "index-past-end-clamped", "sparse_mqa", "Entries past the cache name its last row.", "FlashMLA#184", "element",
        options=("invalid",), indices=lambda i, n: i.clamp(max=n - 1),
    ),
    fault(
        "index-equal-to-size-valid", "sparse_mqa", "The entry n passes the bounds check.", "sglang#39431", "element",
        options=("invalid",), valid=lambda entry, n: (entry >= 0) & (entry <= n),
    ),
    fault(
        "row-0-taken-as-invalid", "sparse_mqa", "Only entries above 0 are valid.", "", "element", options=("row0",),
        valid=lambda entry, n: (entry > 0) & (entry < n),
    ),
    fault(
        "duplicates-collapsed", "sparse_mqa", "An entry named twice counts once.", "", "element",
        options=("duplicates",), indices=_unique,
    ),
    fault(
        "stops-at-first-invalid", "sparse_mqa", "Entries after the first invalid one are not read.", "vllm#48366",
        "element", options=("interleaved",), indices=_until_invalid,
    ),
    fault(
        "valid-count-read-as-prefix", "sparse_mqa",
        "As many leading entries are read as there are valid ones anywhere.", "", "element",
        options=("interleaved",), indices=_prefix_of_count,
    ),
    fault(
        "first-entry-dropped", "sparse_mqa", "The first entry of each row is not read.", "", "element",
        seen=lambda seen, slots: seen & (slots > 0),
    ),
    fault(
        "entry-counted-twice", "sparse_mqa", "Tiles of slots overlap by one entry, which counts twice.", "", "element",
        slots=lambda k, block: range(0, k, block - 1),
    ),
    fault(
        "partial-slot-tile-dropped", "sparse_mqa", "Only whole tiles of slots are visited.", "", "element",
        slots=lambda k, block: range(0, k // block * block, block),
    ),
    fault(
        "slot-tail-reads-next-row", "sparse_mqa", "A last, partial tile of slots runs into the next query's row.", "",
        "element", inside=lambda slots, k: torch.ones_like(slots, dtype=torch.bool), entries=_tail_of_next_row,
    ),
    fault(
        "width-rounded-down", "sparse_mqa", "Of a width that is no power of two, only the power below is read; of one "
        "that is, the last slot is lost.", "sglang#39431", "element", indices=_power_of_two_width,
    ),
    fault(
        "lengths-ignored", "sparse_mqa", "Entries past the row's length count.", "vllm#36616", "element",
        options=("lengths",), counted=lambda lengths, indices: None,
    ),
    fault(
        "lengths-off-by-one", "sparse_mqa", "The last counted entry is not read.", "", "element",
        options=("lengths",), counted=_lengths_off_by_one,
    ),
    fault(
        "lengths-of-first-row", "sparse_mqa", "Every row has the length of the first.", "", "element",
        options=("lengths",), counted=_lengths_of_first,
    ),
    fault(
        "zero-length-means-all", "sparse_mqa", "Length 0 is taken for no length.", "", "element",
        options=("lengths",), counted=_zero_length_is_all,
    ),
    fault(
        "offset-product-wraps-at-32-bits", "sparse_mqa", "Row times stride is a 32-bit product.", "flashinfer#3130",
        "element", options=("hugerows",), gather=_int32_product,
    ),
    fault(
        "index-narrowed-to-16-bits", "sparse_mqa", "Entries are held in 16 bits.", "", "structure",
        options=("highrows",), address=lambda entry, n: entry.to(torch.int16).long() % n,
    ),
    fault(
        "pages-exchanged", "sparse_mqa", "Neighbouring pages of 64 rows are exchanged.", "pytorch#182593", "element",
        address=lambda entry, n: torch.where((entry ^ 64) < n, entry ^ 64, entry),
    ),
    fault(
        "page-of-another-request", "sparse_mqa", "The page table of a neighbour is used: rows half a cache away.", "",
        "element", address=lambda entry, n: (entry + n // 2) % n,
    ),
    fault(
        "page-size-mismatch", "sparse_mqa", "Pages of 64 rows are addressed as pages of 32.", "flash-attention#2367",
        "element", address=lambda entry, n: entry // 64 * 32 + entry % 64,
    ),
    fault(
        "page-table-never-filled", "sparse_mqa", "All pages resolve to page 0.", "sglang#26019", "element",
        address=lambda entry, n: entry % 64,
    ),
    fault(
        "page-offset-dropped", "sparse_mqa", "The offset inside a page is rounded down to 16 rows.", "", "element",
        address=lambda entry, n: entry // 16 * 16,
    ),
    fault(
        "global-index-in-rank-local-table", "sparse_mqa",
        "Global indices are looked up in one rank's half of the cache.", "vllm#54541", "element",
        indices=_owned_by_local_table,
    ),
    fault(
        "request-local-index-as-physical", "sparse_mqa", "Indices are taken relative to the first one of the row.",
        "vllm#56749", "element",
        indices=lambda i, n: _pages(i, lambda x: x - x.masked_fill(x < 0, n).amin(1, keepdim=True)),
    ),
    fault(
        "index-buffer-cleared", "sparse_mqa", "The indexer was skipped and all entries are -1.", "vllm#52512",
        "element", planted_in="reference-pipeline", plant=mangled("sparse_mqa", _cleared),
    ),
    fault(
        "index-rows-shifted", "sparse_mqa", "Decode queries read the index rows of the full batch, one row off.",
        "vllm#48611", "element", planted_in="reference-pipeline", plant=mangled("sparse_mqa", _row_of_neighbour),
    ),
)
