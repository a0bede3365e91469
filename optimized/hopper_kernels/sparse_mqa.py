"""Sparse MQA prefill on Hopper: two warpgroups share one tile of 64 rows, a third gathers keys for them.

The 512 output columns of a tile are too many for one warpgroup's registers, so each holds half of them. Keys come in
pairs of tiles: the first warpgroup scores the first tile, the second the second, and each multiplies both tiles'
probabilities with its half of the values. The gatherer copies 16 bytes a thread, asynchronously; half tiles are handed
back as soon as nobody needs them, so that it never waits long. The rope columns of a tile are dead once it is scored,
and carry its probabilities from then on.

The rows of a tile are heads of one query, or those of several neighbouring queries that share one list of keys (see
``shared_keys.py``): then a bit for each query says which keys it selected.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ..latent_rows import require_model
from ..triton_kernels.checks import check_at_least, check_tensor
from .names import barrier
from .shared_keys import MOST, shared_keys
from .sparse_tiles import (
    _HALF,
    _KEYS,
    _LOG2_E,
    _ROPE,
    _ROWS,
    _THREADS,
    _TILE,
    _VECTOR,
    LATENT,
    ROPE,
    ROWS,
    _first,
    _producer,
    _second,
)


@gluon.jit(do_not_specialize=[
    "s", "h", "n", "slots", "blocks", "q_stride_s", "q_stride_h", "kv_stride", "keys_stride",
])  # fmt: skip
def _sparse_mqa_kernel(
    q_ptr, kv_ptr, keys_ptr, bits_ptr, counts_ptr, sink_ptr, out_ptr, lse_ptr, scale_log2, s, h, n, slots, blocks,
    q_stride_s, q_stride_h, kv_stride, keys_stride,
    GROUP: gl.constexpr, HAS_COUNTS: gl.constexpr, HAS_SINK: gl.constexpr,
):  # fmt: skip
    # Blocks of heads of one query run side by side: they gather the same keys.
    tile = gl.program_id(0)
    group = tile // blocks
    count = slots
    if HAS_COUNTS:
        count = gl.minimum(slots, gl.maximum(gl.load(counts_ptr + group), 0))
    pairs = (count + 2 * _KEYS - 1) // (2 * _KEYS)
    keys_ptr += group.to(gl.int64) * keys_stride
    if GROUP > 1:
        bits_ptr += group.to(gl.int64) * keys_stride

    q_left = gl.allocate_shared_memory(gl.bfloat16, [1, _ROWS, _HALF], _TILE)
    q_right = gl.allocate_shared_memory(gl.bfloat16, [1, _ROWS, _HALF], _TILE)
    q_rope = gl.allocate_shared_memory(gl.bfloat16, [1, _ROWS, _ROPE], _TILE)
    k_left = gl.allocate_shared_memory(gl.bfloat16, [2, _KEYS, _HALF], _TILE)
    k_right = gl.allocate_shared_memory(gl.bfloat16, [2, _KEYS, _HALF], _TILE)
    rope = gl.allocate_shared_memory(gl.bfloat16, [2, _KEYS, _ROPE], _TILE)
    tops = gl.allocate_shared_memory(gl.float32, [2, _ROWS], _VECTOR)
    sums = gl.allocate_shared_memory(gl.float32, [2, _ROWS], _VECTOR)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    left_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    right_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    left_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    right_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    # In pairs: what the first and the second warpgroup tell each other.
    said = gl.allocate_shared_memory(gl.int64, [6, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=_THREADS)
    for half in gl.static_range(2):
        mbarrier.init(left_full.index(half), count=_THREADS)
        mbarrier.init(right_full.index(half), count=_THREADS)
        mbarrier.init(left_empty.index(half), count=1)
        mbarrier.init(right_empty.index(half), count=1)
    for each in gl.static_range(6):
        mbarrier.init(said.index(each), count=1)
    barrier()

    gl.warp_specialize(
        [
            (_first, (
                keys_ptr, bits_ptr, count, pairs, n, scale_log2, GROUP,
                q_left, q_right, q_rope, k_left, k_right, rope, q_full, left_full, right_full, left_empty, right_empty,
                tops, sums, said.index(0), said.index(1), said.index(2), said.index(3), said.index(4), said.index(5),
                out_ptr, lse_ptr, sink_ptr, tile, blocks, s, h, HAS_SINK,
            )),
            (_second, (
                keys_ptr, bits_ptr, count, pairs, n, scale_log2, GROUP,
                q_left, q_right, q_rope, k_left, k_right, rope, q_full, left_full, right_full, left_empty, right_empty,
                tops, sums, said.index(0), said.index(1), said.index(2), said.index(3), said.index(4), said.index(5),
                out_ptr, lse_ptr, sink_ptr, tile, blocks, s, h, HAS_SINK,
            )),
            (_producer, (
                q_ptr, kv_ptr, keys_ptr, tile, blocks, q_stride_s, q_stride_h, kv_stride, s, h, n, count, pairs, GROUP,
                q_left, q_right, q_rope, k_left, k_right, rope, q_full, left_full, right_full, left_empty, right_empty,
            )),
        ],
        [4, 4],
        [216, 72],
    )  # fmt: skip


def sparse_mqa(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    *,
    scale: float,
    value_dim: int,
    lengths: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    cache_format: str = "model",
    q_scale: float = 1.0,
    k_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query over the cache rows its indices name; values are the first 512 columns of the keys.

    Shapes:
        q: [s, h, 576], kv: [n, 576], bf16; all strides but the inner are free, rows start at multiples of 16 bytes
        indices: [s, k] int32 rows of kv; an entry < 0 or >= n is ignored wherever it stands, duplicates count each time
        value_dim: 512
        lengths: [s] int32; only the first lengths[s] entries of a row count
        sink: [h] fp32, natural units; out is multiplied by exp(lse) / (exp(lse) + exp(sink)), lse is not changed
        scale: multiplies q.k
        cache_format: model, the rows as they are; then q_scale and k_scale are 1
    Returns out [s, h, 512] bf16 and lse [s, h] fp32, natural log; (0, -inf) for a query without valid entry. Only named
    rows are read.
    Raises ValueError for shapes, dtypes, devices or inner strides that do not fit. Never waits for the device.
    """
    require_model(cache_format, q_scale, k_scale)
    check_inputs(q, kv, indices, value_dim, lengths, sink)
    s, h, _ = q.shape
    out = torch.empty((s, h, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((s, h), dtype=torch.float32, device=q.device)
    if s:
        launch(q, kv, indices, None, lengths, sink, out, lse, scale, 1)
    return out, lse


def launch(
    q: torch.Tensor,
    kv: torch.Tensor,
    keys: torch.Tensor,
    bits: torch.Tensor | None,
    counts: torch.Tensor | None,
    sink: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    scale: float,
    group: int,
) -> None:
    """Tiles of 64 rows: ``group`` queries of at most 64 / group heads each, or blocks of 64 heads of one query.

    keys, bits: [groups, slots] int32; counts: [groups] int32 slots that matter.
    """
    s, h, _ = q.shape
    blocks = -(-h // ROWS) if group == 1 else 1
    tiles = -(-s // group) * blocks
    _sparse_mqa_kernel[(tiles,)](
        q, kv, keys, bits, counts, sink, out, lse, scale * _LOG2_E.value, s, h, kv.size(0), keys.size(1), blocks,
        q.stride(0) // 8, q.stride(1) // 8, kv.stride(0) // 8, keys.stride(0),
        GROUP=group, HAS_COUNTS=counts is not None, HAS_SINK=sink is not None, num_warps=4,
    )  # fmt: skip


def check_inputs(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    value_dim: int,
    lengths: torch.Tensor | None,
    sink: torch.Tensor | None,
) -> None:
    """Raise ValueError unless these can be the inputs of this kernel."""
    width = LATENT + ROPE
    check_tensor("q", q, "[s, h, 576]", (None, None, width), (torch.bfloat16,), q.device)
    s, h, _ = q.shape
    check_tensor("kv", kv, "[n, 576]", (None, width), (torch.bfloat16,), q.device)
    check_tensor("indices", indices, "[s, k]", (s, None), (torch.int32,), q.device)
    check_at_least("heads", h, 1)
    if value_dim != LATENT:
        raise ValueError(f"value_dim: expected {LATENT}, got {value_dim}")
    for name, tensor in (("q", q), ("kv", kv)):
        if any(stride % 8 for stride in tensor.stride()[:-1]) or tensor.data_ptr() % 16:
            raise ValueError(f"{name}: expected rows that start at multiples of 16 bytes; make it contiguous")
    if lengths is not None:
        check_tensor("lengths", lengths, "[s]", (s,), (torch.int32,), q.device)
    if sink is not None:
        check_tensor("sink", sink, "[h]", (h,), (torch.float32,), q.device)


def sparse_mqa_shared(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    *,
    scale: float,
    value_dim: int,
    lengths: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
    cache_format: str = "model",
    q_scale: float = 1.0,
    k_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``sparse_mqa`` for at most 32 heads: neighbouring queries share a tile and the keys that any of them selected.

    An index that a row names twice counts once. Which queries share a tile depends on their places in the batch.
    """
    require_model(cache_format, q_scale, k_scale)
    check_inputs(q, kv, indices, value_dim, lengths, sink)
    s, h, _ = q.shape
    group = group_of(h)
    out = torch.empty((s, h, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((s, h), dtype=torch.float32, device=q.device)
    if s:
        found = shared_keys(indices, kv.size(0), lengths, group)
        launch(q, kv, found.keys, found.bits, found.counts, sink, out, lse, scale, group)
    return out, lse


def group_of(heads: int) -> int:
    """Queries whose heads fill a tile, 2 to 8. Raises ValueError where fewer than two fit."""
    if not 1 <= heads <= ROWS // 2:
        raise ValueError(f"heads: expected at most {ROWS // 2}, so that two queries share a tile, got {heads}")
    return min(MOST, ROWS // (1 << (heads - 1).bit_length()))
