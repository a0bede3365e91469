"""What a module multiplies and selects from, seen from outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Products(TorchFunctionMode):
    """Operands of products and of ``topk``, in order, while a module runs."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: list[tuple[Tensor, Tensor]] = []
        self.topk: tuple[Tensor, Tensor] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.matmul, torch.Tensor.matmul):
            self.operands.append((args[0], args[1]))
        elif func is torch.einsum:
            self.operands.append((args[1], args[2]))
        elif func in (torch.topk, torch.Tensor.topk):
            self.topk = (args[0], result.indices)
        return result
