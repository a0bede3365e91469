"""``fp8_ds_mla``: one row of bytes a token.

    [0, c)                      c e4m3 codes of the latent
    [c, c + 4 c/tile)           fp32 scales, one a tile of the latent
    [c + 4 c/tile, ... + 2 r)   r rotated dims in bf16, not quantised

For DeepSeek-V3.2 (c = 512, r = 64, tile = 128) these are the 656 bytes of FlashMLA. A reader multiplies codes by the
scale as it is stored; writers since vllm#49435 store powers of two, earlier ones amax / 448.

Source: FlashMLA at 9241ae3 ``README.md`` and ``tests/quant.py``; vLLM 0.33.0.

Shapes:
    latent: [n, c]    rope: [n, r]    rows: uint8 [n, width]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import bind_sizes
from .float8 import decode_e4m3, encode_e4m3
from .scales import ScaleRule, block_scales

#: Values that share a scale.
TILE = 128


@dataclass(frozen=True, slots=True)
class MlaRow:
    """Where the parts of a row lie, in bytes."""

    latent: int
    rope: int

    def __post_init__(self) -> None:
        if self.latent < 1 or self.rope < 0 or self.latent % self.tile or self.latent % 4:
            raise ValueError(
                f"fp8_ds_mla: expected a latent of whole tiles of {TILE}, or one smaller tile of a multiple of 4, "
                f"got {self.latent} and {self.rope} rotated dims"
            )

    @property
    def tile(self) -> int:
        """128, or the whole of a smaller latent."""
        return min(TILE, self.latent)

    @property
    def tiles(self) -> int:
        return self.latent // self.tile

    @property
    def rope_at(self) -> int:
        return self.latent + 4 * self.tiles

    @property
    def width(self) -> int:
        return self.rope_at + 2 * self.rope


def encode_mla_rows(latent: Tensor, rope: Tensor, rule: ScaleRule) -> Tensor:
    """Rows uint8 [n, width]. Scales are stored in fp32 whatever their rule. Raises ValueError for ue8m0."""
    sizes = bind_sizes(("latent", latent, "n c"), ("rope", rope, "n r"))
    if rule.scale_format == "ue8m0":
        raise ValueError("scale_format: a row of fp8_ds_mla stores fp32 scales, expected fp32 or pow2, got ue8m0")
    row = MlaRow(sizes["c"], sizes["r"])
    tiles = latent.to(torch.float32).reshape(sizes["n"], row.tiles, row.tile)
    scales = block_scales(tiles, rule)
    codes = encode_e4m3(tiles / scales[..., None]).view(sizes["n"], sizes["c"])
    stored = scales.contiguous().view(torch.uint8).view(sizes["n"], 4 * row.tiles)
    rotated = rope.to(torch.bfloat16).contiguous().view(torch.uint8).view(sizes["n"], 2 * sizes["r"])
    return torch.cat((codes, stored, rotated), 1)


def decode_mla_rows(rows: Tensor, *, latent: int) -> Tensor:
    """fp32 [n, c + r] values of rows uint8 [n, width], c being ``latent``.

    Raises ValueError for rows that cannot be of this latent.
    """
    tiles = latent // min(TILE, latent) if latent > 0 else 0
    row = MlaRow(latent, (rows.shape[-1] - latent - 4 * tiles) // 2)
    if rows.dim() != 2 or rows.dtype != torch.uint8 or rows.shape[1] != row.width:
        raise ValueError(
            f"rows: expected uint8 [n, width] with width {latent} + {4 * tiles} + 2 r, "
            f"got {rows.dtype} {list(rows.shape)}"
        )
    scale_bytes = rows[:, latent : row.rope_at].to(torch.int32).view(len(rows), tiles, 4)
    scales = (scale_bytes << torch.arange(0, 32, 8, device=rows.device)).sum(-1, dtype=torch.int32)
    values = decode_e4m3(rows[:, :latent]).view(len(rows), tiles, row.tile) * scales.view(torch.float32)[..., None]
    halves = rows[:, row.rope_at :].to(torch.int32).view(len(rows), row.rope, 2)
    rope = (halves[..., 0] << 16 | halves[..., 1] << 24).view(torch.float32)  # bf16 is the upper half of fp32
    return torch.cat((values.view(len(rows), latent), rope), 1)
