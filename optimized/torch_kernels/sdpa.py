"""Dense and masked attention by torch's scaled_dot_product_attention, each backend by name and never another.

torch's ``is_causal`` anchors the diagonal at the top left (seen on CPU: 3 queries over 5 keys, the first query sees key
0 alone), so it serves requests with as many keys as queries; the others get a mask, bottom-right aligned.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .precision import exact_fp32
from .requests import Request, causal_mask, requests, unpack_mask

#: Attention of one request: q [1,h,S,d], k [1,h,T,d], v [1,h,T,v], what may be seen (bool [S,T], True: a causal square,
#: None: all), scale -> out [1,h,S,v], lse fp32 [1,h,S] or None.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor | bool | None, float], tuple[Tensor, Tensor | None]]


def _forced(backend: SDPBackend) -> Attend:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, seen: Tensor | bool | None, scale: float
    ) -> tuple[Tensor, Tensor | None]:
        mask = seen if isinstance(seen, Tensor) else None
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, mask, is_causal=seen is True, scale=scale), None

    return attend


def _flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | bool | None, scale: float
) -> tuple[Tensor, Tensor | None]:
    mask = None
    if isinstance(seen, Tensor):  # this kernel takes an additive mask in the dtype of the queries
        mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~seen, float("-inf"))[None, None]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, seen is True, attn_mask=mask, scale=scale
    )
    return out, lse


def _flash_cuda(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | bool | None, scale: float
) -> tuple[Tensor, Tensor | None]:
    if isinstance(seen, Tensor):
        raise ValueError("the CUDA flash kernel takes no mask; expected a causal square or no causality")
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, seen is True, False, scale=scale)
    return out, lse


_MATH = _forced(SDPBackend.MATH)
_EFFICIENT = _forced(SDPBackend.EFFICIENT_ATTENTION)
_CUDNN = _forced(SDPBackend.CUDNN_ATTENTION)


def _over_requests(
    attend: Attend, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, scale: float,
    seen: Callable[[Request], Tensor | bool | None],
) -> tuple[Tensor, ...]:  # fmt: skip
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    returned = attend in (_flash_cpu, _flash_cuda)
    for request in requests(cu_q, cu_k):
        queries, keys, values = (
            x.transpose(0, 1).unsqueeze(0) for x in (q[request.queries], k[request.keys], v[request.keys])
        )
        part, part_lse = attend(queries, keys, values, seen(request), scale)
        out[request.queries] = part[0].transpose(0, 1)
        if part_lse is not None:
            lse[request.queries] = part_lse[0].transpose(0, 1)
    return (out, lse) if returned else (out,)


def _dense(
    attend: Attend, q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, scale: float, causal: bool
) -> tuple[Tensor, ...]:
    def seen(request: Request) -> Tensor | bool | None:
        if not causal:
            return None
        if request.query_count == request.key_count:
            return True
        return causal_mask(request.query_count, request.key_count, q.device)

    return _over_requests(attend, q, k, v, cu_q, cu_k, scale, seen)


@exact_fp32
def math(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """``dense_mha`` by the math backend: bf16 and fp16 are widened to fp32 first (pytorch#128922); no LSE."""
    return _dense(_MATH, q, k, v, cu_q, cu_k, scale, causal)


@exact_fp32
def masked_math(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """``masked_mha`` by the math backend, on the unpacked mask; no LSE."""
    return _over_requests(_MATH, q, k, v, cu_q, cu_k, scale, lambda request: unpack_mask(mask, request, causal))


@exact_fp32
def flash(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """``dense_mha`` by torch's CPU flash kernel; LSE natural, 0 for a query without keys."""
    return _dense(_flash_cpu, q, k, v, cu_q, cu_k, scale, causal)


def flash_cuda(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """``dense_mha`` by torch's CUDA flash kernel; LSE natural."""
    return _dense(_flash_cuda, q, k, v, cu_q, cu_k, scale, causal)


def efficient(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """``dense_mha`` by the memory-efficient backend (CUDA); no LSE through the public interface."""
    return _dense(_EFFICIENT, q, k, v, cu_q, cu_k, scale, causal)


def cudnn(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """``dense_mha`` by the cuDNN backend (CUDA); no LSE through the public interface."""
    return _dense(_CUDNN, q, k, v, cu_q, cu_k, scale, causal)
