"""The packed mask of masked attention: bit order, words, rows, and tiles skipped because of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..fault import sited
from ..simulated.sites import mask_bits
from ..wrapped import mangled

fault = sited("bitmask")


def _reversed_in(unit: int) -> Any:
    """Reads bit ``unit - 1 - j`` of each run of ``unit`` bits."""
    return lambda mask, request, rows, cols: mask_bits(mask, request, rows, cols ^ (unit - 1))


def _unpadded_rows(inputs: dict[str, Any]) -> dict[str, Any]:
    """Rows of a request found at ceil(keys / 32) words a row instead of the padded width."""
    mask, lengths = inputs["mask"], inputs["cu_k"].diff().tolist()
    wrong = torch.zeros_like(mask)
    for request, length in enumerate(lengths):
        words = (length + 31) // 32
        flat = mask[request].reshape(-1)
        wrong[request, :, :words] = flat[: mask.shape[1] * words].view(mask.shape[1], words)
    return {"mask": wrong}


def _rows_by_packed_query(inputs: dict[str, Any]) -> dict[str, Any]:
    """Row of a query taken from its packed number, without the start of its request."""
    mask, starts = inputs["mask"], inputs["cu_q"][:-1].tolist()
    rows = torch.arange(mask.shape[1], device=mask.device)
    shifted = [part[(rows + start) % mask.shape[1]] for part, start in zip(mask, starts, strict=True)]
    return {"mask": torch.stack(shifted)}


def _last_word_dropped(mask: Tensor, request: int, rows: Tensor, cols: Tensor) -> Tensor:
    return mask_bits(mask, request, rows, cols) & (cols < (mask.shape[2] - 1) * 32)


BITMASK = (
    fault(
        "mask-bits-reversed-in-word", "masked_mha", "The most significant bit of a word is taken for its first key.",
        "", "element", bits=_reversed_in(32),
    ),
    fault(
        "mask-bits-reversed-in-byte", "masked_mha", "Bits are packed from the most significant of each byte.", "",
        "element", bits=_reversed_in(8),
    ),
    fault(
        "mask-top-bit-lost", "masked_mha", "Bit 31 is tested through the sign of an int32 and never set.", "",
        "element", bits=lambda mask, b, rows, cols: mask_bits(mask, b, rows, cols) & (cols & 31 != 31),
    ),
    fault(
        "mask-inverted", "masked_mha", "A set bit hides its key.", "", "element",
        combine_masks=lambda bits, diagonal: ~bits & diagonal,
    ),
    fault(
        "mask-ignored", "masked_mha", "The mask is not applied; causality is.", "", "element",
        combine_masks=lambda bits, diagonal: diagonal,
    ),
    fault(
        "mask-replaces-causal", "masked_mha", "With a mask, causality is not applied.", "", "element",
        combine_masks=lambda bits, diagonal: bits,
    ),
    fault(
        "mask-or-causal", "masked_mha", "A key is seen if the mask or causality allows it.", "", "element",
        combine_masks=lambda bits, diagonal: bits | diagonal,
    ),
    fault(
        "mask-of-first-request", "masked_mha", "Every request uses the mask of the first.", "", "element",
        bits=lambda mask, b, rows, cols: mask_bits(mask, 0, rows, cols),
    ),
    fault(
        "mask-word-shifted", "masked_mha", "The mask is read one word to the right.", "", "element",
        bits=lambda mask, b, rows, cols: mask_bits(mask, b, rows, cols + 32),
    ),
    fault(
        "mask-row-stride-unpadded", "masked_mha", "Mask rows are read at the width of their own request.",
        "text-generation-inference#3324", "element", plant=mangled("masked_mha", _unpadded_rows),
    ),
    fault(
        "mask-row-by-packed-query", "masked_mha", "Mask rows are numbered by packed query, not inside the request.",
        "flashinfer#2201", "element", plant=mangled("masked_mha", _rows_by_packed_query),
    ),
    fault(
        "mask-last-word-dropped", "masked_mha", "The last word of each mask row is not read.", "", "element",
        bits=_last_word_dropped,
    ),
    fault(
        "mask-tile-skipped-by-first-word", "masked_mha", "A tile is skipped if its first 32 keys are hidden.", "",
        "element", skip=lambda seen: not bool(seen[:, :32].any()),
    ),
    fault(
        "mask-tile-skipped-by-first-row", "masked_mha", "A tile is skipped if its first query sees none of it.", "",
        "element", skip=lambda seen: not bool(seen[0].any()),
    ),
    fault(
        "mask-bits-past-end-trusted", "masked_mha", "Undefined bits past the last key let a query read beyond it.",
        "", "element", options=("noncausal",), inside=lambda cols, k_len: torch.ones_like(cols, dtype=torch.bool),
    ),
)
