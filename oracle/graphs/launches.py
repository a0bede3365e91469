"""Seeing Triton launches, interpreted and compiled alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: (the original method, kernel, positional arguments, grid, keyword arguments) -> what the launch returns
Handler = Callable[[Callable[..., Any], Any, Any, Any, Any], Any]
_CLASSES = (("triton.runtime.interpreter", "InterpretedFunction"), ("triton.runtime.jit", "JITFunction"))


@contextmanager
def intercepted(handler: Handler) -> Iterator[None]:
    """Send every launch of this process through ``handler``; nothing to do where Triton was never imported."""
    replaced: list[tuple[Any, Any]] = []
    for module, name in _CLASSES:
        owner = getattr(sys.modules.get(module), name, None)
        if owner is not None:
            replaced.append((owner, owner.run))
            owner.run = _through(handler, owner.run)
    try:
        yield
    finally:
        for owner, run in replaced:
            owner.run = run


def _through(handler: Handler, original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        return handler(original, self, args, grid, kwargs)

    return run
