"""Dense and masked MHA on Hopper: one warp brings tiles of keys and values, two warpgroups hold 64 query rows each.

Tiles come through the bulk tensor copy engine. A warpgroup starts the scores of the next tile before it multiplies the
present one's probabilities with its values, so that the tensor cores work while it takes exponentials. Heads are taken
in bundles whose keys and values fit the L2 cache, the longest tiles of a bundle first.

There is one program a multiprocessor. Its copying warp draws query tiles from a counter until none is left, and so
brings the next tile's queries and keys while the warpgroups still write out the last one's results.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.runtime.jit import constexpr_function

from ..triton_kernels.tiles import locate_tile
from .names import barrier, load_tile

_LN_2 = gl.constexpr(0.6931471805599453)
_WARPGROUP_ROWS = gl.constexpr(64)
#: Columns of a copy: 128 bytes, the widest swizzle.
CHUNK = gl.constexpr(64)
_locate_tile = gluon.jit(locate_tile.fn)


@constexpr_function
def _wide(columns):
    """64 rows as four warps hold a product, but 8 adjacent columns a thread, so that 16 bytes are stored at a time."""
    rest = [[0, 1 << bit] for bit in range(5, columns.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0], *rest],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, columns],
    )


@gluon.jit
def _arrive(bar):
    barrier()
    mbarrier.arrive(bar, count=1)


@gluon.jit
def _locate(
    item, cu_q_ptr, cu_k_ptr, counts_ptr, b, s, h, tiles, bundle,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Head, query tile and key tiles of an item: bundles of heads one after the other, in each the last tiles first."""
    lot = item // (tiles * bundle)
    width = gl.minimum(bundle, h - lot * bundle)
    place = item - lot * tiles * bundle
    tile = tiles - 1 - place // width
    head = lot * bundle + place % width
    request, first, q_start, q_len, k_start, k_len = _locate_tile(cu_q_ptr, cu_k_ptr, tile, b, s, BLOCK_M)
    if MASKED:
        count = gl.load(counts_ptr + tile)
    else:
        limit = k_len
        if CAUSAL:
            limit = gl.minimum(k_len, gl.maximum(first + BLOCK_M + k_len - q_len, 0))
        count = (limit + BLOCK_N - 1) // BLOCK_N
    return head, tile, request, first, q_start, q_len, k_start, k_len, count


@gluon.jit
def _bring(
    q_desc, k_desc, v_desc, cu_q_ptr, cu_k_ptr, counts_ptr, starts_ptr, drawn_ptr, items, b, s, h, tiles, bundle, slots,
    q_stride_h, k_stride_h, v_stride_h, q_smem, k_smem, v_smem, item_smem, q_full, q_empty, k_full, k_empty, v_full,
    v_empty, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CHUNKS: gl.constexpr, V: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The copying warp: of every item its number and queries, then keys and values of every tile as places free."""
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    item = gl.program_id(0)
    turn = 0
    brought = 0
    while item < items:
        head, tile, _, first, q_start, q_len, k_start, _, count = _locate(
            item, cu_q_ptr, cu_k_ptr, counts_ptr, b, s, h, tiles, bundle, CAUSAL, MASKED, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        if first < q_len:
            mbarrier.wait(q_empty, (turn & 1) ^ 1)
            item_smem.store(gl.full([1], 0, gl.int32, layout=ONE) + item)
            barrier()
            if count > 0:
                mbarrier.expect(q_full, BLOCK_M * CHUNKS * CHUNK * 2)
                for chunk in gl.static_range(CHUNKS):
                    load_tile(q_desc, [q_start + first, head * q_stride_h + chunk * CHUNK], q_full, q_smem.index(chunk))
            else:
                mbarrier.arrive(q_full, count=1)
            starts = starts_ptr
            if MASKED:
                starts += tile.to(gl.int64) * slots
            for step in range(count):
                start = _start(starts, step, count, MASKED, BLOCK_N)
                stage = (brought + step) % STAGES
                phase = ((brought + step) // STAGES & 1) ^ 1
                mbarrier.wait(k_empty.index(stage), phase)
                mbarrier.expect(k_full.index(stage), BLOCK_N * CHUNKS * CHUNK * 2)
                for chunk in gl.static_range(CHUNKS):
                    load_tile(
                        k_desc, [k_start + start, head * k_stride_h + chunk * CHUNK], k_full.index(stage),
                        k_smem.index(stage * CHUNKS + chunk),
                    )  # fmt: skip
                mbarrier.wait(v_empty.index(stage), phase)
                mbarrier.expect(v_full.index(stage), BLOCK_N * V * 2)
                load_tile(v_desc, [k_start + start, head * v_stride_h], v_full.index(stage), v_smem.index(stage))
            brought += count
            turn += 1
        # drawn late: a tile in hand early would wait for a busy program while others are idle
        item = gl.num_programs(0) + gl.atomic_add(drawn_ptr, 1)
    mbarrier.wait(q_empty, (turn & 1) ^ 1)
    item_smem.store(gl.full([1], -1, gl.int32, layout=ONE))
    barrier()
    mbarrier.arrive(q_full, count=1)


@gluon.jit
def _scores(q, k, stage, zero, WHICH: gl.constexpr, CHUNKS: gl.constexpr):
    """q.k of one tile, started."""
    scores = zero
    for chunk in gl.static_range(CHUNKS):
        scores = warpgroup_mma(
            q.index(chunk).slice(WHICH * _WARPGROUP_ROWS, _WARPGROUP_ROWS),
            k.index(stage * CHUNKS + chunk).permute((1, 0)), scores, use_acc=chunk > 0, is_async=True,
        )  # fmt: skip
    return scores


@gluon.jit
def _words(row_ptrs, in_request, start, words, LAYOUT: gl.constexpr, MASKED: gl.constexpr, BLOCK_N: gl.constexpr):
    """[64, BLOCK_N] int32: the mask word of each row and column; started here, well before it is needed."""
    packed = gl.zeros([_WARPGROUP_ROWS, BLOCK_N], gl.int32, layout=LAYOUT)
    if MASKED:
        column = gl.expand_dims(gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT)), 0)
        word = start // 32
        for each in gl.static_range(BLOCK_N // 32):
            bits = gl.load(row_ptrs + word + each, mask=in_request & (word + each < words), other=0)
            packed = gl.where(column // 32 == each, gl.expand_dims(bits, 1), packed)
    return packed


@gluon.jit
def _hidden(
    scores, packed, rows, safe, start, q_len, k_len, CAUSAL: gl.constexpr, MASKED: gl.constexpr, BLOCK_N: gl.constexpr
):
    """Scores with -inf where a row may not see a key; every row may see the keys before ``safe``."""
    column = gl.expand_dims(gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, scores.type.layout)), 0)
    if MASKED:
        # Split so that one shift serves all columns of a thread.
        seen = ((packed >> (column & 6)) >> (column & 25)) & 1
        scores = gl.where(seen != 0, scores, float("-inf"))
    if start + BLOCK_N > safe:
        visible = start + column < k_len
        if CAUSAL:
            visible = visible & (start + column <= gl.expand_dims(rows, 1) + (k_len - q_len))
        scores = gl.where(visible, scores, float("-inf"))
    return scores


@gluon.jit
def _start(starts_ptr, step, count, MASKED: gl.constexpr, BLOCK_N: gl.constexpr):
    """First key of a step's tile; of dense MHA from the last tile down."""
    start = (count - 1 - step) * BLOCK_N
    if MASKED:
        start = gl.load(starts_ptr + step, mask=step < count, other=0)
    return start


@gluon.jit
def _drawn(item_smem):
    """The item that the copying warp has written, for every thread of a warpgroup."""
    return gl.max(item_smem.load(gl.BlockedLayout([1], [32], [4], [0])), 0)


@gluon.jit
def _attend(
    cu_q_ptr, cu_k_ptr, counts_ptr, starts_ptr, mask_ptr, out_ptr, lse_ptr, b, s, h, tiles, bundle, slots, words,
    mask_stride_b, mask_stride_s, scale_log2, q, k, v, item_smem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    WHICH: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CHUNKS: gl.constexpr, V: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One warpgroup: 64 rows of every item against all its tiles."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    OUT_ROW: gl.constexpr = gl.SliceLayout(1, OUT)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    WIDE: gl.constexpr = _wide(V)
    # Whether values summed so far are rescaled beside the next scores; dense, 128 columns are faster without.
    LATE: gl.constexpr = MASKED or V > 128
    zero = gl.zeros([_WARPGROUP_ROWS, BLOCK_N], gl.float32, layout=SCORES)
    turn = 0
    taken = 0
    mbarrier.wait(q_full, 0)
    item = _drawn(item_smem)
    while item >= 0:
        head, tile, request, first, q_start, q_len, _, k_len, count = _locate(
            item, cu_q_ptr, cu_k_ptr, counts_ptr, b, s, h, tiles, bundle, CAUSAL, MASKED, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        rows = first + WHICH * _WARPGROUP_ROWS + gl.arange(0, _WARPGROUP_ROWS, layout=ROW)
        starts = starts_ptr
        mask = rows
        if MASKED:
            starts += tile.to(gl.int64) * slots
            mask = mask_ptr + request.to(gl.int64) * mask_stride_b + rows.to(gl.int64) * mask_stride_s
        in_request = rows < q_len
        safe = k_len
        if CAUSAL:
            safe = gl.minimum(k_len, first + WHICH * _WARPGROUP_ROWS + 1 + k_len - q_len)
        acc = gl.zeros([_WARPGROUP_ROWS, V], gl.float32, layout=OUT)
        top = gl.full([_WARPGROUP_ROWS], float("-inf"), gl.float32, layout=ROW)
        total = gl.zeros([_WARPGROUP_ROWS], gl.float32, layout=ROW)
        if count > 0:
            stage = taken % STAGES
            start = _start(starts, 0, count, MASKED, BLOCK_N)
            following = _start(starts, 1, count, MASKED, BLOCK_N)
            packed = _words(mask, in_request, start, words, SCORES, MASKED, BLOCK_N)
            mbarrier.wait(k_full.index(stage), taken // STAGES & 1)
            scores = _scores(q, k, stage, zero, WHICH, CHUNKS)
            scores = warpgroup_mma_wait(0, deps=[scores])
            _arrive(k_empty.index(stage))
            scores = _hidden(scores, packed, rows, safe, start, q_len, k_len, CAUSAL, MASKED, BLOCK_N)
            top = gl.max(scores, 1) * scale_log2
            base = gl.where(top == float("-inf"), 0.0, top)
            p = gl.exp2(scores * scale_log2 - gl.expand_dims(base, 1))
            total = gl.sum(p, 1)
            weights = gl.convert_layout(p.to(v.dtype), WEIGHTS)
            if count > 1:
                mbarrier.wait(k_full.index((taken + 1) % STAGES), (taken + 1) // STAGES & 1)
            factor = gl.full([_WARPGROUP_ROWS], 1.0, gl.float32, layout=OUT_ROW)
            for step in range(1, count):
                at = taken + step
                stage = at % STAGES
                before = (at - 1) % STAGES
                start = following
                following = _start(starts, step + 1, count, MASKED, BLOCK_N)
                packed = _words(mask, in_request, start, words, SCORES, MASKED, BLOCK_N)
                scores = _scores(q, k, stage, zero, WHICH, CHUNKS)
                if LATE:
                    acc = acc * gl.expand_dims(factor, 1)
                mbarrier.wait(v_full.index(before), (at - 1) // STAGES & 1)
                acc = warpgroup_mma(weights, v.index(before), acc, is_async=True)
                scores = warpgroup_mma_wait(1, deps=[scores])
                _arrive(k_empty.index(stage))
                scores = _hidden(scores, packed, rows, safe, start, q_len, k_len, CAUSAL, MASKED, BLOCK_N)
                new_top = gl.maximum(top, gl.max(scores, 1) * scale_log2)
                base = gl.where(new_top == float("-inf"), 0.0, new_top)
                p = gl.exp2(scores * scale_log2 - gl.expand_dims(base, 1))
                shrink = gl.exp2(top - base)
                total = total * shrink + gl.sum(p, 1)
                top = new_top
                fresh = gl.convert_layout(p.to(v.dtype), WEIGHTS)
                # The branches keep ptxas from moving the wait for the values before the exponentials.
                if step + 1 < count:
                    mbarrier.wait(k_full.index((at + 1) % STAGES), (at + 1) // STAGES & 1)
                acc, weights, fresh = warpgroup_mma_wait(0, deps=[acc, weights, fresh])
                _arrive(v_empty.index(before))
                factor = gl.convert_layout(shrink, OUT_ROW)
                if not LATE:
                    acc = acc * gl.expand_dims(factor, 1)
                weights = fresh
            _arrive(q_empty)
            taken += count
            last = (taken - 1) % STAGES
            if LATE:
                acc = acc * gl.expand_dims(factor, 1)
            mbarrier.wait(v_full.index(last), (taken - 1) // STAGES & 1)
            acc = warpgroup_mma(weights, v.index(last), acc, is_async=True)
            acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
            _arrive(v_empty.index(last))
        else:
            _arrive(q_empty)

        empty = total == 0.0
        total = gl.where(empty, 1.0, total)
        row = (q_start + rows).to(gl.int64) * h + head
        gl.store(lse_ptr + row, gl.where(empty, float("-inf"), (top + gl.log2(total)) * _LN_2), mask=in_request)
        acc = acc * gl.expand_dims(gl.convert_layout(1.0 / total, OUT_ROW), 1)
        out = gl.convert_layout(acc.to(v.dtype), WIDE)
        out_row = first + WHICH * _WARPGROUP_ROWS + gl.arange(0, _WARPGROUP_ROWS, layout=gl.SliceLayout(1, WIDE))
        column = gl.arange(0, V, layout=gl.SliceLayout(0, WIDE))
        pointers = (
            out_ptr + gl.expand_dims(((q_start + out_row).to(gl.int64) * h + head) * V, 1) + gl.expand_dims(column, 0)
        )
        gl.store(pointers, out, mask=gl.expand_dims(out_row < q_len, 1))
        turn += 1
        mbarrier.wait(q_full, turn & 1)
        item = _drawn(item_smem)


@gluon.jit(do_not_specialize=[
    "items", "s", "b", "h", "tiles", "bundle", "words", "slots", "q_stride_h", "k_stride_h", "v_stride_h",
    "mask_stride_b", "mask_stride_s",
])  # fmt: skip
def attention_kernel(
    q_desc, k_desc, v_desc, mask_ptr, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, counts_ptr, starts_ptr, drawn_ptr,
    scale_log2, items, s, b, h, tiles, bundle, words, slots, mask_stride_b, mask_stride_s,
    q_stride_h, k_stride_h, v_stride_h,
    CHUNKS: gl.constexpr, V: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = v_desc.dtype
    q = gl.allocate_shared_memory(dtype, [CHUNKS, BLOCK_M, CHUNK], q_desc.layout)
    k = gl.allocate_shared_memory(dtype, [STAGES * CHUNKS, BLOCK_N, CHUNK], k_desc.layout)
    v = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, V], v_desc.layout)
    item = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(q_empty, count=2)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=2)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_empty.index(stage), count=2)
    fence_async_shared()
    barrier()
    gl.warp_specialize(
        [
            (_attend, (
                cu_q_ptr, cu_k_ptr, counts_ptr, starts_ptr, mask_ptr, out_ptr, lse_ptr, b, s, h, tiles, bundle, slots,
                words, mask_stride_b, mask_stride_s, scale_log2, q, k, v, item, q_full, q_empty, k_full, k_empty,
                v_full, v_empty, 0, BLOCK_M, BLOCK_N, CHUNKS, V, CAUSAL, MASKED, STAGES,
            )),
            (_attend, (
                cu_q_ptr, cu_k_ptr, counts_ptr, starts_ptr, mask_ptr, out_ptr, lse_ptr, b, s, h, tiles, bundle, slots,
                words, mask_stride_b, mask_stride_s, scale_log2, q, k, v, item, q_full, q_empty, k_full, k_empty,
                v_full, v_empty, 1, BLOCK_M, BLOCK_N, CHUNKS, V, CAUSAL, MASKED, STAGES,
            )),
            (_bring, (
                q_desc, k_desc, v_desc, cu_q_ptr, cu_k_ptr, counts_ptr, starts_ptr, drawn_ptr, items, b, s, h, tiles,
                bundle, slots, q_stride_h, k_stride_h, v_stride_h, q, k, v, item, q_full, q_empty, k_full, k_empty,
                v_full, v_empty, BLOCK_M, BLOCK_N, CHUNKS, V, CAUSAL, MASKED, STAGES,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
