"""Exact top-k in windows by radix selection, one program a row.

Four passes over the row find the k-th largest score, eight bits at a time; a fifth collects what is above it and, in
order of position, as many of its equals as are still missing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .checks import check_at_least, check_tensor


@triton.jit
def _order(scores):
    """uint32 in the order of the scores: NaN above +inf, -0.0 equal to 0.0."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    flipped = bits ^ ((bits >> 31) | -2147483648)
    return tl.where(scores != scores, -1, flipped).to(tl.uint32, bitcast=True)


@triton.jit
def _topk_select_kernel(scores_ptr, ks_ptr, ke_ptr, indices_ptr, t, k, scores_stride_s, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    ks = tl.maximum(tl.load(ks_ptr + row), 0)
    length = tl.minimum(tl.load(ke_ptr + row), t) - ks
    scores_ptr += row * scores_stride_s + ks
    indices_ptr += row * k
    lane = tl.arange(0, BLOCK)
    if length <= k:
        for start in range(0, k, BLOCK):
            at = start + lane
            tl.store(indices_ptr + at, tl.where(at < length, at, -1), mask=at < k)
        return

    missing = k
    prefix = tl.zeros([], tl.uint32)
    digits = tl.arange(0, 256)
    for step in tl.static_range(4):
        counts = tl.zeros([256], tl.int32)
        for start in range(0, length, BLOCK):
            at = start + lane
            order = _order(tl.load(scores_ptr + at, mask=at < length, other=0.0))
            candidate = at < length
            if step > 0:
                candidate = candidate & ((order >> (32 - 8 * step)) == prefix)
            counts += tl.histogram(((order >> (24 - 8 * step)) & 255).to(tl.int32), 256, mask=candidate)
        at_least = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts  # candidates whose digit is this or higher
        digit = tl.sum((at_least >= missing).to(tl.int32), 0) - 1
        missing -= tl.sum(tl.where(digits > digit, counts, 0), 0)
        prefix = (prefix << 8) | digit.to(tl.uint32)

    taken = 0
    for start in range(0, length, BLOCK):
        at = start + lane
        order = _order(tl.load(scores_ptr + at, mask=at < length, other=0.0))
        equal = ((at < length) & (order == prefix)).to(tl.int32)
        take = ((at < length) & (order > prefix)) | ((equal != 0) & (tl.cumsum(equal, 0) <= missing))
        place = taken + tl.cumsum(take.to(tl.int32), 0) - 1
        tl.store(indices_ptr + place, at, mask=take)
        missing -= tl.sum(equal, 0)
        taken += tl.sum(take.to(tl.int32), 0)


def topk_select(scores: torch.Tensor, ks: torch.Tensor, ke: torch.Tensor, *, k: int) -> tuple[torch.Tensor]:
    """Positions, counted from ks, of the k largest scores among the columns [ks, ke) of each row.

    Shapes:
        scores: [s, t] fp32, row stride free; columns outside a row's window are never used
        ks, ke: [s] int32; a window is clipped to [0, t)
    Returns (indices [s, k] int32,): ascending; of equal scores at the threshold, those at the lowest positions. NaN
    ranks above +inf, -0.0 equals 0.0. A window of at most k columns gives 0, 1, … and then -1, its scores unread.
    Raises ValueError for shapes, dtypes, devices or inner strides that do not fit. Never waits for the device.
    """
    check_tensor("scores", scores, "[s, t]", (None, None), (torch.float32,), scores.device)
    s, t = scores.shape
    check_tensor("ks", ks, "[s]", (s,), (torch.int32,), scores.device)
    check_tensor("ke", ke, "[s]", (s,), (torch.int32,), scores.device)
    check_at_least("k", k, 1)
    indices = torch.empty((s, k), dtype=torch.int32, device=scores.device)
    if s == 0:
        return (indices,)
    config = launch.topk(max(t, 1))
    _topk_select_kernel[(s,)](
        scores, ks, ke, indices, t, k, scores.stride(0),
        BLOCK=config.columns, num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return (indices,)
