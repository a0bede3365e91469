"""Rotary position embedding, in both pairings, with YaRN.

    frequency[j] = theta^(-2j/r)                                     j = 0 … r/2 - 1
    angle[s,j]   = position[s] * frequency[j]
    (a, b)      -> (a cos - b sin, a sin + b cos)                    pair j of the vector
    interleaved: pair j is (x[2j], x[2j+1])          halves: pair j is (x[j], x[j + r/2])

YaRN divides slow frequencies by ``factor`` and keeps fast ones, with a linear ramp between the dims that turn
``beta_fast`` and ``beta_slow`` times over ``original_positions``; cos and sin are multiplied by
mscale(factor, mscale) / mscale(factor, mscale_all_dim), where mscale(f, m) = 0.1 m ln f + 1.

Source: Su et al. 2021 (arXiv:2104.09864), eq. 15 and 34; Peng et al. 2023 (arXiv:2309.00071), section 3; DeepSeek-V3.2
at 3b99a53, ``inference/model.py``; vLLM 0.33.0 ``rotary_embedding/deepseek_scaling_rope.py``.

Shapes:
    positions: int [s]    cos, sin: [s, r/2]    x: [s, r] or [s, h, r]
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log, pi

import torch
from torch import Tensor

from .arguments import compute_dtype, require_integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """YaRN as a model's config states it."""

    factor: float
    original_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0


def yarn_mscale(factor: float, mscale: float) -> float:
    """0.1 * mscale * ln(factor) + 1; 1 where nothing is stretched."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * log(factor) + 1.0


def rope_frequencies(dim: int, theta: float, yarn: Yarn | None = None) -> Tensor:
    """Radians a position [r/2], float64. Raises ValueError for an odd ``dim``."""
    if dim % 2:
        raise ValueError(f"dim: expected an even number, got {dim}")
    pair = torch.arange(dim // 2, dtype=torch.float64)
    frequency = theta ** (-2.0 * pair / dim)
    if yarn is None:
        return frequency
    low = max(floor(_pair_that_turns(yarn.beta_fast, dim, theta, yarn)), 0)
    high = min(ceil(_pair_that_turns(yarn.beta_slow, dim, theta, yarn)), dim - 1)
    stretched = ((pair - low) / max(high - low, 0.001)).clamp(0.0, 1.0)  # 0.001: a step where the ramp has no width
    return frequency * (1.0 - stretched) + frequency / yarn.factor * stretched


def rope_tables(
    positions: Tensor,
    *,
    dim: int,
    theta: float,
    yarn: Yarn | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """cos and sin of every position, computed in float64 and rounded to ``dtype``."""
    require_integers(positions=positions)
    frequency = rope_frequencies(dim, theta, yarn).to(positions.device)
    angle = torch.einsum("s,j->sj", positions.double(), frequency)
    stretch = yarn_mscale(yarn.factor, yarn.mscale) / yarn_mscale(yarn.factor, yarn.mscale_all_dim) if yarn else 1.0
    return (angle.cos() * stretch).to(dtype), (angle.sin() * stretch).to(dtype)


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x with the pairs (0, 1), (2, 3), … turned (GPT-J style), in the compute dtype."""
    a, b, cos, sin = _operands(x[..., 0::2], x[..., 1::2], cos, sin)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x with the pairs (0, r/2), (1, r/2 + 1), … turned (NeoX style), in the compute dtype."""
    half = x.shape[-1] // 2
    a, b, cos, sin = _operands(x[..., :half], x[..., half:], cos, sin)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def _operands(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs and tables in the compute dtype, the tables [s, …, r/2] of one rank with the pairs."""
    wanted = (*a.shape[:1], *a.shape[-1:])
    if a.shape != b.shape or cos.shape != wanted or sin.shape != wanted:
        raise ValueError(f"cos, sin: expected {list(wanted)}, got {list(cos.shape)} and {list(sin.shape)}")
    dtype = compute_dtype(a, cos, sin)
    inner = (wanted[0], *[1] * (a.dim() - 2), wanted[-1])
    return a.to(dtype), b.to(dtype), cos.to(dtype).view(inner), sin.to(dtype).view(inner)


def _pair_that_turns(times: float, dim: int, theta: float, yarn: Yarn) -> float:
    """The (fractional) pair whose angle goes round ``times`` times over the original positions."""
    return dim * log(yarn.original_positions / (times * 2.0 * pi)) / (2.0 * log(theta))
