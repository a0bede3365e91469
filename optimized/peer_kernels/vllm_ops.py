"""vLLM's Triton helpers around partial attention results: their merge, and the mask that clears empty contexts."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .. import triton_runtime
from . import locate


@cache
def helpers() -> Any:
    """The module ``triton_merge_attn_states``. Raises ImportError if it is not there.

    An installed vLLM is imported. Where a variable points at a folder, the file is loaded by itself: of vLLM it imports
    a platform, for the ends of e4m3, and Triton, and is given both.
    """
    triton_runtime.prepare()
    found = locate.VLLM.find()
    if found is None:
        raise ImportError(locate.VLLM.missing())
    if found.origin != locate.VLLM_VARIABLE:
        return importlib.import_module("vllm." + locate.VLLM_HELPERS.removesuffix(".py").replace("/", "."))
    path = found.path / locate.VLLM_HELPERS
    spec = importlib.util.spec_from_file_location(f"{__name__}.{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _asked_for():
        spec.loader.exec_module(module)
    return module


@contextmanager
def _asked_for() -> Iterator[None]:
    """While active, ``vllm`` is what the helpers import of it, and nothing else."""
    import triton
    import triton.language as tl

    platforms, wrapped = ModuleType("vllm.platforms"), ModuleType("vllm.triton_utils")
    platforms.current_platform = SimpleNamespace(fp8_dtype=lambda: torch.float8_e4m3fn)  # type: ignore[attr-defined]
    wrapped.tl, wrapped.triton = tl, triton  # type: ignore[attr-defined]
    given = {"vllm": ModuleType("vllm"), platforms.__name__: platforms, wrapped.__name__: wrapped}
    before = {name: sys.modules.get(name) for name in given}
    sys.modules.update(given)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def merge_lse(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """out_a, out_b [s,h,v], lse_a, lse_b fp32 [s,h] -> out [s,h,v], lse fp32 [s,h]; its LSEs are stored [h,s]."""
    out = torch.empty_like(out_a)
    lse = torch.empty(lse_a.shape[::-1], dtype=torch.float32, device=lse_a.device)
    helpers().merge_attn_states(out, out_a, lse_a.T.contiguous(), out_b, lse_b.T.contiguous(), lse)
    return out, lse.T


def merge_masked(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The same behind ``mask_empty_context``, as engines call it where a chunk of the context may hold no key."""
    return merge_lse(*cleared(out_a, lse_a), *cleared(out_b, lse_b))


def cleared(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """One side, out [s,h,v] and lse [s,h], with zeros and -inf where it saw no key, by ``mask_empty_context``.

    That knows emptiness by request and from offsets alone, so each query and head is handed over as a request of one
    query, whose context is one key long, or none where the LSE is -inf.
    """
    s, h, v = out.shape
    rows, logs = out.reshape(s * h, 1, v).clone(), lse.reshape(1, s * h).clone()
    queries = torch.arange(s * h + 1, dtype=torch.int32, device=lse.device)
    contexts = torch.zeros_like(queries)
    contexts[1:] = (~logs[0].isneginf()).cumsum(0)
    helpers().mask_empty_context(logs, rows, queries, contexts)
    return rows.view(s, h, v), logs.view(s, h)
