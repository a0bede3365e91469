"""Lightning-indexer scores on Hopper: keys stay in registers, queries stream by, the sum over heads is free of memory.

Each of two warpgroups holds 128 keys as the left operand of the tensor cores; a third warp brings one query after the
other. Products of the keys with all heads of a query are rectified, weighted and summed within a thread and its three
neighbours, while another query's are computed: the next product is started as soon as its registers are free. E4M3
products run on the fp8 tensor cores, whose sums keep 13 bits after the point; the contract says so.
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

from ..pages import check_scales, check_windows
from ..triton_kernels.checks import check_tensor
from .names import barrier, load_tile

#: Keys of a warpgroup, queries in shared memory.
KEYS = 128
STAGES = 4
#: Queries of a program, and of a turn of its loop; those where programs of so many would fill fewer than eight rounds
#: of an H200's 132 processors, of which the last is half empty on average.
QUERIES, CHAIN = 256, 8
FEW_QUERIES, FEW_CHAIN = 64, 4
EIGHT_ROUNDS = 1000
_KEYS = gl.constexpr(KEYS)
_STAGES = gl.constexpr(STAGES)


@gluon.jit
def _bring(q_desc, row, step, count, q, full, empty, BYTES: gl.constexpr):
    """The copying warp: all heads of one query after the other."""
    for each in range(count):
        stage = each % _STAGES
        mbarrier.wait(empty.index(stage), (each // _STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), BYTES)
        load_tile(q_desc, [row + each * step, 0], full.index(stage), q.index(stage))


@gluon.jit
def _multiply(keys, q, full, each, zero):
    """Products of the keys with one query, started."""
    stage = each % _STAGES
    mbarrier.wait(full.index(stage), each // _STAGES & 1)
    return warpgroup_mma(keys, q.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def _parts(product):
    """Sums over the heads that one thread holds: [128 keys, 4 lanes]."""
    part = gl.reshape(product, [_KEYS, product.shape[1] // 8, 4, 2])
    part = gl.reshape(gl.permute(part, [0, 2, 1, 3]), [_KEYS, 4, product.shape[1] // 4])
    return gl.sum(part, 2)


@gluon.jit
def _lanes(part):
    """Which of its four a lane is, [1, 4]."""
    return gl.expand_dims(gl.arange(0, 4, layout=gl.SliceLayout(0, part.type.layout)), 0)


@gluon.jit
def _quad_sums(part):
    """Sums over four lanes, each of which holds four keys: lane j gets the one of its key 8 * (j & 1) + 64 * (j >> 1).

    Half of what a lane holds changes hands in each of two steps; a plain sum would exchange all of it twice and leave
    every sum in four lanes.
    """
    lanes, _ = gl.broadcast(_lanes(part), part)
    return gl.inline_asm_elementwise(
        """{
        .reg .pred far, near;
        .reg .b32 bit, a, b, c, d;
        and.b32 bit, $8, 2;
        setp.ne.b32 far, bit, 0;
        and.b32 bit, $8, 1;
        setp.ne.b32 near, bit, 0;
        selp.b32 a, $6, $4, far;
        selp.b32 c, $4, $6, far;
        selp.b32 b, $7, $5, far;
        selp.b32 d, $5, $7, far;
        shfl.sync.bfly.b32 c, c, 2, 31, -1;
        shfl.sync.bfly.b32 d, d, 2, 31, -1;
        add.f32 a, a, c;
        add.f32 b, b, d;
        selp.b32 c, b, a, near;
        selp.b32 d, a, b, near;
        shfl.sync.bfly.b32 d, d, 1, 31, -1;
        add.f32 $0, c, d;
        mov.b32 $1, $0;
        mov.b32 $2, $0;
        mov.b32 $3, $0;
        }""",
        "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r", [part, lanes], dtype=gl.float32, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def _one_each(x):
    """[128 keys, 4 lanes] to [4 warps, 8, 4 lanes]: of the four keys that a lane holds, the first."""
    x = gl.reshape(x, [2, 4, 2, 8, 4])
    x, _ = gl.split(gl.permute(x, [1, 2, 3, 4, 0]))
    x, _ = gl.split(gl.permute(x, [0, 2, 3, 1]))
    return x


@gluon.jit
def _columns(start, zero):
    """The keys of the scores that `_emit` makes, one a thread."""
    part = _parts(zero)
    lanes = _lanes(part)
    key = gl.expand_dims(gl.arange(0, _KEYS, layout=gl.SliceLayout(1, part.type.layout)), 1)
    return _one_each(start + (key & 0x37) + (lanes & 1) * 8 + (lanes & 2) * 32)


@gluon.jit
def _emit(
    product, weights, k_scale, ks, ke, columns, row, last, t, width, scores_ptr, COMPRESSED: gl.constexpr
):  # fmt: skip
    """Rectify, weigh, add over the heads and write one query's scores; compressed rows hold -inf already."""
    # x + |x| is twice the rectified x, NaN included, on units that a comparison or a maximum would not use.
    product += gl.abs(product)
    scores = _one_each(_quad_sums(_parts(product * gl.expand_dims(weights, 0)))) * k_scale
    inside = (columns >= ks) & (columns < ke)
    if COMPRESSED:
        live = inside & (columns - ks < width) & (columns < t) & (row < last)
        gl.store(scores_ptr + row.to(gl.int64) * width + columns - ks, scores, mask=live)
    else:
        scores = gl.where(inside, scores, float("-inf"))
        gl.store(scores_ptr + row.to(gl.int64) * width + columns, scores, mask=(columns < t) & (row < last))


@gluon.jit
def _facts(
    weights_ptr, q_scale_ptr, ks_ptr, ke_ptr, row, last, weights_stride_s, q_scale_stride_s, HEADS: gl.constexpr,
    HAS_Q_SCALE: gl.constexpr, PAIRED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Weights and window of a query; those of the last one for rows beyond it. PAIRED: strides are even."""
    row = gl.minimum(row, last - 1)
    head = gl.arange(0, HEADS, layout=gl.SliceLayout(0, LAYOUT))
    EVEN: gl.constexpr = 2 if PAIRED else 1
    weights = gl.load(weights_ptr + row.to(gl.int64) * (weights_stride_s // EVEN) * EVEN + head)
    if HAS_Q_SCALE:
        weights *= gl.load(q_scale_ptr + row.to(gl.int64) * (q_scale_stride_s // EVEN) * EVEN + head)
    return weights, gl.load(ks_ptr + row), gl.load(ke_ptr + row)


@gluon.jit
def _score(
    k_ptr, k_scale_ptr, weights_ptr, q_scale_ptr, ks_ptr, ke_ptr, scores_ptr, first, last, count, start, t, width,
    k_stride_t, weights_stride_s, q_scale_stride_s, q, full, empty, WHICH: gl.constexpr, HEADS: gl.constexpr,
    E: gl.constexpr, HAS_Q_SCALE: gl.constexpr, PAIRED: gl.constexpr, COMPRESSED: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """One warpgroup: its keys against all queries of the program, a chain of them a turn."""
    PRODUCT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 32])
    COPY: gl.constexpr = gl.BlockedLayout([1, 16], [32 // (E // 16), E // 16], [4, 1], [1, 0])
    start += WHICH * _KEYS
    at = start + gl.arange(0, _KEYS, layout=gl.SliceLayout(1, COPY))
    dim = gl.arange(0, E, layout=gl.SliceLayout(0, COPY))
    # Rows start at multiples of 16 bytes, which the compiler must see.
    pointers = k_ptr + gl.expand_dims(at.to(gl.int64) * (k_stride_t // 16) * 16, 1) + gl.expand_dims(dim, 0)
    keys = gl.load(pointers, mask=gl.expand_dims((at < t) & (at >= 0), 1), other=0.0)
    keys = gl.convert_layout(keys, gl.DotOperandLayout(0, PRODUCT, 4))
    zero = gl.zeros([_KEYS, HEADS], gl.float32, layout=PRODUCT)
    columns = _columns(start, zero)
    k_scale = gl.load(k_scale_ptr + columns, mask=columns < t, other=0.0) * 0.5
    next_weights, next_ks, next_ke = _facts(
        weights_ptr, q_scale_ptr, ks_ptr, ke_ptr, first, last, weights_stride_s, q_scale_stride_s, HEADS,
        HAS_Q_SCALE, PAIRED, PRODUCT,
    )  # fmt: skip
    for each in range(0, count, CHAIN):
        # None is in flight between turns: with its left operand in registers ptxas would wait for each by itself.
        even = _multiply(keys, q, full, each, zero)
        odd = _multiply(keys, q, full, each + 1, zero)
        for link in gl.static_range(CHAIN):
            row = first + each + link
            # Read one query ahead: these come from far away.
            weights, ks, ke = next_weights, next_ks, next_ke
            next_weights, next_ks, next_ke = _facts(
                weights_ptr, q_scale_ptr, ks_ptr, ke_ptr, row + 1, last, weights_stride_s, q_scale_stride_s, HEADS,
                HAS_Q_SCALE, PAIRED, PRODUCT,
            )  # fmt: skip
            done = warpgroup_mma_wait(1 if link + 1 < CHAIN else 0, deps=[even])
            _emit(done, weights, k_scale, ks, ke, columns, row, last, t, width, scores_ptr, COMPRESSED)
            barrier()
            mbarrier.arrive(empty.index((each + link) % _STAGES), count=1)
            even = odd
            if link + 2 < CHAIN:
                odd = _multiply(keys, q, full, each + link + 2, zero)


@gluon.jit
def _fill(scores_ptr, first, last, start, t):
    """-inf for a tile that no query's window touches."""
    columns = start + gl.arange(0, 2 * _KEYS, layout=gl.BlockedLayout([2], [32], [4], [0]))
    for row in range(first, last):
        none = gl.full([2 * _KEYS], float("-inf"), gl.float32, layout=gl.BlockedLayout([2], [32], [4], [0]))
        gl.store(scores_ptr + row.to(gl.int64) * t + columns, none, mask=columns < t)


@gluon.jit(do_not_specialize=["s", "t", "width", "step", "k_stride_t", "weights_stride_s", "q_scale_stride_s"])
def _indexer_scores_kernel(
    q_desc, k_ptr, k_scale_ptr, weights_ptr, q_scale_ptr, ks_ptr, ke_ptr, scores_ptr, s, t, width, step,
    k_stride_t, weights_stride_s, q_scale_stride_s,
    HEADS: gl.constexpr, E: gl.constexpr, QUERIES: gl.constexpr, CHAIN: gl.constexpr, HAS_Q_SCALE: gl.constexpr,
    PAIRED: gl.constexpr, COMPRESSED: gl.constexpr,
):  # fmt: skip
    # Key tiles of one block of queries run side by side: the queries are read from memory once.
    key_tiles = (t + 2 * _KEYS - 1) // (2 * _KEYS)
    first = gl.program_id(0) // key_tiles * QUERIES
    start = gl.program_id(0) % key_tiles * (2 * _KEYS)
    last = gl.minimum(first + QUERIES, s)
    row = first + gl.arange(0, QUERIES, layout=gl.BlockedLayout([1], [32], [4], [0]))
    ks = gl.load(ks_ptr + row, mask=row < last, other=0)
    ke = gl.load(ke_ptr + row, mask=row < last, other=0)
    touched = (gl.maximum(ks, start) < gl.minimum(ke, start + 2 * _KEYS)).to(gl.int32)
    if gl.max(touched, 0) == 0:
        if not COMPRESSED:
            _fill(scores_ptr, first, last, start, t)
    else:
        count = (last - first + CHAIN - 1) // CHAIN * CHAIN
        q = gl.allocate_shared_memory(q_desc.dtype, [_STAGES, HEADS, E], q_desc.layout)
        full = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [_STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(_STAGES):
            mbarrier.init(full.index(stage), count=1)
            mbarrier.init(empty.index(stage), count=2)
        fence_async_shared()
        barrier()
        gl.warp_specialize(
            [
                (_score, (
                    k_ptr, k_scale_ptr, weights_ptr, q_scale_ptr, ks_ptr, ke_ptr, scores_ptr, first, last, count, start,
                    t, width, k_stride_t, weights_stride_s, q_scale_stride_s, q, full, empty, 0, HEADS, E, HAS_Q_SCALE,
                    PAIRED, COMPRESSED, CHAIN,
                )),
                (_score, (
                    k_ptr, k_scale_ptr, weights_ptr, q_scale_ptr, ks_ptr, ke_ptr, scores_ptr, first, last, count, start,
                    t, width, k_stride_t, weights_stride_s, q_scale_stride_s, q, full, empty, 1, HEADS, E, HAS_Q_SCALE,
                    PAIRED, COMPRESSED, CHAIN,
                )),
                (_bring, (q_desc, first * step, step, count, q, full, empty, HEADS * E)),
            ],
            [4, 1],
            [232, 24],
        )  # fmt: skip


def indexer_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    k_scale: torch.Tensor,
    weights: torch.Tensor,
    ks: torch.Tensor,
    ke: torch.Tensor,
    *,
    q_scale: torch.Tensor | None = None,
    max_seqlen_k: int | None = None,
) -> tuple[torch.Tensor]:
    """``scores[s, t] = k_scale[t] * sum_i weights[s, i] * relu(q[s, i] . k[t])`` for ks[s] <= t < ke[s], else -inf.

    Shapes:
        q: [s, i, e], k: [t, e], both float8_e4m3fn, i 16, 32 or 64, e 64 or 128; rows start at multiples of 16 bytes,
            and a query's stride is a multiple of a head's
        k_scale: [t] fp32, weights: [s, i] fp32, ks, ke: [s] int32
        q_scale: [s, i] fp32, multiplies the weights
        max_seqlen_k: columns of compressed scores, whose rows start at ks[s]; a window beyond them is cut
    Returns (scores [s, t or max_seqlen_k] fp32,), every element written.
    Raises ValueError for shapes, dtypes, devices or strides that do not fit. Never waits for the device.
    """
    fp8 = (torch.float8_e4m3fn,)
    check_tensor("q", q, "[s, i, e]", (None, None, None), fp8, q.device)
    s, i, e = q.shape
    check_tensor("k", k, "[t, e]", (None, e), fp8, q.device)
    t = k.size(0)
    check_tensor("k_scale", k_scale, "[t]", (t,), (torch.float32,), q.device)
    check_tensor("weights", weights, "[s, i]", (s, i), (torch.float32,), q.device)
    check_tensor("ks", ks, "[s]", (s,), (torch.int32,), q.device)
    check_tensor("ke", ke, "[s]", (s,), (torch.int32,), q.device)
    if i not in (16, 32, 64) or e not in (64, 128):
        raise ValueError(f"q: expected 16, 32 or 64 heads and 64 or 128 columns, got {i} and {e}")
    if q_scale is not None:
        check_tensor("q_scale", q_scale, "[s, i]", (s, i), (torch.float32,), q.device)
        check_scales("q_scale", q_scale)
    width = t if max_seqlen_k is None else max_seqlen_k
    scores = torch.empty((s, width), dtype=torch.float32, device=q.device)
    if max_seqlen_k is not None:
        check_windows(ks, ke, t, max_seqlen_k)
        scores.fill_(float("-inf"))
    if s == 0 or t == 0 or width == 0:
        return (scores,)
    if q.stride(0) % q.stride(1):
        raise ValueError(f"q: expected a query stride that is a multiple of the head stride, got {q.stride()}")
    step = q.stride(0) // q.stride(1)
    layout = gl.NVMMASharedLayout(e, 8, rank=2)
    q_desc = TensorDescriptor(q, [(s - 1) * step + i, e], [q.stride(1), 1], [i, e], layout)
    paired = weights.stride(0) % 2 == 0 and (q_scale is None or q_scale.stride(0) % 2 == 0)
    queries, chain = queries_of(s, t)
    programs = -(-s // queries) * -(-t // (2 * KEYS))
    _indexer_scores_kernel[(programs,)](
        q_desc, k, k_scale, weights, q_scale, ks, ke, scores, s, t, width, step,
        k.stride(0), weights.stride(0), 0 if q_scale is None else q_scale.stride(0),
        HEADS=i, E=e, QUERIES=queries, CHAIN=chain, HAS_Q_SCALE=q_scale is not None, PAIRED=paired,
        COMPRESSED=max_seqlen_k is not None, num_warps=4,
    )  # fmt: skip
    return (scores,)


def queries_of(s: int, t: int) -> tuple[int, int]:
    """Queries of a program for so many queries and keys, and of a turn, of which a program has whole ones."""
    many = -(-s // QUERIES) * -(-t // (2 * KEYS)) >= EIGHT_ROUNDS
    return (QUERIES, CHAIN) if many else (FEW_QUERIES, FEW_CHAIN)
