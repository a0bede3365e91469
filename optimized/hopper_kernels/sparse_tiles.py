"""What the three partitions of the sparse MQA kernel do: gather keys, score even tiles, score odd tiles."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .names import barrier, copy_async

ROWS = 64
KEYS = 64
LATENT = 512
ROPE = 64
_ROWS = gl.constexpr(ROWS)
_KEYS = gl.constexpr(KEYS)
_HALF = gl.constexpr(LATENT // 2)
_ROPE = gl.constexpr(ROPE)
_LOG2_E = gl.constexpr(1.4426950408889634)
_LN_2 = gl.constexpr(0.6931471805599453)
_THREADS = gl.constexpr(128)

_TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=2))
_VECTOR = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
_SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
_OUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
_WEIGHTS = gl.constexpr(gl.DotOperandLayout(0, _OUT.value, 2))
_ROW = gl.constexpr(gl.SliceLayout(1, _SCORES.value))
_COPY = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def _arrive(bar):
    """Every thread of the partition is done with what came before."""
    barrier()
    mbarrier.arrive(bar, count=1)


@gluon.jit
def _release_stores(bar):
    """As _arrive, for values that tensor cores read next."""
    fence_async_shared()
    barrier()
    mbarrier.arrive(bar, count=1)


@gluon.jit
def _now(step):
    """0, of which the compiler knows nothing: addresses that depend on it are not kept in registers over the loop."""
    return gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [step], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _copy(smem, ptr, rows, stride, live, START: gl.constexpr, WIDTH: gl.constexpr):
    """Columns from START of the rows into shared memory, zeros for rows that are not live; completes later.

    ``stride`` in units of 16 bytes, what one thread copies at a time.
    """
    columns = START + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, _COPY))
    pointers = ptr + gl.expand_dims(rows.to(gl.int64) * stride * 8, 1) + gl.expand_dims(columns, 0)
    mask = gl.expand_dims(live, 1) & gl.expand_dims(columns >= 0, 0)
    copy_async(smem, pointers, mask=mask)


@gluon.jit
def _gather(
    kv_ptr, keys_ptr, kv_stride, n, count, pairs, k_left, k_right, rope, left_full, right_full, left_empty, right_empty
):
    lane = gl.arange(0, _KEYS, layout=gl.SliceLayout(1, _COPY))
    next_0 = gl.load(keys_ptr + lane, mask=lane < count, other=-1)
    next_1 = gl.load(keys_ptr + lane + _KEYS, mask=lane + _KEYS < count, other=-1)
    for pair in range(pairs):
        phase = (pair & 1) ^ 1
        keys_0 = next_0
        keys_1 = next_1
        slot = (pair + 1) * 2 * _KEYS + lane
        next_0 = gl.load(keys_ptr + slot, mask=slot < count, other=-1)
        next_1 = gl.load(keys_ptr + slot + _KEYS, mask=slot + _KEYS < count, other=-1)
        live_0 = (keys_0 >= 0) & (keys_0 < n)
        live_1 = (keys_1 >= 0) & (keys_1 < n)
        mbarrier.wait(left_empty.index(0), phase)
        _copy(k_left.index(0), kv_ptr, keys_0, kv_stride, live_0, 0, _HALF)
        async_copy.mbarrier_arrive(left_full.index(0), increment_count=False)
        mbarrier.wait(right_empty.index(1), phase)
        _copy(k_right.index(1), kv_ptr, keys_1, kv_stride, live_1, _HALF, _HALF)
        async_copy.mbarrier_arrive(right_full.index(1), increment_count=False)
        mbarrier.wait(right_empty.index(0), phase)
        _copy(k_right.index(0), kv_ptr, keys_0, kv_stride, live_0, _HALF, _HALF)
        _copy(rope.index(0), kv_ptr, keys_0, kv_stride, live_0, 2 * _HALF, _ROPE)
        async_copy.mbarrier_arrive(right_full.index(0), increment_count=False)
        mbarrier.wait(left_empty.index(1), phase)
        _copy(k_left.index(1), kv_ptr, keys_1, kv_stride, live_1, 0, _HALF)
        _copy(rope.index(1), kv_ptr, keys_1, kv_stride, live_1, 2 * _HALF, _ROPE)
        async_copy.mbarrier_arrive(left_full.index(1), increment_count=False)


@gluon.jit
def _load_queries(
    q_ptr, tile, blocks, q_stride_s, q_stride_h, s, h, GROUP: gl.constexpr, q_left, q_right, q_rope, q_full
):
    """Rows of the tile: GROUP queries of 64 / GROUP heads each."""
    row = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, _COPY))
    query = tile // blocks * GROUP + row // (_ROWS // GROUP)
    head = tile % blocks * _ROWS + row % (_ROWS // GROUP)
    real = (head < h) & (query < s)
    start = query.to(gl.int64) * q_stride_s + head.to(gl.int64) * q_stride_h
    _copy(q_left.index(0), q_ptr, start, 1, real, 0, _HALF)
    _copy(q_right.index(0), q_ptr, start, 1, real, _HALF, _HALF)
    _copy(q_rope.index(0), q_ptr, start, 1, real, 2 * _HALF, _ROPE)
    async_copy.mbarrier_arrive(q_full, increment_count=False)


@gluon.jit
def _producer(
    q_ptr, kv_ptr, keys_ptr, tile, blocks, q_stride_s, q_stride_h, kv_stride, s, h, n, count, pairs,
    GROUP: gl.constexpr, q_left, q_right, q_rope, k_left, k_right, rope, q_full, left_full, right_full, left_empty,
    right_empty,
):  # fmt: skip
    _load_queries(q_ptr, tile, blocks, q_stride_s, q_stride_h, s, h, GROUP, q_left, q_right, q_rope, q_full)
    _gather(
        kv_ptr, keys_ptr, kv_stride, n, count, pairs, k_left, k_right, rope, left_full, right_full, left_empty,
        right_empty,
    )  # fmt: skip


@gluon.jit
def _visible(keys_ptr, bits_ptr, start, count, n, GROUP: gl.constexpr):
    """[1 or 64, 64] bool: which keys of the tile each row attends to."""
    slot = start + gl.arange(0, _KEYS, layout=gl.SliceLayout(0, _SCORES))
    inside = slot < count
    if GROUP == 1:
        keys = gl.load(keys_ptr + slot, mask=inside, other=-1)
        visible = gl.expand_dims((keys >= 0) & (keys < n), 0)
    else:
        bits = gl.load(bits_ptr + slot, mask=inside, other=0)
        group = gl.arange(0, _ROWS, layout=_ROW) // (_ROWS // GROUP)
        visible = ((gl.expand_dims(bits, 0) >> gl.expand_dims(group, 1)) & 1) != 0
    return visible


@gluon.jit
def _first(
    keys_ptr, bits_ptr, count, pairs, n, scale_log2, GROUP: gl.constexpr,
    q_left, q_right, q_rope, k_left, k_right, rope, q_full, left_full, right_full, left_empty, right_empty,
    tops, sums, top_0, top_1, weights_0, weights_1, summed_0, summed_1,
    out_ptr, lse_ptr, sink_ptr, tile, blocks, s, h, HAS_SINK: gl.constexpr,
):  # fmt: skip
    """The warpgroup that scores even tiles and holds the left half of the output."""
    acc = gl.zeros([_ROWS, _HALF], gl.float32, layout=_OUT)
    top = gl.full([_ROWS], float("-inf"), gl.float32, layout=_ROW)
    total = gl.zeros([_ROWS], gl.float32, layout=_ROW)
    zero = gl.zeros([_ROWS, _KEYS], gl.float32, layout=_SCORES)
    mbarrier.wait(q_full, 0)
    fence_async_shared()
    for pair in range(pairs):
        phase = pair & 1
        zero_0 = _now(pair)
        visible = _visible(keys_ptr, bits_ptr, pair * 2 * _KEYS, count, n, GROUP)
        mbarrier.wait(left_full.index(0), phase)
        fence_async_shared()
        scores = warpgroup_mma(
            q_left.index(zero_0), k_left.index(zero_0).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        mbarrier.wait(right_full.index(0), phase)
        fence_async_shared()
        scores = warpgroup_mma(q_right.index(zero_0), k_right.index(zero_0).permute((1, 0)), scores, is_async=True)
        scores = warpgroup_mma(q_rope.index(zero_0), rope.index(zero_0).permute((1, 0)), scores, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        scores = gl.where(visible, scores * scale_log2, float("-inf"))
        new_top = gl.maximum(top, gl.max(scores, 1))
        tops.index(0).store(new_top)
        _arrive(top_0)
        base = gl.where(new_top == float("-inf"), 0.0, new_top)
        p = gl.exp2(scores - gl.expand_dims(base, 1))
        shrink = gl.exp2(top - base)
        total = total * shrink + gl.sum(p, 1)
        acc = acc * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, _OUT)), 1)
        own = gl.convert_layout(p.to(gl.bfloat16), _WEIGHTS)
        acc = warpgroup_mma(own, k_left.index(zero_0), acc, is_async=True)
        mbarrier.wait(top_1, phase)
        top = tops.index(1).load(_ROW)
        again = gl.exp2(base - gl.where(top == float("-inf"), 0.0, top))
        again = gl.where(new_top == float("-inf"), 0.0, again)
        rope.index(zero_0).store((p * gl.expand_dims(again, 1)).to(gl.bfloat16))
        _release_stores(weights_0)
        total = total * again
        acc, own = warpgroup_mma_wait(0, deps=[acc, own])
        _arrive(left_empty.index(0))
        acc = acc * gl.expand_dims(gl.convert_layout(again, gl.SliceLayout(1, _OUT)), 1)
        mbarrier.wait(weights_1, phase)
        fence_async_shared()
        acc = warpgroup_mma(rope.index(1 + zero_0), k_left.index(1 + zero_0), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        _arrive(left_empty.index(1))
    sums.index(0).store(total)
    _arrive(summed_0)
    mbarrier.wait(summed_1, 0)
    total += sums.index(1).load(_ROW)
    _finish(
        acc, top, total, q_left.index(0), out_ptr, lse_ptr, sink_ptr, tile, blocks, s, h, 0, GROUP, HAS_SINK,
    )  # fmt: skip


@gluon.jit
def _second(
    keys_ptr, bits_ptr, count, pairs, n, scale_log2, GROUP: gl.constexpr,
    q_left, q_right, q_rope, k_left, k_right, rope, q_full, left_full, right_full, left_empty, right_empty,
    tops, sums, top_0, top_1, weights_0, weights_1, summed_0, summed_1,
    out_ptr, lse_ptr, sink_ptr, tile, blocks, s, h, HAS_SINK: gl.constexpr,
):  # fmt: skip
    """The warpgroup that scores odd tiles and holds the right half of the output."""
    acc = gl.zeros([_ROWS, _HALF], gl.float32, layout=_OUT)
    top = gl.full([_ROWS], float("-inf"), gl.float32, layout=_ROW)
    total = gl.zeros([_ROWS], gl.float32, layout=_ROW)
    zero = gl.zeros([_ROWS, _KEYS], gl.float32, layout=_SCORES)
    mbarrier.wait(q_full, 0)
    fence_async_shared()
    for pair in range(pairs):
        phase = pair & 1
        zero_0 = _now(pair)
        visible = _visible(keys_ptr, bits_ptr, (pair * 2 + 1) * _KEYS, count, n, GROUP)
        mbarrier.wait(right_full.index(1), phase)
        fence_async_shared()
        scores = warpgroup_mma(
            q_right.index(zero_0), k_right.index(1 + zero_0).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        mbarrier.wait(left_full.index(1), phase)
        fence_async_shared()
        scores = warpgroup_mma(q_left.index(zero_0), k_left.index(1 + zero_0).permute((1, 0)), scores, is_async=True)
        scores = warpgroup_mma(q_rope.index(zero_0), rope.index(1 + zero_0).permute((1, 0)), scores, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        scores = gl.where(visible, scores * scale_log2, float("-inf"))
        new_top = gl.max(scores, 1)
        mbarrier.wait(top_0, phase)
        new_top = gl.maximum(new_top, tops.index(0).load(_ROW))
        tops.index(1).store(new_top)
        _arrive(top_1)
        base = gl.where(new_top == float("-inf"), 0.0, new_top)
        p = gl.exp2(scores - gl.expand_dims(base, 1))
        shrink = gl.exp2(top - base)
        total = total * shrink + gl.sum(p, 1)
        acc = acc * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, _OUT)), 1)
        own = gl.convert_layout(p.to(gl.bfloat16), _WEIGHTS)
        acc = warpgroup_mma(own, k_right.index(1 + zero_0), acc, is_async=True)
        rope.index(1 + zero_0).store(p.to(gl.bfloat16))
        _release_stores(weights_1)
        mbarrier.wait(weights_0, phase)
        fence_async_shared()
        acc = warpgroup_mma(rope.index(zero_0), k_right.index(zero_0), acc, is_async=True)
        acc, own = warpgroup_mma_wait(1, deps=[acc, own])
        _arrive(right_empty.index(1))
        acc = warpgroup_mma_wait(0, deps=[acc])
        _arrive(right_empty.index(0))
        top = new_top
    sums.index(1).store(total)
    _arrive(summed_1)
    mbarrier.wait(summed_0, 0)
    total += sums.index(0).load(_ROW)
    _finish(
        acc, top, total, q_right.index(0), out_ptr, lse_ptr, sink_ptr, tile, blocks, s, h, 1, GROUP, HAS_SINK,
    )  # fmt: skip


@gluon.jit
def _finish(
    acc, top, total, smem, out_ptr, lse_ptr, sink_ptr, tile, blocks, s, h, HALF: gl.constexpr, GROUP: gl.constexpr,
    HAS_SINK: gl.constexpr,
):  # fmt: skip
    """Divide, write one half of the output and, from the left half, the LSE."""
    empty = total == 0.0
    total = gl.where(empty, 1.0, total)
    lse = gl.where(empty, float("-inf"), (top + gl.log2(total)) * _LN_2)
    factor = gl.where(empty, 0.0, 1.0 / total)
    row = gl.arange(0, _ROWS, layout=_ROW)
    query = tile // blocks * GROUP + row // (_ROWS // GROUP)
    head = tile % blocks * _ROWS + row % (_ROWS // GROUP)
    real = (head < h) & (query < s)
    if HAS_SINK:
        # exp(lse) / (exp(lse) + exp(sink)); a row without keys stays 0 whatever the sink.
        sink = gl.load(sink_ptr + head, mask=real, other=0.0)
        factor = factor / (1.0 + gl.exp2((sink - gl.where(empty, 0.0, lse)) * _LOG2_E))
    if HALF == 0:
        gl.store(lse_ptr + query.to(gl.int64) * h + head, lse, mask=real)
    acc = acc * gl.expand_dims(gl.convert_layout(factor, gl.SliceLayout(1, _OUT)), 1)
    smem.store(acc.to(gl.bfloat16))
    barrier()
    row = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, _COPY))
    query = tile // blocks * GROUP + row // (_ROWS // GROUP)
    head = tile % blocks * _ROWS + row % (_ROWS // GROUP)
    real = (head < h) & (query < s)
    columns = HALF * _HALF + gl.arange(0, _HALF, layout=gl.SliceLayout(0, _COPY))
    start = (query.to(gl.int64) * h + head) * (2 * _HALF)
    pointers = out_ptr + gl.expand_dims(start, 1) + gl.expand_dims(columns, 0)
    gl.store(pointers, smem.load(_COPY), mask=gl.expand_dims(real, 1))
