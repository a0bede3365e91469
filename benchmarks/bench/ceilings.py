"""What this device reaches on the simplest work, measured in the run that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .timing import interleaved


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates of plain copies and plain matrix products, operations and bytes a second."""

    copy_bytes: float
    """Device to device, bytes read and bytes written both counted."""
    product_flops: dict[str, float]
    """Square matrix products on random values, by operand format."""
    size: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        return {"copy_bytes": self.copy_bytes, "product_flops": self.product_flops, "size": self.size}


def measure(device: torch.device, *, seconds: float = 0.2) -> Ceilings:
    """A copy of 2 GiB and products of 8192 x 8192 on a GPU; sizes that a CPU does in a moment there."""
    gpu = device.type == "cuda"
    count, width = (2**31, 8192) if gpu else (2**25, 512)
    source = torch.empty(count, dtype=torch.int8, device=device).fill_(1)
    target = torch.empty_like(source)
    functions: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(source)}
    a, b = (torch.randn(width, width, device=device, dtype=torch.bfloat16 if gpu else torch.float32) for _ in range(2))
    functions["bf16" if gpu else "fp32"] = lambda: a @ b
    if gpu and torch.cuda.get_device_capability(device) >= (8, 9):
        x, y = (part.to(torch.float8_e4m3fn) for part in (a, b))
        one = torch.ones((), device=device)
        functions["e4m3"] = lambda: torch._scaled_mm(x, y.t(), one, one, out_dtype=torch.bfloat16)
    timings = dict(zip(functions, interleaved(list(functions.values()), device, seconds=seconds), strict=True))
    copied = 2.0 * count / timings.pop("copy").median
    products = {name: 2.0 * width**3 / timing.median for name, timing in timings.items()}
    return Ceilings(copied, products, {"copied_bytes": count, "product_width": width})
