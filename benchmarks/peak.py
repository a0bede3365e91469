"""How much tensor memory a call holds at most, on a GPU by the allocator's own count, on a CPU by watching storages."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..optimized import triton_runtime


def peak_of(run: Callable[[], Any], device: str) -> tuple[Any, int]:
    """What ``run`` returns, and the most bytes of tensors that were alive in it beyond those from before.

    On a CPU memory of numpy and of operations' own workspaces is not seen.
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = run()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before
    triton_runtime.prepare_if_available()  # torch's dispatch modes would import Triton
    with Storages() as seen:
        result = run()
    return result, seen.peak


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of every storage that an operation returns, until nobody holds it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf, given)
        return result

    def _count(self, tensor: Tensor, given: set[int]) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in given or key in self._known:
            return
        self._known[key] = size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.live -= self._known.pop(key, 0)
