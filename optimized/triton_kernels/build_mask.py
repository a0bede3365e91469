"""Packing selections into bits: one program a query scatters its bits into zeros, with an atomic OR each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import check_at_least, check_tensor
from .paging import request_of


@triton.jit
def _build_mask_kernel(
    indices_ptr, cu_q_ptr, starts_ptr, lengths_ptr, mask_ptr, k, b, rows, words, most_bits, indices_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0)
    request = request_of(cu_q_ptr, query, b)
    row = query - tl.load(cu_q_ptr + request)
    start = tl.load(starts_ptr + request)
    length = tl.minimum(tl.load(lengths_ptr + request), most_bits)
    length = tl.where(row < rows, length, 0)
    row_ptr = mask_ptr + (request.to(tl.int64) * rows + row) * words
    for first in range(0, k, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        position = tl.load(indices_ptr + query.to(tl.int64) * indices_stride + slot, mask=slot < k, other=-1)
        bit = position - start
        set_ = (position >= 0) & (bit >= 0) & (bit < length)
        tl.atomic_or(row_ptr + (bit >> 5), 1 << (bit & 31), mask=set_, sem="relaxed")


def build_mask(
    indices: torch.Tensor,
    cu_q: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    *,
    rows: int,
    words: int,
    key_starts: torch.Tensor | None = None,
) -> tuple[torch.Tensor]:
    """Bit j & 31 of word j >> 5 of mask[b, i]: query i of request b selected position starts[b] + j, j < lengths[b].

    Shapes:
        indices: [s, k] int32 request-local positions, row stride free; negative ones and those outside set no bit
        cu_q: [b + 1] int32 prefix sums of queries; starts, lengths: [b] int32
        rows, words: of the mask; queries and bits that it has no room for set none
        key_starts: [b] int32, stored in the last word of row 0, which then holds no bits
    Returns (mask [b, rows, words] int32,).
    Raises ValueError for shapes, dtypes, devices or inner strides that do not fit. Never waits for the device.
    """
    check_tensor("indices", indices, "[s, k]", (None, None), (torch.int32,), indices.device)
    s, k = indices.shape
    check_tensor("starts", starts, "[b]", (None,), (torch.int32,), indices.device)
    b = starts.size(0)
    check_tensor("lengths", lengths, "[b]", (b,), (torch.int32,), indices.device)
    check_tensor("cu_q", cu_q, "[b + 1]", (b + 1,), (torch.int32,), indices.device)
    keyed = key_starts is not None
    check_at_least("rows", rows, int(keyed))
    check_at_least("words", words, int(keyed))
    mask = torch.zeros((b, rows, words), dtype=torch.int32, device=indices.device)
    if s > 0 and b > 0 and k > 0:
        config = launch.topk(k)
        _build_mask_kernel[(s,)](
            indices, cu_q, starts, lengths, mask, k, b, rows, words, (words - keyed) * 32, indices.stride(0),
            BLOCK=config.columns, num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    if key_starts is not None:
        check_tensor("key_starts", key_starts, "[b]", (b,), (torch.int32,), indices.device)
        mask[:, 0, words - 1] = key_starts
    return (mask,)
