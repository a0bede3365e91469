"""Quantised caches as an implementation finds them in memory: views without copies, and what is refused beforehand.

Values are looked at on the CPU alone, where that costs no wait; on a GPU each kernel declares what it does with a page
that does not exist.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .triton_kernels.checks import check_at_least, check_tensor

#: Bytes of a scale.
SCALE = 4


def page_size(k_cache: Tensor, dim: int) -> int:
    """Keys a page of a planar indexer cache uint8 [p, page*(e+4)]. Raises ValueError for pages of another size."""
    check_tensor("k_cache", k_cache, "[p, page*(e+4)]", (None, None), (torch.uint8,), k_cache.device)
    page, left = divmod(k_cache.size(1), dim + SCALE)
    if left or not page:
        raise ValueError(f"k_cache: expected pages of a multiple of {dim + SCALE} bytes, got {k_cache.size(1)}")
    return page


def planar(k_cache: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """e4m3 codes [p, page, e] and fp32 scales [p, page] of a planar indexer cache uint8 [p, page*(e+4)].

    Raises ValueError for pages of another size and for scales that are not aligned.
    """
    page = page_size(k_cache, dim)
    apart = k_cache.stride(0) if k_cache.size(0) > 1 else 0
    if k_cache.data_ptr() % SCALE or apart % SCALE or page * dim % SCALE:
        raise ValueError(
            f"k_cache: expected scales aligned to {SCALE} bytes, got pages {apart} bytes apart that begin at "
            f"{k_cache.data_ptr() % SCALE} mod {SCALE} and hold {page} x {dim} bytes of codes"
        )
    codes = k_cache[:, : page * dim].view(torch.float8_e4m3fn)
    codes = codes.as_strided((k_cache.size(0), page, dim), (k_cache.stride(0), dim, 1))
    return codes, k_cache[:, page * dim :].view(torch.float32)


def check_paged(
    q: Tensor,
    k_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    max_model_len: int,
    q_scale: Tensor | None,
) -> None:
    """Raises ValueError unless the arguments of ``paged_indexer_scores`` fit; on the CPU their values too."""
    check_tensor("q", q, "[b, m, i, e]", (None,) * 4, (torch.float8_e4m3fn,), q.device)
    b, m, i, e = q.shape
    check_tensor("k_cache", k_cache, "[p, page*(e+4)]", (None, None), (torch.uint8,), q.device)
    check_tensor("weights", weights, "[b*m, i]", (b * m, i), (torch.float32,), q.device)
    check_tensor("context_lens", context_lens, "[b]", (b,), (torch.int32,), q.device)
    check_tensor("block_table", block_table, "[b, w]", (b, None), (torch.int32,), q.device)
    for name, value in (("queries of a request", m), ("indexer heads", i), ("indexer head dim", e)):
        check_at_least(name, value, 1)
    page_size(k_cache, e)
    check_at_least("max_model_len", max_model_len, 0)
    if q_scale is not None:
        check_tensor("q_scale", q_scale, "[b*m, i]", (b * m, i), (torch.float32,), q.device)
        check_scales("q_scale", q_scale)
    if q.device.type == "cpu":
        _check_table(k_cache, e, context_lens, block_table, max_model_len)


def _check_table(k_cache: Tensor, dim: int, context_lens: Tensor, block_table: Tensor, max_model_len: int) -> None:
    pages, page = len(k_cache), page_size(k_cache, dim)
    most = min(block_table.shape[1] * page, max_model_len)
    wrong = (context_lens < 0) | (context_lens > most)
    if bool(wrong.any()):
        raise ValueError(f"context_lens: expected 0 to {most}, got {int(context_lens[wrong][0])}")
    used = torch.arange(block_table.shape[1]) * page < context_lens[:, None]
    outside = used & ((block_table < 0) | (block_table >= pages))
    if bool(outside.any()):
        raise ValueError(
            f"block_table: expected pages 0 to {pages - 1} where a context has keys, got "
            f"{int(block_table[outside][0])} at {outside.nonzero()[0].tolist()}"
        )
    _, scales = planar(k_cache, dim)
    slots = (torch.arange(block_table.shape[1])[:, None] * page + torch.arange(page))[None]  # [1, w, page]
    check_scales("k_cache scales", scales[block_table[used].long()][(slots < context_lens[:, None, None])[used]])


def check_scales(name: str, scales: Tensor) -> None:
    """Raises ValueError for a scale that is zero, negative or not finite, where looking costs no wait."""
    if scales.device.type == "cpu" and not bool(((scales > 0) & scales.isfinite()).all()):
        wrong = scales[~((scales > 0) & scales.isfinite())]
        raise ValueError(f"{name}: expected finite scales above 0, got {wrong.flatten()[0].item()}")


def check_windows(ks: Tensor, ke: Tensor, keys: int, max_seqlen_k: int) -> None:
    """Raises ValueError, where looking costs no wait, for a window that has no room in compressed scores."""
    check_at_least("max_seqlen_k", max_seqlen_k, 0)
    if ks.device.type == "cpu" and ks.numel():
        longest = int((ke.clamp(max=keys) - ks.clamp(min=0)).max())
        if longest > max_seqlen_k:
            raise ValueError(f"max_seqlen_k: expected at least {longest}, the longest window, got {max_seqlen_k}")
