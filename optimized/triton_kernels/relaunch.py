"""Launching a compiled kernel again without Triton's search for it, which takes longer than a short kernel runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from triton.compiler import CompiledKernel
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


class Tiled(NamedTuple):
    """An argument that a kernel for Hopper copies in tiles of its tokens by everything else.

    The tensor is [t, h, d]; head n begins at column n times the head stride. It starts, and its tokens and heads lie,
    at multiples of 16 bytes.
    """

    tensor: torch.Tensor
    rows: int
    columns: int


#: What was compiled, by all that Triton specialises a kernel on, with its descriptors.
_COMPILED: dict[tuple[Any, ...], tuple[CompiledKernel, list[TensorDescriptor]]] = {}


def launch(
    kernel: Any, programs: int, arguments: Sequence[Any], constants: Mapping[str, int], *, num_warps: int
) -> None:
    """``kernel[(programs,)](*arguments, **constants)`` on the current device.

    ``arguments`` are tensors, ``Tiled`` ones, None, floats, and ints on whose values the kernel is not specialised;
    ``constants`` are its last parameters, in order. Raises TypeError for a number that the kernel is specialised on.
    """
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    key = (id(kernel), device, num_warps, *map(_kind, arguments), *constants.values())
    known = _COMPILED.get(key)
    if known is not None:
        compiled, templates = known
        again = iter(templates)
        given = [_like(next(again), x) if type(x) is Tiled else x for x in arguments]
        compiled[programs, 1, 1](*given, *constants.values())
        return
    for param, value in zip(getattr(kernel, "params", ()), arguments, strict=False):
        if type(value) is int and not param.do_not_specialize:
            raise TypeError(f"{param.name}: expected a number that the kernel is not specialised on; see triton.jit")
    given = [_descriptor(x) if type(x) is Tiled else x for x in arguments]
    compiled = kernel[(programs,)](*given, **constants, num_warps=num_warps)
    if isinstance(compiled, CompiledKernel):
        _COMPILED[key] = compiled, [_without_memory(x) for x in given if isinstance(x, TensorDescriptor)]


def _kind(value: Any) -> Any:
    """What Triton looks at in an argument: types, 32 or 64 bits, and whether a pointer is a multiple of 16."""
    if type(value) is int:
        return value >> 31
    if type(value) is Tiled:
        return value.tensor.dtype, value.rows, value.columns
    return (value.dtype, value.data_ptr() % 16) if isinstance(value, torch.Tensor) else type(value)


def _plane(tensor: torch.Tensor) -> tuple[list[int], list[int]]:
    """Shape and strides of tokens by everything else."""
    tokens, heads, width = tensor.shape
    along, across, _ = tensor.stride()
    return [tokens, (heads - 1) * across + width], [along, 1]


def _descriptor(tiled: Tiled) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(128, 16, rank=2)
    return TensorDescriptor(tiled.tensor, *_plane(tiled.tensor), [tiled.rows, tiled.columns], layout)


def _like(template: TensorDescriptor, tiled: Tiled) -> TensorDescriptor:
    """The template on another tensor; its own constructor looks at the layout again, which takes ten times as long."""
    made = object.__new__(TensorDescriptor)
    tensor = tiled.tensor
    fields = made.__dict__
    fields.update(template.__dict__)
    fields["base"] = tensor
    fields["shape"], fields["strides"] = _plane(tensor)
    return made


def _without_memory(descriptor: TensorDescriptor) -> TensorDescriptor:
    descriptor.base = None
    return descriptor
