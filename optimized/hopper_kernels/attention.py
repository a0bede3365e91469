"""Dense and masked MHA on Hopper: one warp brings tiles of keys and values, two warpgroups hold 64 query rows each.

Tiles come through the bulk tensor copy engine. A warpgroup starts the scores of the next tile before it multiplies the
present one's probabilities with its values, so that the tensor cores work while it takes exponentials. Heads are taken
in bundles whose keys and values fit the L2 cache, the longest tiles of a bundle first.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..triton_kernels.dense_mha import check_attention
from ..triton_kernels.tiles import locate_tile
from ..triton_kernels.visible_tiles import VisibleTiles
from .names import barrier, load_tile

#: Query rows of a program, and keys of a tile by head dims.
ROWS = 128
KEYS = {(192, 128): 128, (256, 256): 64}
_STAGES = 2
#: Bytes of keys and values that heads in flight may take of the L2 cache.
_L2 = 2**25
_LOG2_E = 1.4426950408889634
_LN_2 = gl.constexpr(0.6931471805599453)
_WARPGROUP_ROWS = gl.constexpr(64)
_locate_tile = gluon.jit(locate_tile.fn)


@gluon.jit
def _arrive(bar):
    barrier()
    mbarrier.arrive(bar, count=1)


@gluon.jit
def _bring(
    q_main, q_rest, k_main, k_rest, v_desc, q_row, k_row, q_column, k_column, v_column, starts_ptr, count,
    q_main_smem, q_rest_smem, k_main_smem, k_rest_smem, v_smem, q_full, k_full, k_empty, v_full, v_empty,
    BYTES_Q: gl.constexpr, BYTES_K: gl.constexpr, BYTES_V: gl.constexpr, BLOCK_N: gl.constexpr, MASKED: gl.constexpr,
    REST: gl.constexpr, MAIN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The copying warp: queries once, then keys and values of every tile, each as soon as its place is free."""
    if count > 0:
        mbarrier.expect(q_full, BYTES_Q)
        load_tile(q_main, [q_row, q_column], q_full, q_main_smem)
        if REST > 0:
            load_tile(q_rest, [q_row, q_column + MAIN], q_full, q_rest_smem)
    for step in range(count):
        start = (count - 1 - step) * BLOCK_N
        if MASKED:
            start = gl.load(starts_ptr + step)
        stage = step % STAGES
        phase = (step // STAGES & 1) ^ 1
        mbarrier.wait(k_empty.index(stage), phase)
        mbarrier.expect(k_full.index(stage), BYTES_K)
        load_tile(k_main, [k_row + start, k_column], k_full.index(stage), k_main_smem.index(stage))
        if REST > 0:
            load_tile(k_rest, [k_row + start, k_column + MAIN], k_full.index(stage), k_rest_smem.index(stage))
        mbarrier.wait(v_empty.index(stage), phase)
        mbarrier.expect(v_full.index(stage), BYTES_V)
        load_tile(v_desc, [k_row + start, v_column], v_full.index(stage), v_smem.index(stage))


@gluon.jit
def _scores(q_main, q_rest, k_main, k_rest, zero, REST: gl.constexpr):
    """q.k of one tile, started."""
    scores = warpgroup_mma(q_main, k_main.permute((1, 0)), zero, use_acc=False, is_async=True)
    if REST > 0:
        scores = warpgroup_mma(q_rest, k_rest.permute((1, 0)), scores, is_async=True)
    return scores


@gluon.jit
def _hidden(
    scores, mask_ptr, rows, in_request, safe, start, q_len, k_len, words, mask_stride,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Scores with -inf where a row may not see a key; every row may see the keys before ``safe``."""
    LAYOUT: gl.constexpr = scores.type.layout
    lane = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
    column = gl.expand_dims(lane, 0)
    if MASKED:
        packed = gl.zeros([_WARPGROUP_ROWS, BLOCK_N], gl.int32, layout=LAYOUT)
        word = start // 32
        for each in gl.static_range(BLOCK_N // 32):
            bits = gl.load(
                mask_ptr + rows * mask_stride + word + each, mask=in_request & (word + each < words), other=0
            )
            packed = gl.where(column // 32 == each, gl.expand_dims(bits, 1), packed)
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
def _attend(
    mask_ptr, starts_ptr, out_ptr, lse_ptr, first, q_start, q_len, k_len, head, h, count, words, mask_stride,
    scale_log2, q_main, q_rest, k_main, k_rest, v, q_full, k_full, k_empty, v_full, v_empty,
    WHICH: gl.constexpr, BLOCK_N: gl.constexpr, V: gl.constexpr, REST: gl.constexpr, CAUSAL: gl.constexpr,
    MASKED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One warpgroup: 64 rows against all tiles."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V, 16])
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    OUT_ROW: gl.constexpr = gl.SliceLayout(1, OUT)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    rows = first + WHICH * _WARPGROUP_ROWS + gl.arange(0, _WARPGROUP_ROWS, layout=ROW)
    in_request = rows < q_len
    safe = k_len
    if CAUSAL:
        safe = gl.minimum(k_len, first + WHICH * _WARPGROUP_ROWS + 1 + k_len - q_len)
    my_main = q_main.slice(WHICH * _WARPGROUP_ROWS, _WARPGROUP_ROWS)
    my_rest = my_main
    if REST > 0:
        my_rest = q_rest.slice(WHICH * _WARPGROUP_ROWS, _WARPGROUP_ROWS)
    acc = gl.zeros([_WARPGROUP_ROWS, V], gl.float32, layout=OUT)
    zero = gl.zeros([_WARPGROUP_ROWS, BLOCK_N], gl.float32, layout=SCORES)
    top = gl.full([_WARPGROUP_ROWS], float("-inf"), gl.float32, layout=ROW)
    total = gl.zeros([_WARPGROUP_ROWS], gl.float32, layout=ROW)
    if count > 0:
        mbarrier.wait(q_full, 0)
        mbarrier.wait(k_full.index(0), 0)
        scores = _scores(my_main, my_rest, k_main.index(0), k_rest.index(0), zero, REST)
        start = (count - 1) * BLOCK_N
        if MASKED:
            start = gl.load(starts_ptr)
        scores = warpgroup_mma_wait(0, deps=[scores])
        _arrive(k_empty.index(0))
        scores = _hidden(
            scores, mask_ptr, rows, in_request, safe, start, q_len, k_len, words, mask_stride, CAUSAL, MASKED, BLOCK_N,
        )  # fmt: skip
        top = gl.max(scores, 1) * scale_log2
        base = gl.where(top == float("-inf"), 0.0, top)
        p = gl.exp2(scores * scale_log2 - gl.expand_dims(base, 1))
        total = gl.sum(p, 1)
        weights = gl.convert_layout(p.to(v.dtype), WEIGHTS)
        for step in range(1, count):
            stage = step % STAGES
            before = (step - 1) % STAGES
            start = (count - 1 - step) * BLOCK_N
            if MASKED:
                start = gl.load(starts_ptr + step)
            mbarrier.wait(k_full.index(stage), step // STAGES & 1)
            scores = _scores(my_main, my_rest, k_main.index(stage), k_rest.index(stage), zero, REST)
            mbarrier.wait(v_full.index(before), (step - 1) // STAGES & 1)
            acc = warpgroup_mma(weights, v.index(before), acc, is_async=True)
            scores = warpgroup_mma_wait(1, deps=[scores])
            _arrive(k_empty.index(stage))
            scores = _hidden(
                scores, mask_ptr, rows, in_request, safe, start, q_len, k_len, words, mask_stride, CAUSAL, MASKED,
                BLOCK_N,
            )  # fmt: skip
            new_top = gl.maximum(top, gl.max(scores, 1) * scale_log2)
            base = gl.where(new_top == float("-inf"), 0.0, new_top)
            p = gl.exp2(scores * scale_log2 - gl.expand_dims(base, 1))
            shrink = gl.exp2(top - base)
            total = total * shrink + gl.sum(p, 1)
            top = new_top
            acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
            _arrive(v_empty.index(before))
            acc = acc * gl.expand_dims(gl.convert_layout(shrink, OUT_ROW), 1)
            weights = gl.convert_layout(p.to(v.dtype), WEIGHTS)
        last = (count - 1) % STAGES
        mbarrier.wait(v_full.index(last), (count - 1) // STAGES & 1)
        acc = warpgroup_mma(weights, v.index(last), acc, is_async=True)
        acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])

    empty = total == 0.0
    total = gl.where(empty, 1.0, total)
    row = (q_start + rows).to(gl.int64) * h + head
    gl.store(lse_ptr + row, gl.where(empty, float("-inf"), (top + gl.log2(total)) * _LN_2), mask=in_request)
    acc = acc * gl.expand_dims(gl.convert_layout(1.0 / total, OUT_ROW), 1)
    out_row = first + WHICH * _WARPGROUP_ROWS + gl.arange(0, _WARPGROUP_ROWS, layout=OUT_ROW)
    column = gl.arange(0, V, layout=gl.SliceLayout(0, OUT))
    pointers = (
        out_ptr + gl.expand_dims(((q_start + out_row).to(gl.int64) * h + head) * V, 1) + gl.expand_dims(column, 0)
    )
    gl.store(pointers, acc.to(v.dtype), mask=gl.expand_dims(out_row < q_len, 1))


@gluon.jit(do_not_specialize=[
    "s", "b", "h", "tiles", "bundle", "words", "slots", "q_stride_h", "k_stride_h", "v_stride_h", "mask_stride_b",
    "mask_stride_s",
])  # fmt: skip
def _attention_kernel(
    q_main_desc, q_rest_desc, k_main_desc, k_rest_desc, v_desc, mask_ptr, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr,
    counts_ptr, starts_ptr, scale_log2, s, b, h, tiles, bundle, words, slots,
    q_stride_h, k_stride_h, v_stride_h, mask_stride_b, mask_stride_s,
    MAIN: gl.constexpr, REST: gl.constexpr, V: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    # Bundles of heads one after the other; in a bundle the last tiles, which see the most keys, first.
    lot = gl.program_id(0) // (tiles * bundle)
    width = gl.minimum(bundle, h - lot * bundle)
    place = gl.program_id(0) - lot * tiles * bundle
    tile = tiles - 1 - place // width
    head = lot * bundle + place % width
    request, first, q_start, q_len, k_start, k_len = _locate_tile(cu_q_ptr, cu_k_ptr, tile, b, s, BLOCK_M)
    if first < q_len:
        if MASKED:
            count = gl.load(counts_ptr + tile)
            starts_ptr += tile.to(gl.int64) * slots
            mask_ptr += request.to(gl.int64) * mask_stride_b
        else:
            limit = k_len
            if CAUSAL:
                limit = gl.minimum(k_len, gl.maximum(first + BLOCK_M + k_len - q_len, 0))
            count = (limit + BLOCK_N - 1) // BLOCK_N
        dtype: gl.constexpr = v_desc.dtype
        q_main = gl.allocate_shared_memory(dtype, [BLOCK_M, MAIN], q_main_desc.layout)
        k_main = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, MAIN], k_main_desc.layout)
        v = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, V], v_desc.layout)
        q_rest = q_main
        k_rest = k_main
        if REST > 0:
            q_rest = gl.allocate_shared_memory(dtype, [BLOCK_M, REST], q_rest_desc.layout)
            k_rest = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, REST], k_rest_desc.layout)
        q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        mbarrier.init(q_full, count=1)
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
                    mask_ptr, starts_ptr, out_ptr, lse_ptr, first, q_start, q_len, k_len, head, h, count, words,
                    mask_stride_s, scale_log2, q_main, q_rest, k_main, k_rest, v, q_full, k_full, k_empty, v_full,
                    v_empty, 0, BLOCK_N, V, REST, CAUSAL, MASKED, STAGES,
                )),
                (_attend, (
                    mask_ptr, starts_ptr, out_ptr, lse_ptr, first, q_start, q_len, k_len, head, h, count, words,
                    mask_stride_s, scale_log2, q_main, q_rest, k_main, k_rest, v, q_full, k_full, k_empty, v_full,
                    v_empty, 1, BLOCK_N, V, REST, CAUSAL, MASKED, STAGES,
                )),
                (_bring, (
                    q_main_desc, q_rest_desc, k_main_desc, k_rest_desc, v_desc, q_start + first, k_start,
                    head * q_stride_h, head * k_stride_h, head * v_stride_h, starts_ptr, count,
                    q_main, q_rest, k_main, k_rest, v, q_full, k_full, k_empty, v_full, v_empty,
                    BLOCK_M * (MAIN + REST) * 2, BLOCK_N * (MAIN + REST) * 2, BLOCK_N * V * 2, BLOCK_N, MASKED,
                    REST, MAIN, STAGES,
                )),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    *,
    scale: float,
    causal: bool,
    mask: torch.Tensor | None = None,
    found: VisibleTiles | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operators: dense, or with ``mask`` and the tiles ``found`` in it for tiles of ROWS and KEYS.

    Rows start at multiples of 16 bytes; 192/128 or 256/256 columns, bf16 or fp16.
    """
    check_attention(q, k, v, cu_q, cu_k)
    (s, h, d), t, width, b = q.shape, k.size(0), v.size(2), cu_q.size(0) - 1
    if (d, width) not in KEYS or q.dtype not in (torch.bfloat16, torch.float16):
        dims = " or ".join(f"{a}/{b}" for a, b in KEYS)
        raise ValueError(f"q, v: expected {dims} columns in bf16 or fp16, got {d}/{width} in {q.dtype}")
    out = torch.empty((s, h, width), dtype=q.dtype, device=q.device)
    lse = torch.empty((s, h), dtype=torch.float32, device=q.device)
    if s == 0:
        return out, lse
    if t == 0:
        return out.zero_(), lse.fill_(float("-inf"))
    keys = KEYS[d, width]
    main = 1 << (d.bit_length() - 1)
    rest = d - main
    tiles = s // ROWS + b + 1
    bundle = max(1, min(h, _L2 // (t * (d + width) * q.element_size())))
    q_main, k_main = _descriptor(q, ROWS, main), _descriptor(k, keys, main)
    q_rest, k_rest = (_descriptor(q, ROWS, rest), _descriptor(k, keys, rest)) if rest else (q_main, k_main)
    _attention_kernel[(tiles * h,)](
        q_main, q_rest, k_main, k_rest, _descriptor(v, keys, width), mask, out, lse, cu_q, cu_k,
        None if found is None else found.counts, None if found is None else found.starts, scale * _LOG2_E,
        s, b, h, tiles, bundle, 0 if mask is None else mask.size(2), 0 if found is None else found.starts.size(1),
        q.stride(1), k.stride(1), v.stride(1),
        0 if mask is None else mask.stride(0), 0 if mask is None else mask.stride(1),
        MAIN=main, REST=rest, V=width, BLOCK_M=ROWS, BLOCK_N=keys, CAUSAL=causal, MASKED=mask is not None,
        STAGES=_STAGES, num_warps=4,
    )  # fmt: skip
    return out, lse


def _descriptor(tensor: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Tokens by everything else: head n begins at column n times the head stride."""
    tokens, heads, width = tensor.shape
    layout = gl.NVMMASharedLayout(128, 16, rank=2)
    shape = [tokens, (heads - 1) * tensor.stride(1) + width]
    return TensorDescriptor(tensor, shape, [tensor.stride(0), 1], [rows, columns], layout)
