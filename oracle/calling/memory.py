"""Memory that tells on a kernel: red zones around its inputs, and poison in whatever it allocates itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import BadInput
from ..inputs import rng
from ..inputs.arena import Arena
from ..inputs.guards import Guarded, guarded_buffer

Fill = Literal["nan", "huge", "stale"]
#: What an allocation may hold of an earlier answer: a function of shape and dtype, or tensors to pick from.
Stale = Callable[[torch.Size, torch.dtype], Tensor | None] | Iterable[Tensor] | None

__all__ = ["Allocations", "Arena", "Fill", "Stale", "guarded_allocations"]

_ALLOCATORS = frozenset(
    {
        torch.empty,
        torch.empty_like,
        torch.empty_strided,
        torch.empty_permuted,
        torch.Tensor.new_empty,
        torch.Tensor.new_empty_strided,
    }
)
#: Bytes of a large finite value in the formats that ``fill_`` may not know.
_HUGE_BYTE = {
    torch.float8_e4m3fn: 0x7E,
    torch.float8_e5m2: 0x7B,
    torch.float8_e4m3fnuz: 0x7F,
    torch.float8_e5m2fnuz: 0x7F,
    torch.float8_e8m0fnu: 0xFE,
}


class Allocations(TorchFunctionMode):
    """While active, ``torch.empty`` and its kin hand out poisoned tensors between red zones.

    Shape, strides, dtype, device and ``requires_grad`` are as asked for; the storage is larger and the storage offset
    not 0. Allocations made in C++, by compiled code or on other threads are not seen, and neither are pinned,
    sparse and ``out=`` ones. Buffers live as long as this object.
    """

    def __init__(self, fill: Fill, stale: Stale = None, seed: int = 0) -> None:
        super().__init__()
        if fill not in ("nan", "huge", "stale"):
            raise BadInput(f"fill {fill!r}: expected nan, huge or stale")
        self.fill = fill
        self.seed = seed
        self.guarded: list[Guarded] = []
        self._stale: Stale = stale if callable(stale) or stale is None else tuple(stale)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _ALLOCATORS or kwargs.get("pin_memory") or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        device = torch.device(kwargs.get("device") or _default_device(func, args, kwargs))
        if device.type == "meta":
            return func(*args, **kwargs)
        plan = func(*args, **{**kwargs, "device": "meta", "pin_memory": False})
        if plan.layout is not torch.strided or plan.dtype.is_complex:
            return func(*args, **kwargs)
        return self._allocate(plan, device)

    def damage(self) -> list[str]:
        """Writes outside the tensors handed out, in words; empty if there were none. Waits for the devices first."""
        for device in {guarded.buffer.device for guarded in self.guarded}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return [line for guarded in self.guarded for line in guarded.damage()]

    def _allocate(self, plan: Tensor, device: torch.device) -> Tensor:
        size, stride, dtype = plan.shape, plan.stride(), plan.dtype
        last = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
        payload = (last + 1) * dtype.itemsize if plan.numel() else 0
        buffer, begin = guarded_buffer(payload, dtype, device)
        self._poison(buffer[begin : begin + payload], dtype)
        tensor = torch.empty(0, dtype=dtype, device=device)
        tensor.set_(buffer.untyped_storage(), begin // dtype.itemsize, size, stride)
        if self.fill == "stale" and plan.numel():
            earlier = self._earlier(size, dtype)
            if earlier is not None:
                tensor.copy_(earlier)
        name = f"allocation {len(self.guarded)} ({str(dtype).removeprefix('torch.')} {list(size)})"
        self.guarded.append(Guarded(name, tensor.detach(), buffer, begin, payload))
        return tensor.requires_grad_(plan.requires_grad)

    def _poison(self, payload: Tensor, dtype: torch.dtype) -> None:
        """Fills the bytes [..] of one allocation."""
        if dtype is torch.bool:
            payload.fill_(1)
        elif self.fill == "nan":
            payload.fill_(0xFF)
        elif self.fill == "huge":
            if dtype in _HUGE_BYTE:
                payload.fill_(_HUGE_BYTE[dtype])
            else:
                payload.view(dtype).fill_(_huge(dtype))
        else:
            place = torch.arange(payload.numel() // dtype.itemsize, device=payload.device)
            stream = rng.key(self.seed, f"stale {len(self.guarded)}")
            rng.fill(payload.view(dtype), lambda a, b: _plausible(stream, place[a:b], dtype))

    def _earlier(self, size: torch.Size, dtype: torch.dtype) -> Tensor | None:
        """What the provider offers for this allocation."""
        if self._stale is None:
            return None
        if callable(self._stale):
            return self._stale(size, dtype)
        return next((t for t in self._stale if t.shape == size and t.dtype == dtype), None)


def guarded_allocations(fill: Fill, *, stale: Stale = None, seed: int = 0) -> Allocations:
    """A context in which a kernel's own allocations are guarded and poisoned; see ``Allocations``.

    ``fill``: ``nan`` (all bytes FF: NaN in every float format, -1 in signed integers), ``huge`` (large and finite), or
    ``stale``: an earlier answer, from ``stale`` if that has one of this shape and dtype, else plausible values by
    ``seed``. Bools are True. ``torch.zeros``, ``torch.full`` and the like stay as they are.
    """
    return Allocations(fill, stale, seed)


def _huge(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point:
        return 6e4 if dtype is torch.float16 else 1e30
    return torch.iinfo(dtype).max // 2


def _plausible(stream: int, place: Tensor, dtype: torch.dtype) -> Tensor:
    """Values that an earlier answer might have left: normal floats, small natural numbers."""
    if dtype.is_floating_point:
        return rng.normal(stream, place)
    return rng.integers(stream, 64, place)


def _default_device(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """Where an allocation without ``device`` goes: beside its tensor argument, or to the default device."""
    first = args[0] if args else kwargs.get("input")
    if isinstance(first, Tensor) and func not in (torch.empty, torch.empty_strided, torch.empty_permuted):
        return first.device
    return torch.get_default_device()
