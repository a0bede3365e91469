"""fp32 matmuls that are fp32: TF32 on a GPU and bf16 in oneDNN are switched off around them, whatever the user set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def _exact(settings: Any) -> Iterator[None]:
    before = settings.fp32_precision
    settings.fp32_precision = "ieee"
    try:
        yield
    finally:
        settings.fp32_precision = before


def exact_fp32(function: Function) -> Function:
    """``function``, with fp32 matrix products in IEEE fp32."""

    @wraps(function)
    def pinned(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for backend in (torch.backends.cuda, torch.backends.mkldnn):
                stack.enter_context(_exact(getattr(backend, "matmul")))  # noqa: B009  torch leaves one of them untyped
            return function(*args, **kwargs)

    return pinned  # type: ignore[return-value]
