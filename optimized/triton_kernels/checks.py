"""Refusing inputs that a kernel would misread, before it is launched."""

from __future__ import annotations

from collections.abc import Sequence

import torch

ATTENTION_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    letters: str,
    sizes: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> None:
    """Raise ValueError unless ``tensor`` has these sizes (None: any), one of these dtypes, and unit inner stride.

    ``letters`` spells the expected shape for the message, for example ``[s, h, d]``.
    """
    fits = tensor.dim() == len(sizes) and all(
        want is None or want == have for want, have in zip(sizes, tensor.shape, strict=True)
    )
    if not fits:
        want = ["any" if size is None else size for size in sizes]
        raise ValueError(f"{name}: expected shape {letters} = {want}, got {list(tensor.shape)}")
    if tensor.dtype not in dtypes:
        names = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"{name}: expected {names}, got {tensor.dtype}; convert it first")
    if tensor.device != device:
        raise ValueError(f"{name}: expected device {device}, that of the first input, got {tensor.device}")
    if tensor.numel() > 0 and tensor.size(-1) > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"{name}: expected stride 1 in the last dimension, got {tensor.stride(-1)}; make it contiguous"
        )


def check_at_least(name: str, value: int, least: int) -> None:
    """Raise ValueError unless ``value >= least``."""
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")
