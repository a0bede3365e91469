"""Arguments: what every reference checks before it computes, and the dtype it computes in.

Shapes are written in the letters of ``attnoracle.reference`` and bound from left to right, so one call checks that
all tensors of an operator agree. Every message names the argument, what was expected and what came.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, float32, promote_types
from torch import dtype as Dtype


def bind_sizes(*arguments: tuple[str, Tensor, str]) -> dict[str, int]:
    """Sizes by letter from ``(name, tensor, "s h d")`` triples. Raises ValueError where a tensor does not fit."""
    sizes: dict[str, int] = {}
    for name, tensor, letters in arguments:
        axes = letters.split()
        shape = list(tensor.shape)
        wanted = [sizes.get(axis, size) for axis, size in zip(axes, shape, strict=False)]
        if len(axes) != len(shape) or wanted != shape:
            known = ", ".join(f"{axis}={sizes[axis]}" for axis in axes if axis in sizes)
            raise ValueError(f"{name}: expected [{', '.join(axes)}]{f' with {known}' if known else ''}, got {shape}")
        sizes.update(zip(axes, shape, strict=True))
    return sizes


def require_integers(**tensors: Tensor) -> None:
    """Raises ValueError for a tensor that does not hold integers."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() or tensor.is_complex() or tensor.element_size() < 2:
            raise ValueError(f"{name}: expected integers of 16 bits or more, got {tensor.dtype}")


def require_scales(**tensors: Tensor) -> None:
    """Raises ValueError for a tensor that holds a scale which is zero, negative or not finite."""
    for name, tensor in tensors.items():
        wrong = ~((tensor > 0) & tensor.isfinite())
        if bool(wrong.any()):
            place = wrong.nonzero()[0].tolist()
            raise ValueError(f"{name}: expected finite scales above 0, got {tensor[tuple(place)].item()} at {place}")


def request_slices(name: str, cu: Tensor, tokens: int) -> list[slice]:
    """The packed rows of each request from prefix sums [b+1]; one copy to the host."""
    require_integers(**{name: cu})
    sums = cu.tolist() if cu.dim() == 1 else []
    if not sums or sums[0] != 0 or sums[-1] != tokens or any(start > stop for start, stop in pairwise(sums)):
        raise ValueError(f"{name}: expected prefix sums [b+1] that rise from 0 to {tokens}, got {cu.tolist()}")
    return [slice(start, stop) for start, stop in pairwise(sums)]


def widen(tensor: Tensor) -> Tensor:
    """8-bit floats as float32, which arithmetic understands; everything else as it is."""
    return tensor.to(float32) if _is_float8(tensor) else tensor


def compute_dtype(*tensors: Tensor) -> Dtype:
    """The widest of the input dtypes and float32."""
    dtype = float32
    for tensor in tensors:
        dtype = dtype if _is_float8(tensor) else promote_types(dtype, tensor.dtype)
    return dtype


def _is_float8(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() == 1
