"""Exact top-k that reads every score once: a row lives in the registers of one program while its threshold is sought,
and the next row comes into shared memory meanwhile.

The threshold is bracketed between a score that at least k scores reach and one that fewer reach. Each step counts the
scores at or above a pivot: in turn the middle of the bracket in the order of floats, and the point where a straight
line through the logarithms of the two counts meets k. It ends when exactly k scores reach the pivot, or nothing lies
between.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy

from ..triton_kernels.checks import check_at_least, check_tensor
from .names import barrier, copy_async

#: Most scores of one program: 128 registers a thread of 256; of 512 and 1,024 threads each step took longer.
WIDEST = 32768
#: Steps that look at the counts; after them the bracket is halved alone, 32 times at most.
_STEPS = gl.constexpr(24)
_NAN = gl.constexpr(0x7FFFFFFE)
_NOTHING = gl.constexpr(-0x80000000)


@gluon.jit
def _order(scores):
    """int32 in the order of the scores: NaN above +inf, -0.0 equal to 0.0, all above _NOTHING."""
    bits = gl.where(scores == 0.0, 0.0, scores).to(gl.int32, bitcast=True)
    return gl.where(scores != scores, _NAN, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@gluon.jit
def _score(order):
    """The score of an order, a scalar; what _order takes back."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(gl.float32, bitcast=True)


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _count(order, pivot):
    return gl.sum(gl.sum((order >= pivot).to(gl.int32), 0), 0)


@gluon.jit
def _threshold(order, length, k):
    """(order of the k-th largest score or of one that exactly k reach, how many reach it, how many lie above)."""
    low = gl.min(gl.min(gl.where(order != _NOTHING, order, _NAN), 0), 0)
    high = gl.max(gl.max(order, 0), 0) + 1
    at_low = length
    at_high = length * 0
    step = length * 0
    k = length * 0 + k  # a tensor, also where k is a constant
    goal = gl.log2(k.to(gl.float32))
    while (high - 1 > low) & (at_low != k):
        pivot = (low & high) + ((low ^ high) >> 1)
        if (step < _STEPS) & (step % 2 == 0):
            top = gl.log2(at_low.to(gl.float32))
            bottom = gl.log2(gl.maximum(at_high.to(gl.float32), 0.5))
            least = _score(low)
            guess = least + (_score(high - 1) - least) * ((top - goal) / (top - bottom))
            # Infinite ends give no finite guess.
            if gl.abs(guess) < float("inf"):
                pivot = _order(guess)
        pivot = gl.minimum(gl.maximum(pivot, low + 1), high - 1)
        count = _count(order, pivot)
        if count >= k:
            low = pivot
            at_low = count
        else:
            high = pivot
            at_high = count
        step += 1
    return low, at_low, at_high


@gluon.jit
def _ones(bits):
    """How many bits are set."""
    return gl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [bits], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _places(chosen):
    """Rank from 1 of each chosen element, column after column: a thread owns four columns of at most 32 elements."""
    WARPS: gl.constexpr = chosen.shape[1] // 128
    LAYOUT: gl.constexpr = chosen.type.layout
    row = gl.expand_dims(gl.arange(0, chosen.shape[0], layout=gl.SliceLayout(1, LAYOUT)), 1)
    column = gl.sum(chosen << row, 0)
    many = gl.convert_layout(_ones(column), gl.BlockedLayout([4], [32], [WARPS], [0]))
    before = gl.associative_scan(many, 0, _add) - many
    before = gl.convert_layout(before, gl.SliceLayout(0, LAYOUT))
    return gl.expand_dims(before, 0) + _ones(gl.expand_dims(column, 0) & ((2 << row) - 1))


@gluon.jit
def _window(ks_ptr, ke_ptr, row, t, scores_stride_s):
    """First element of the row's window, rounded down to 16 bytes; elements before the window; its length."""
    ks = gl.maximum(gl.load(ks_ptr + row), 0)
    length = gl.minimum(gl.load(ke_ptr + row), t) - ks
    start = row.to(gl.int64) * scores_stride_s + ks
    aligned = start // 4 * 4
    return aligned, (start - aligned).to(gl.int32), length


@gluon.jit
def _fetch(smem, scores_ptr, ks_ptr, ke_ptr, row, s, t, k, scores_stride_s, at):
    """Start the copy of a row's window, 16 bytes a thread; a window that is taken whole is not read."""
    if row < s:
        start, skip, length = _window(ks_ptr, ke_ptr, row, t, scores_stride_s)
        live = (at // 4 < (skip + length + 3) // 4) & (length > k)
        copy_async(smem, scores_ptr + start + at, mask=live)
    async_copy.commit_group()


@gluon.jit(do_not_specialize=["s", "t", "k", "scores_stride_s"])
def _topk_select_kernel(
    scores_ptr, ks_ptr, ke_ptr, indices_ptr, s, t, k, scores_stride_s, DEEP: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    WARPS: gl.constexpr = WIDE // 128
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [1, WARPS], [1, 0])
    lane = gl.arange(0, WIDE, layout=gl.SliceLayout(0, LAYOUT))
    at = gl.expand_dims(gl.arange(0, DEEP, layout=gl.SliceLayout(1, LAYOUT)), 1) * WIDE + gl.expand_dims(lane, 0)
    smem = gl.allocate_shared_memory(gl.float32, [DEEP, WIDE], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    step = gl.num_programs(0)
    _fetch(smem, scores_ptr, ks_ptr, ke_ptr, gl.program_id(0), s, t, k, scores_stride_s, at)
    for row in range(gl.program_id(0), s, step):
        _, skip, length = _window(ks_ptr, ke_ptr, row, t, scores_stride_s)
        out_ptr = indices_ptr + gl.cast(row, gl.int64) * k
        async_copy.wait_group(0)
        barrier()
        scores = smem.load(LAYOUT)
        barrier()
        _fetch(smem, scores_ptr, ks_ptr, ke_ptr, row + step, s, t, k, scores_stride_s, at)
        if length <= k:
            for start in range(0, k, WIDE):
                place = start + lane
                gl.store(out_ptr + place, gl.where(place < length, place, -1), mask=place < k)
        else:
            order = gl.where((at >= skip) & (at < skip + length), _order(scores), _NOTHING)
            threshold, reach, above = _threshold(order, length, k)
            if reach != k:
                # As many of the tied as are still missing: the rest is put below everything.
                tied = order == threshold
                spare = tied & (_places(tied.to(gl.int32)) > k - above)
                order = gl.where(spare, _NOTHING, order)
            take = order >= threshold
            gl.store(out_ptr + _places(take.to(gl.int32)) - 1, at - skip, mask=take)


def topk_select(scores: torch.Tensor, ks: torch.Tensor, ke: torch.Tensor, *, k: int) -> tuple[torch.Tensor]:
    """Positions, counted from ks, of the k largest scores among the columns [ks, ke) of each row.

    Shapes:
        scores: [s, t] fp32, row stride free, t at most 32,768; columns outside a row's window are never used
        ks, ke: [s] int32; a window is clipped to [0, t)
    Returns (indices [s, k] int32,) in no particular order, any of equal scores at the threshold. NaN ranks above +inf,
    -0.0 equals 0.0. A window of at most k columns gives 0, 1, … and then -1, its scores unread.
    Raises ValueError for shapes, dtypes, devices or inner strides that do not fit. Never waits for the device.
    """
    check_tensor("scores", scores, "[s, t]", (None, None), (torch.float32,), scores.device)
    s, t = scores.shape
    check_tensor("ks", ks, "[s]", (s,), (torch.int32,), scores.device)
    check_tensor("ke", ke, "[s]", (s,), (torch.int32,), scores.device)
    check_at_least("k", k, 1)
    reach = t + (3 if scores.stride(0) % 4 else 0)
    if reach > WIDEST:
        raise ValueError(f"scores: expected at most {WIDEST} columns, got {t}; topk_select/triton takes more")
    if scores.data_ptr() % 16:
        raise ValueError("scores: expected data that starts at a multiple of 16 bytes; make it contiguous")
    indices = torch.empty((s, k), dtype=torch.int32, device=scores.device)
    if s == 0:
        return (indices,)
    deep, wide, warps, resident = shape_of(reach)
    programs = min(s, resident * processors(scores.device))
    _topk_select_kernel[(programs,)](
        scores, ks, ke, indices, s, t, k, scores.stride(0), DEEP=deep, WIDE=wide, num_warps=warps,
    )  # fmt: skip
    return (indices,)


def shape_of(t: int) -> tuple[int, int, int, int]:
    """Rows of four scores a thread holds, columns, warps, programs that a multiprocessor holds: enough for t scores."""
    for deep, warps, resident in ((4, 4, 6), (4, 16, 2), (32, 8, 1)):
        if deep * warps * 128 >= t:
            return deep, warps * 128, warps, resident
    raise ValueError(f"scores: expected at most {WIDEST} columns, got {t}")


def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
