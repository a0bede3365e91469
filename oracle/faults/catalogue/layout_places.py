"""Faults of the layout operators in where things lie: slots, pages, chunks, sentinels, masks, offsets past 32 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..fault import sited

fault = sited("layout-places")


def _wrapped(page: Tensor, blocks: int) -> Tensor:
    """The page that 31 bits of the offset point to, were pages 64 KiB apart: a stray access inside the cache."""
    return (page * 2**16 & 0x7FFFFFFF) // 2**16 % blocks


def _wrapping_row(page: Tensor, page_rows: int, place: Tensor) -> Tensor:
    return (page.to(torch.int32) * page_rows + place.to(torch.int32)).long()


def _packed(rows: Tensor, valid: Tensor) -> Tensor:
    """Entries are moved to the front, and what they leave behind stays."""
    packed = rows.gather(1, (~valid).to(torch.uint8).argsort(dim=1, stable=True))
    slot = torch.arange(rows.shape[1], device=rows.device)
    return torch.where(slot < valid.sum(1, keepdim=True), packed, rows.amax(1, keepdim=True))


def _added(mask: Tensor, word: Tensor, value: Tensor) -> Tensor:
    """Bits are added: one that is set twice carries into the next."""
    return mask.scatter_add_(0, word, value)


def _last_writer(mask: Tensor, word: Tensor, value: Tensor) -> Tensor:
    """Words are stored without an atomic: the last bit wins."""
    mask[word] = value
    return mask


LAYOUT_PLACES = (
    fault(
        "padding-written-to-the-last-slot", "write_cache", "A slot of -1 wraps around to the last row.",
        "flashinfer#5078", "exact", kept=lambda slots, rows: slots < rows,
        slots=lambda slots, rows: slots % rows, options=("padding",),
    ),
    fault(
        "padding-written-to-slot-0", "write_index", "A slot of -1 is clamped to 0.", "vllm#45324", "exact",
        kept=lambda slots, rows: slots < rows, slots=lambda slots, rows: slots.clamp(min=0), options=("padding",),
    ),
    fault(
        "slots-beyond-the-cache-wrap", "write_cache", "A slot beyond the last page is taken modulo the cache.", "",
        "exact", kept=lambda slots, rows: slots >= 0, slots=lambda slots, rows: slots % rows, options=("outside",),
    ),
    fault(
        "slot-off-by-one", "write_index", "Every key goes to the slot after its own.", "", "exact",
        slots=lambda slots, rows: (slots + 1) % rows,
    ),
    fault(
        "first-token-unwritten", "write_cache", "The first new token is not stored.", "", "exact",
        kept=lambda slots, rows: (slots >= 0) & (slots < rows) & (torch.arange(len(slots), device=slots.device) > 0),
    ),
    fault(
        "slot-page-size-fixed", "write_cache", "Slots are split into pages of 64 whatever the page size.",
        "flash-attention#2367", "exact", place=lambda position, size: position % 64 % size,
        page=lambda page, blocks: page * 16 // 64, options=("page-16",),
    ),
    fault(
        "chunk-start-forgotten", "gather", "Every chunk begins at position 0.", "", "exact",
        position=lambda offset, start: offset, options=("chunk",),
    ),
    fault(
        "chunk-start-of-its-page", "gather_index", "A chunk begins at the first row of its page.", "", "exact",
        position=lambda offset, start: offset + start // 16 * 16, options=("chunk", "page-16"),
    ),
    fault(
        "missing-page-read-as-page-0", "gather", "An entry of -1 in the block table is read as page 0.",
        "vllm#45324", "exact", held=lambda page, blocks: page < blocks,
        page=lambda page, blocks: page.clamp(min=0), options=("holes",),
    ),
    fault(
        "missing-page-read-as-the-last", "gather_index", "An entry of -1 wraps around to the last page.",
        "flashinfer#5078", "exact", held=lambda page, blocks: page < blocks,
        page=lambda page, blocks: page.clamp(min=-1) % blocks, options=("holes",),
    ),
    fault(
        "page-beyond-the-cache-clamped", "gather", "A page beyond the cache is read as the last one.", "", "exact",
        held=lambda page, blocks: page >= 0, page=lambda page, blocks: page.clamp(max=blocks - 1),
        options=("holes",),
    ),
    fault(
        "rows-without-a-page-left-unset", "gather", "Rows whose page is missing are not written.", "", "exact",
        missing=torch.empty_like, options=("holes",),
    ),
    fault(
        "block-table-of-the-first-request", "gather", "All requests use the first row of the block table.", "",
        "exact", entry=lambda table, request, column: table[torch.zeros_like(request), column],
        options=("requests=2",),
    ),
    fault(
        "request-found-one-late", "gather_index", "The first token of a request counts to the one before.", "",
        "exact", request=lambda cu, token: torch.searchsorted(cu[1:], token), options=("requests=2",),
    ),
    fault(
        "gathered-page-wraps-at-31-bits", "gather", "Page times stride keeps 31 bits: another page is read.",
        "flashinfer#3136", "exact", page=_wrapped, options=("fp8_ds_mla", "hugerows"),
    ),
    fault(
        "written-page-wraps-at-31-bits", "write_cache", "Page times stride keeps 31 bits: another page is written.",
        "aiter#4474", "exact", page=_wrapped, options=("fp8_ds_mla", "hugerows"),
    ),
    fault(
        "invalid-index-becomes-0", "convert_indices", "Invalid entries become 0, the first row.", "vllm#45324",
        "exact", invalid=0,
    ),
    fault(
        "index-product-wraps-at-32-bits", "convert_indices", "page * page_rows wraps and is looked at afterwards.",
        "vllm#50427", "exact", held=lambda page, blocks: page >= 0, row_number=_wrapping_row,
        options=("holes", "kind=far"),
    ),
    fault(
        "negative-position-wraps", "convert_indices", "Position -1 is looked up from the end of the table.",
        "flashinfer#5078", "exact", reached=lambda position, column, most: (column >= -most) & (column < most),
    ),
    fault(
        "page-stride-ignored", "convert_indices", "Pages are taken to lie as close as they are long.",
        "vllm#46856", "exact", row_number=lambda page, page_rows, place: page * (page_rows - 3) + place,
        options=("padded-pages",),
    ),
    fault(
        "positions-taken-for-rows", "convert_indices", "Positions are passed on as if they were rows.",
        "vllm#54541", "exact", row_number=lambda page, page_rows, place: place,
    ),
    fault(
        "page-beyond-the-cache-converted", "convert_indices", "Pages outside the cache give rows.", "sglang#39431",
        "exact", held=lambda page, blocks: page >= 0, options=("holes",),
    ),
    fault(
        "valid-count-of-the-row", "convert_indices", "The count is that of all entries.", "vllm#36616", "exact",
        count=lambda valid: torch.full_like(valid.sum(1), valid.shape[1]),
    ),
    fault(
        "compacted-tail-left-behind", "convert_indices", "Behind the compacted entries old ones stay.",
        "vllm#36616", "exact", compact=_packed, options=("compact",),
    ),
    fault(
        "entries-not-compacted", "convert_indices", "Valid entries stay where they are.", "vllm#36616", "exact",
        compact=lambda rows, valid: rows, options=("compact",),
    ),
    fault(
        "mask-bits-from-the-top", "build_mask", "Bit 0 is the highest of a word.", "", "exact",
        bit=lambda bit: 31 - (bit & 31),
    ),
    fault(
        "mask-word-of-64", "build_mask", "Words are counted in 64 bits.", "", "exact", word=lambda bit: bit >> 6,
    ),
    fault(
        "mask-duplicates-carry", "build_mask", "Bits are added, so a duplicate carries into the next.", "", "exact",
        combine=_added, options=("duplicates",),
    ),
    fault(
        "mask-words-without-atomics", "build_mask", "The last key of a word wins.", "", "exact", combine=_last_writer,
    ),
    fault(
        "mask-chunk-not-remapped", "build_mask", "Positions of a chunk are not moved to its start.", "", "exact",
        local=lambda positions, start: positions, options=("chunk",),
    ),
    fault(
        "mask-span-end-inclusive", "build_mask", "The first key behind a chunk sets a bit.", "", "exact",
        in_span=lambda local, length: (local >= 0) & (local <= length), options=("chunk",),
    ),
    fault(
        "mask-key-start-in-first-word", "build_mask", "The start of the keys overwrites the first word.", "", "exact",
        key_start_at=lambda words: 0, options=("global",),
    ),
)  # fmt: skip
