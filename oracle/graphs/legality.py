"""Which calls a capturing stream does not allow, and why.

A call that hands a device value to the host has to wait for the device; one whose output size depends on a device value
does so inside; one that copies pageable host memory does so too. Found by running each in a real capture, see
``probes.py``; ``benchmarks/results`` holds what CUDA said to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

READS = "it hands a device value to the host"
SIZES = "the size of its output depends on a device value"
MIXES = "it mixes a tensor on the host with one on the device"
COPIES = "it copies host memory to the device, and waits for it"

#: Methods that hand values to the host. Several leave no trace in a dispatch mode, so they are seen by name.
_READERS: dict[Any, str] = {
    getattr(Tensor, name): f"Tensor.{name}"
    for name in (
        "tolist", "item", "cpu", "numpy", "__array__", "__bool__", "__int__", "__float__", "__complex__", "__index__",
        "__contains__", "__format__",
    )
    if hasattr(Tensor, name)
}  # fmt: skip
_BUILDERS: dict[Any, str] = {torch.tensor: "torch.tensor", torch.as_tensor: "torch.as_tensor"}
_FACTORIES = (
    torch.tensor, torch.as_tensor, torch.from_numpy, torch.arange, torch.zeros, torch.ones, torch.full, torch.empty,
    torch.eye, torch.linspace, torch.rand, torch.randn, torch.randint, torch.empty_strided,
)  # fmt: skip

#: aten operations that wait for the device.
_WAITS = {
    "aten._local_scalar_dense": READS,
    "aten.equal": READS,
    "aten.is_nonzero": READS,
    "aten.nonzero": SIZES,
    "aten.masked_select": SIZES,
    "aten.unique_dim": SIZES,
    "aten.unique_consecutive": SIZES,
    "aten._unique": SIZES,
    "aten._unique2": SIZES,
    "aten.bincount": SIZES,
}


def reads_host(function: Any) -> str | None:
    """The name of a method that hands its tensor to the host, or None."""
    try:
        return _READERS.get(function)
    except TypeError:
        return None


def builds_from_host(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The name of a function that makes a device tensor from host values, or None."""
    name = _BUILDERS.get(function) if function in _BUILDERS else None
    if function is Tensor.new_tensor:
        return "Tensor.new_tensor"
    given = args[0] if args else kwargs.get("data")
    return name if kwargs.get("device") is not None and not isinstance(given, Tensor) else None


def makes_host_tensor(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call without a device makes a tensor on the host."""
    if function not in _FACTORIES or kwargs.get("device") is not None or torch.get_default_device().type != "cpu":
        return False
    return function is torch.from_numpy or not any(isinstance(value, Tensor) for value in args)


def moves(function: Any) -> str | None:
    """The name of a method that moves a tensor between host and device, or None."""
    return {Tensor.to: "Tensor.to", Tensor.cuda: "Tensor.cuda", Tensor.pin_memory: "Tensor.pin_memory"}.get(function)


def waits(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why an aten operation cannot be captured, or None. ``name`` is without the overload."""
    if name in _WAITS:
        return _WAITS[name]
    if name == "aten.repeat_interleave":
        return SIZES if kwargs.get("output_size") is None and any(isinstance(value, Tensor) for value in args) else None
    if name in ("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"):
        masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
        # One mask and one value is a masked fill, which needs no size.
        fills = name != "aten.index" and len(masks) == len(args[1]) == 1 and args[2].numel() == 1
        return SIZES if masks and not fills else None
    if name in ("aten._to_copy", "aten.copy_"):
        return _crosses(name, args, kwargs)
    return None


def _crosses(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    source = args[1] if name == "aten.copy_" else args[0]
    target = args[0].device if name == "aten.copy_" else torch.device(kwargs.get("device") or source.device)
    if source.device.type == target.type or (source.dim() == 0 and name == "aten.copy_" and target.type != "cpu"):
        return None
    if target.type == "cpu":
        queued = name == "aten.copy_" and args[0].is_pinned() and (kwargs.get("non_blocking") or args[2:3] == (True,))
        return None if queued else READS
    return None if source.is_pinned() else COPIES
