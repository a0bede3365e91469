"""Exact top-k that reads every score once: a row lives in the registers of one program while its threshold is sought,
and the next row comes into shared memory meanwhile.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy

from ..triton_kernels.checks import check_at_least, check_tensor
from ..triton_kernels.launch import processors
from .names import RESHAPES_PRIVATELY, barrier, copy_async
from .row_threshold import ones, threshold

#: Most scores of one program: 128 registers a thread of 256.
WIDEST = 32768
#: Whether the search learns to begin with a row's own mean and spread where rows lie apart from each other.
SAMPLED = True


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _window(ks, ke, row, t, scores_stride_s):
    """First element of the row's window, rounded down to 16 bytes; elements before the window; its length."""
    ks = gl.maximum(ks, 0)
    start = gl.cast(row, gl.int64) * scores_stride_s + ks
    aligned = start // 4 * 4
    return aligned, (start - aligned).to(gl.int32), gl.minimum(ke, t) - ks


@gluon.jit
def _near(scores_ptr, start, skip, length):
    """The first score of a window, 0 where there is none."""
    return gl.load(scores_ptr + start + skip, mask=length > 0, other=0.0)


@gluon.jit
def _words(skip, length, lane, DEEP: gl.constexpr, WIDE: gl.constexpr):
    """A word for each column, row DEEP - 1 in its lowest bit: which elements lie in the window."""
    outside = DEEP - gl.minimum(gl.maximum((skip + length - lane + (WIDE - 1)) // WIDE, 0), DEEP)
    word = gl.inline_asm_elementwise(
        "shl.b32 $0, -1, $1;", "=r,r", [outside], dtype=gl.int32, is_pure=True, pack=1
    )  # fmt: skip
    if DEEP < 32:
        word = word & ((1 << DEEP) - 1)
    return gl.where(lane < skip, word & ((1 << (DEEP - 1)) - 1), word)


@gluon.jit
def _beyond(end, start, skip, length):
    """Whether the last 16 bytes of a window reach beyond the end of the scores."""
    return start + (skip + length + 3) // 4 * 4 > end


@gluon.jit
def _fetch(smem, scores_ptr, end, start, skip, length, k, DEEP: gl.constexpr, WIDE: gl.constexpr, TAIL: gl.constexpr):
    """Start the copy of a row's window, 16 bytes a thread; a window that is taken whole is not read.

    TAIL: the scores end within 16 bytes. Where the window's last ones reach beyond the end, the columns of its last row
    are left to _complete.
    """
    if length > k:
        LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [1, WIDE // 128], [1, 0])
        FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        lane = gl.expand_dims(gl.arange(0, WIDE, layout=gl.SliceLayout(0, LAYOUT)), 0)
        deep = gl.expand_dims(gl.arange(0, DEEP, layout=gl.SliceLayout(1, LAYOUT)), 1)
        # One copy of the whole: copies of single rows would be kept apart by barriers.
        if RESHAPES_PRIVATELY:
            whole = smem._reinterpret(gl.float32, [DEEP, WIDE], FLAT)
        else:
            whole = smem.reinterpret(gl.float32, [DEEP, WIDE], FLAT)
        vectors = (skip + length + 3) // 4
        if TAIL:
            last = (skip + length - 1) // WIDE
            vectors = gl.where(_beyond(end, start, skip, length), last * (WIDE // 4), vectors)
        live = lane // 4 < vectors - deep * (WIDE // 4)
        copy_async(whole, scores_ptr + start + lane + deep * WIDE, mask=live)
    async_copy.commit_group()


@gluon.jit
def _complete(smem, scores_ptr, end, start, skip, length, k, WIDE: gl.constexpr):
    """What _fetch left out, loaded one by one, once its copies are done: they fill with zeros what they leave out."""
    if (length > k) & _beyond(end, start, skip, length):
        last = (skip + length - 1) // WIDE
        column = gl.arange(0, WIDE, layout=gl.BlockedLayout([4], [32], [WIDE // 128], [0]))
        live = column < skip + length - last * WIDE
        smem.index(last).store(gl.load(scores_ptr + start + last * WIDE + column, mask=live, other=0.0))
        barrier()


@gluon.jit
def _rows(smem, DEEP: gl.constexpr, LAYOUT: gl.constexpr):
    """What was fetched: a tuple with a tensor of each row's columns."""
    rows = ()
    for i in gl.static_range(DEEP):
        rows += (smem.index(i).load(LAYOUT),)  # type: ignore[assignment]
    return rows


@gluon.jit
def _write(out_ptr, word, first, k, at, DEEP: gl.constexpr, WIDE: gl.constexpr):
    """Positions of the elements of the words, from place `first` on and below place k."""
    many = ones(word)
    place = gl.associative_scan(many, 0, _add) - many + first
    for _ in range(gl.max(many, 0)):
        bit = gl.inline_asm_elementwise(
            "bfind.u32 $0, $1;", "=r,r", [word & (0 - word)], dtype=gl.int32, is_pure=True, pack=1
        )  # fmt: skip
        gl.store(out_ptr + place, at + (DEEP - 1 - bit) * WIDE, mask=(word != 0) & (place < k))
        word = word & (word - 1)
        place += 1


@gluon.jit(do_not_specialize=["s", "t", "k", "scores_stride_s"])
def _topk_select_kernel(
    scores_ptr, ks_ptr, ke_ptr, indices_ptr, s, t, k, scores_stride_s, DEEP: gl.constexpr, WIDE: gl.constexpr,
    TAIL: gl.constexpr, SAMPLED: gl.constexpr,
):  # fmt: skip
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [WIDE // 128], [0])
    lane = gl.arange(0, WIDE, layout=LAYOUT)
    smem = gl.allocate_shared_memory(gl.float32, [DEEP, WIDE], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    end = gl.cast(s - 1, gl.int64) * scores_stride_s + t
    step = gl.num_programs(0)
    row = gl.program_id(0)
    last = row * 0
    unit = last.to(gl.float32)
    # Of a normal distribution's upper sixteenth, until rows have told.
    apart = last + 1
    z = unit + 1.5
    z_unit = unit + 0.35
    start, skip, length = _window(gl.load(ks_ptr + row), gl.load(ke_ptr + row), row, t, scores_stride_s)
    near = _near(scores_ptr, start, skip, length)
    after = gl.minimum(row + step, s - 1)
    next_ks = gl.load(ks_ptr + after)
    next_ke = gl.load(ke_ptr + after)
    _fetch(smem, scores_ptr, end, start, skip, length, k, DEEP, WIDE, TAIL)
    for row in range(gl.program_id(0), s, step):
        out_ptr = indices_ptr + gl.cast(row, gl.int64) * k
        # The window of the next row is here; that of the row after it comes meanwhile.
        here = start
        start, next_skip, next_length = _window(next_ks, next_ke, row + step, t, scores_stride_s)
        next_length = gl.where(row + step < s, next_length, 0)
        next_near = _near(scores_ptr, start, next_skip, next_length)
        after = gl.minimum(row + 2 * step, s - 1)
        next_ks = gl.load(ks_ptr + after)
        next_ke = gl.load(ke_ptr + after)
        async_copy.wait_group(0)
        barrier()
        if TAIL:
            _complete(smem, scores_ptr, end, here, skip, length, k, WIDE)
        scores = _rows(smem, DEEP, LAYOUT)
        barrier()
        _fetch(smem, scores_ptr, end, start, next_skip, next_length, k, DEEP, WIDE, TAIL)
        if length <= k:
            for first in range(0, k, WIDE):
                place = first + lane
                gl.store(out_ptr + place, gl.where(place < length, place, -1), mask=place < k)
        else:
            window = _words(skip, length, lane, DEEP, WIDE)
            last, reach, above, word_reach, word_above, unit, apart, z, z_unit = threshold(
                scores, window, length, k, near, last, unit, apart, z, z_unit, DEEP, SAMPLED
            )
            _write(out_ptr, gl.where(reach == k, word_reach, word_above), 0, k, lane - skip, DEEP, WIDE)
            if reach != k:
                # Of the tied as many as are still missing.
                _write(out_ptr, word_reach & ~word_above, above, k, lane - skip, DEEP, WIDE)
        near = next_near
        skip = next_skip
        length = next_length


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
        scores, ks, ke, indices, s, t, k, scores.stride(0), DEEP=deep, WIDE=wide,
        TAIL=((s - 1) * scores.stride(0) + t) % 4 != 0, SAMPLED=SAMPLED, num_warps=warps,
    )  # fmt: skip
    return (indices,)


def shape_of(t: int) -> tuple[int, int, int, int]:
    """Rows of four scores a thread holds, columns, warps, programs that a multiprocessor holds: enough for t scores."""
    for deep, warps, resident in ((4, 4, 6), (4, 16, 2), (32, 8, 1)):
        if deep * warps * 128 >= t:
            return deep, warps * 128, warps, resident
    raise ValueError(f"scores: expected at most {WIDEST} columns, got {t}")
