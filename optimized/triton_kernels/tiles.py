"""What the attention kernels share: finding work in a ragged batch, loading rows, and the online softmax.

Scores are in base-2 units (scale times log2 e), so that one exp2 is one instruction.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def locate_tile(cu_q_ptr, cu_k_ptr, tile, b, s, BLOCK: tl.constexpr):
    """Request and rows of a query tile, without the host knowing any length.

    Request ``r`` owns the tiles from ``cu_q[r] // BLOCK + r`` on: at least as many as it needs, the rest idle. Rows
    at or beyond cu_q[b] form a last request without keys, so that every output row is written.
    Returns request, first row in the request, start and count of its queries, start and count of its keys.
    """
    low = tile * 0  # a scalar for Triton and Gluon alike
    high = b
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(cu_q_ptr + middle) // BLOCK + middle <= tile:
            low = middle
        else:
            high = middle - 1
    real = low < b
    q_start = tl.load(cu_q_ptr + low)
    q_end = tl.load(cu_q_ptr + low + 1, mask=real, other=s)
    k_start = tl.load(cu_k_ptr + low)
    k_end = tl.load(cu_k_ptr + low + 1, mask=real, other=k_start)
    first = (tile - (q_start // BLOCK + low)) * BLOCK
    return low, first, q_start, q_end - q_start, k_start, k_end - k_start


@triton.jit
def load_rows(
    ptr, rows, stride, live, START: tl.constexpr, END: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr
):
    """[rows, BLOCK]: columns from START of each row; 0 where ``live`` is false (if MASKED) and from column END on.

    Offsets are 64-bit: a row number times a stride passes 2**31 in any large cache.
    """
    columns = START + tl.arange(0, BLOCK)
    ptrs = ptr + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    if START + BLOCK > END:
        inside = (columns < END)[None, :]
        if MASKED:
            inside = live[:, None] & inside
        tile = tl.load(ptrs, mask=inside, other=0.0)
    elif MASKED:
        tile = tl.load(ptrs, mask=live[:, None], other=0.0)
    else:
        tile = tl.load(ptrs)
    return tile


@triton.jit
def scores_of(q_main, q_rest, k_ptr, keys, stride, live, scale_log2, D, D_MAIN, D_REST, MASKED: tl.constexpr):
    """[rows, keys] fp32 scores of a query tile, q.k in one or two blocks of columns; 0 where a key is not live."""
    k_main = load_rows(k_ptr, keys, stride, live, 0, D, D_MAIN, MASKED)
    scores = tl.dot(q_main, tl.trans(k_main), input_precision="ieee")
    if D_REST > 0:
        k_rest = load_rows(k_ptr, keys, stride, live, D_MAIN, D, D_REST, MASKED)
        scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision="ieee")
    return scores * scale_log2


@triton.jit
def accumulate(acc, top, total, scores, values):
    """One step of the online softmax: running numerator, row maximum and denominator.

    A row that has seen nothing has the maximum -inf; it is measured from 0 instead, since -inf minus -inf is NaN.
    """
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    p = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return acc, new_top, total


@triton.jit
def normalise(acc, top, total):
    """Output and natural-log LSE of finished rows; (0, -inf) for rows that saw no key."""
    total = tl.where(total == 0.0, 1.0, total)
    return acc / total[:, None], (top + tl.log2(total)) * LN_2
