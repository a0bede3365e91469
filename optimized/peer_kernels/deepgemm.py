"""Lightning-indexer scores by DeepGEMM's fp8 MQA logits."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from ..implementation import Run
from . import locate


@cache
def module() -> ModuleType:
    """The package ``deep_gemm``, wherever it is; a copy inside vLLM is loaded under its own name, without vLLM."""
    if "deep_gemm" in sys.modules:
        return sys.modules["deep_gemm"]
    found = locate.DEEPGEMM.find()
    if found is None:
        raise ImportError(locate.DEEPGEMM.missing())
    spec = importlib.util.spec_from_file_location(
        "deep_gemm", found.path / "__init__.py", submodule_search_locations=[str(found.path)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["deep_gemm"] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules["deep_gemm"]
        raise
    return package


def indexer_scores(
    q: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    ks: Tensor,
    ke: Tensor,
    *,
    q_scale: Tensor | None = None,
    max_seqlen_k: int | None = None,
) -> tuple[Tensor]:
    """q e4m3 [s,i,e], k e4m3 [t,e], k_scale fp32 [t], weights fp32 [s,i], ks, ke int32 [s] -> scores fp32 [s,t].

    -inf is written outside the windows (``clean_logits``). Raises ValueError for compressed rows: they are not cleaned.
    """
    if max_seqlen_k is not None:
        raise ValueError(f"max_seqlen_k: compressed rows are not cleaned, expected None, got {max_seqlen_k}")
    return (module().fp8_mqa_logits(q, (k, k_scale), _folded(weights, q_scale), ks, ke, clean_logits=True),)


def unclean_scores(
    q: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    ks: Tensor,
    ke: Tensor,
    *,
    q_scale: Tensor | None = None,
    max_seqlen_k: int | None = None,
) -> tuple[Tensor]:
    """The same without cleaning, as engines call it: nothing is written outside the windows. Rows may be compressed."""
    width = max_seqlen_k or 0
    folded = _folded(weights, q_scale)
    return (module().fp8_mqa_logits(q, (k, k_scale), folded, ks, ke, clean_logits=False, max_seqlen_k=width),)


def plan_paged(
    q: Tensor,
    k_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    *,
    max_model_len: int,
    q_scale: Tensor | None = None,
) -> Run:
    """``paged_indexer_scores``, with the schedule made: every query has its own end, one key after the one before."""
    package = module()
    m, e = q.shape[1], q.shape[3]
    ends = (context_lens[:, None] - m + 1 + torch.arange(m, dtype=torch.int32, device=q.device)).clamp_min(0).int()
    pages = k_cache.view(k_cache.shape[0], -1, 1, e + 4)
    schedule = package.get_paged_mqa_logits_metadata(ends, pages.shape[1], package.get_num_sms())
    folded = _folded(weights, q_scale)
    return lambda: (
        package.fp8_paged_mqa_logits(q, pages, folded, ends, block_table, schedule, max_model_len, clean_logits=False),
    )


def paged_indexer_scores(
    q: Tensor,
    k_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    *,
    max_model_len: int,
    q_scale: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """q e4m3 [b,m,i,e], k_cache uint8 [p, 64*(e+4)], weights fp32 [b*m,i] -> scores fp32 [b*m, max_model_len].

    Nothing is written outside the windows.
    """
    return plan_paged(q, k_cache, weights, context_lens, block_table, max_model_len=max_model_len, q_scale=q_scale)()


def _folded(weights: Tensor, q_scale: Tensor | None) -> Tensor:
    """Head weights with the queries' scales in them, as engines fold them."""
    return weights if q_scale is None else weights * q_scale
