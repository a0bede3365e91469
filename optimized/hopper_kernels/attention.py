"""Launch of dense and masked MHA on Hopper; the kernel is in ``attention_kernel.py``."""

from __future__ import annotations

import torch

from ..triton_kernels.dense_mha import check_attention, query_tiles
from ..triton_kernels.launch import processors
from ..triton_kernels.relaunch import Tiled, launch
from ..triton_kernels.visible_tiles import VisibleTiles
from .attention_kernel import CHUNK, attention_kernel

#: Query rows of a program, and keys of a tile by head dims.
ROWS = 128
KEYS = {(192, 128): 128, (256, 256): 64}
_STAGES = 2
#: Bytes of keys and values that heads in flight may take of the L2 cache.
_L2 = 2**25
_LOG2_E = 1.4426950408889634


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
    tiles = query_tiles(s, b, ROWS)
    items = tiles * h
    # bundles of even width: the last one must not be a few long tiles for many processors
    bundles = -(-h // max(1, _L2 // (t * (d + width) * q.element_size())))
    drawn = torch.zeros((1,), dtype=torch.int32, device=q.device)
    counts, starts, masking = None, None, (0, 0, 0, 0)
    if mask is not None and found is not None:
        counts, starts = found.counts, found.starts
        masking = (mask.size(2), starts.size(1), mask.stride(0), mask.stride(1))
    arguments = (
        Tiled(q, ROWS, CHUNK.value), Tiled(k, keys, CHUNK.value), Tiled(v, keys, width), mask, out, lse, cu_q, cu_k,
        counts, starts, drawn, scale * _LOG2_E, items, s, b, h, tiles, -(-h // bundles), *masking,
        q.stride(1), k.stride(1), v.stride(1),
    )  # fmt: skip
    constants = {
        "CHUNKS": d // CHUNK.value, "V": width, "BLOCK_M": ROWS, "BLOCK_N": keys, "CAUSAL": causal,
        "MASKED": mask is not None, "STAGES": _STAGES,
    }  # fmt: skip
    launch(attention_kernel, min(items, processors(q.device)), arguments, constants, num_warps=4)
    return out, lse
