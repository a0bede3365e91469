"""Quantising new keys of the indexer into its paged cache, all codes of a page before all its scales."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import ATTENTION_DTYPES, FORMATS, check_pages, check_scale_rule, check_tensor
from .float8 import as_fp32, block_scales, codes_of
from .padding import padded


@triton.jit
def _write_index_kernel(
    k_ptr, slots_ptr, pages_ptr, s, page_size, slot_count, k_stride, page_stride, least_amax,
    E: tl.constexpr, E_BLOCK: tl.constexpr, POW2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + token, mask=token < s, other=-1).to(tl.int64)
    live = (slot >= 0) & (slot < slot_count)
    page_ptr, place = pages_ptr + slot // page_size * page_stride, slot % page_size
    columns = tl.arange(0, E_BLOCK)
    inside = live[:, None] & (columns < E)[None, :]
    k = tl.load(k_ptr + (token * k_stride)[:, None] + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = block_scales(k, least_amax, 0.0, POW2)
    tl.store((page_ptr + place * E)[:, None] + columns[None, :], codes_of(k, scale[:, None]), mask=inside)
    tl.store(as_fp32(page_ptr + page_size * E + place * 4), scale, mask=live)


def write_index(
    k: torch.Tensor, slots: torch.Tensor, pages: torch.Tensor, *, scale_format: str = "pow2", least_amax: float = 1e-4
) -> tuple[()]:
    """Stores the codes and scales of new keys at their slots; returns nothing.

    Shapes:
        k: [s, e] bf16, fp16 or fp32, row stride free
        slots: [s] int64, distinct; one outside [0, blocks * block_size) is not written
        pages: [blocks, block_size * (e + 4)] uint8, page stride free: codes of all tokens, then their fp32 scales
    Raises ValueError, before anything is written, for what does not fit and for scales that are not aligned to 4.
    """
    check_tensor("k", k, "[s, e]", (None, None), ATTENTION_DTYPES, k.device)
    s, e = k.shape
    check_tensor("slots", slots, "[s]", (s,), (torch.int64,), k.device)
    size = check_pages(pages, e, k.device)
    check_scale_rule(scale_format, least_amax, 0.0, FORMATS)
    blocks = pages.size(0)
    if s == 0 or blocks == 0:
        return ()
    config = launch.rows(padded(e), launch.room(k.device))
    _write_index_kernel[(triton.cdiv(s, config.rows),)](
        k, slots, pages, s, size, blocks * size, k.stride(0), pages.stride(0), least_amax,
        E=e, E_BLOCK=padded(e), POW2=scale_format == "pow2", BLOCK=config.rows,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return ()
