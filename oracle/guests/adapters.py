"""From other signatures to the operators': each adapter is a few lines around the user's kernel.

An adapter takes the kernel and returns a function with the reference's keywords. One of your own works the same:
``--adapter my_pkg.adapters:to_mine``. Adapters only rearrange: conventions such as the base of the LSE stay as the
kernel has them and belong to its contract.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Kernel = Callable[..., Any]
#: Names of a kernel's parameters; None: any.
Takes = frozenset[str] | None

#: Tokens of a page of the paged adapters: FlashMLA's; vLLM's default divides it.
PAGE = 64


@dataclass(frozen=True, slots=True)
class Adapter:
    """One other signature."""

    name: str
    operator: str
    signature: str
    """What the kernel is called with, and what it returns."""
    required: tuple[str, ...]
    """Parameters that a kernel of this signature has; by these it is recognised."""
    wrap: Callable[[Kernel, Takes], Kernel]
    """The kernel and its parameter names to a function with the reference's keywords."""
    optional: Mapping[str, str] = field(default_factory=dict)
    """Option of a case -> parameter without which the kernel cannot run it."""


def _given(takes: Takes, **values: Any) -> dict[str, Any]:
    """The values that are there and that the kernel has a parameter for."""
    return {name: value for name, value in values.items() if value is not None and (takes is None or name in takes)}


def _pages(rows: Tensor, page: int = PAGE) -> Tensor:
    """[n, ...] as pages [blocks, page, ...]; the last one is filled up with NaN, which no index names."""
    blocks = max(1, -(-rows.shape[0] // page))
    paged = rows.new_full((blocks * page, *rows.shape[1:]), torch.nan)
    paged[: rows.shape[0]] = rows
    return paged.view(blocks, page, *rows.shape[1:])


@dataclass(frozen=True, slots=True)
class SparseArguments:
    """Of ``sparse_mqa``."""

    q: Tensor
    kv: Tensor
    indices: Tensor
    scale: float
    value_dim: int
    lengths: Tensor | None = None
    sink: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DenseArguments:
    """Of ``dense_mha``."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_q: Tensor
    cu_k: Tensor
    scale: float
    causal: bool = True


def _adapting(arguments: type[Any], call: Callable[[Kernel, Takes, Any], Any]) -> Callable[[Kernel, Takes], Kernel]:
    """``Adapter.wrap`` by a function from the kernel and the operator's arguments to its outputs."""
    return lambda kernel, takes: lambda **given: call(kernel, takes, arguments(**given))


def flash_mla(kernel: Kernel, takes: Takes, a: SparseArguments) -> tuple[Tensor, Tensor]:
    extra = _given(takes, attn_sink=a.sink, topk_length=a.lengths, d_v=a.value_dim)
    out, *_, lse = kernel(q=a.q, kv=a.kv[:, None], indices=a.indices[:, None], sm_scale=a.scale, **extra)
    return out, lse


def flash_mla_paged(kernel: Kernel, takes: Takes, a: SparseArguments) -> tuple[Tensor, Tensor]:
    out, lse = kernel(
        q=a.q[:, None],
        k_cache=_pages(a.kv)[:, :, None],
        block_table=None,
        cache_seqlens=None,
        head_dim_v=a.value_dim,
        softmax_scale=a.scale,
        indices=a.indices[:, None],
        **_given(takes, attn_sink=a.sink, topk_length=a.lengths),
    )
    return out[:, 0], lse[..., 0]


def absorbed(kernel: Kernel, takes: Takes, a: SparseArguments) -> Any:
    extra = _given(takes, lengths=a.lengths, sink=a.sink)
    (q_nope, q_pe), (ckv, kpe) = (x.tensor_split([a.value_dim], -1) for x in (a.q, a.kv))
    return kernel(q_nope=q_nope, q_pe=q_pe, ckv=ckv, kpe=kpe, indices=a.indices, sm_scale=a.scale, **extra)


def unabsorbed(kernel: Kernel, takes: Takes, a: SparseArguments) -> tuple[Any, ...]:
    (latent, q_pe), (ckv, kpe) = (x.tensor_split([a.value_dim], -1) for x in (a.q, a.kv))
    # Projections that are exact in every format, and other ones for every head: permutations with signs.
    order, sign = _permutations(a.q.shape[1], a.value_dim, a.q.device)
    w_uk = torch.zeros(a.q.shape[1], a.value_dim, a.value_dim, dtype=a.q.dtype, device=a.q.device)
    w_uk.scatter_(2, order[..., None], sign[..., None].to(a.q.dtype))
    q_nope = latent.gather(2, order.expand(a.q.shape[0], -1, -1)) * sign.to(a.q.dtype)
    returned = kernel(
        q_nope=q_nope,
        q_pe=q_pe,
        ckv=ckv,
        kpe=kpe,
        w_uk=w_uk,
        w_uv=w_uk.transpose(1, 2).contiguous(),
        indices=a.indices,
        sm_scale=a.scale,
        **_given(takes, lengths=a.lengths, sink=a.sink),
    )
    out, *rest = _several(returned)
    back = torch.zeros_like(out).scatter_(2, order.expand(a.q.shape[0], -1, -1), out * sign.to(out.dtype))
    return back, *rest


def _permutations(heads: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """An order and signs of the columns for each head, int64 and fp32 [h, size]: a rotation by 1 + 5 h, and a comb."""
    column, head = torch.arange(size, device=device), torch.arange(heads, device=device)[:, None]
    return (column + 1 + 5 * head) % size, torch.where((column + head) % 3 == 0, -1.0, 1.0)


def _several(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def flash_attn_varlen(kernel: Kernel, takes: Takes, a: DenseArguments) -> tuple[Tensor, ...]:
    returned = kernel(
        q=a.q,
        k=a.k,
        v=a.v,
        cu_seqlens_q=a.cu_q,
        cu_seqlens_k=a.cu_k,
        max_seqlen_q=_longest(a.cu_q),
        max_seqlen_k=_longest(a.cu_k),
        softmax_scale=a.scale,
        causal=a.causal,
        **_lse_wanted(takes),
    )
    return _heads_last(returned)


def vllm_paged(kernel: Kernel, takes: Takes, a: DenseArguments) -> tuple[Tensor, ...]:
    table, place, rows = _block_table(a.cu_k)
    caches = []
    for side in (a.k, a.v):
        cache = side.new_full((rows, *side.shape[1:]), torch.nan)
        cache[place] = side
        caches.append(cache.view(-1, PAGE, *side.shape[1:]))
    returned = kernel(
        q=a.q,
        k=caches[0],
        v=caches[1],
        cu_seqlens_q=a.cu_q,
        seqused_k=a.cu_k.diff(),
        max_seqlen_q=_longest(a.cu_q),
        max_seqlen_k=_longest(a.cu_k),
        softmax_scale=a.scale,
        causal=a.causal,
        block_table=table,
        **_lse_wanted(takes),
    )
    return _heads_last(returned)


def _longest(cu: Tensor) -> int:
    return int(cu.diff().max()) if cu.numel() > 1 else 0


def _lse_wanted(takes: Takes) -> dict[str, bool]:
    for name in ("return_softmax_lse", "return_attn_probs", "return_lse"):
        if takes is not None and name in takes:
            return {name: True}
    return {}


def _heads_last(returned: Any) -> tuple[Tensor, ...]:
    """(out [s,h,v], lse [h,s], …) or out alone, to the operator's outputs."""
    out, *rest = _several(returned)
    return (out, rest[0].transpose(0, 1)) if rest else (out,)


def _block_table(cu_k: Tensor) -> tuple[Tensor, Tensor, int]:
    """A page table [b, most], the row of every token [t], and the rows in all: pages in an order of their own."""
    lengths = cu_k.diff().tolist()
    pages = [-(-length // PAGE) for length in lengths]
    total = max(1, sum(pages))
    # Neighbouring pages of a request lie apart: 3 or 5 is no factor of the count.
    step = next(step for step in (7, 5, 3, 2, 1) if total % step or step == 1)
    order = [(1 + i * step) % total for i in range(total)]
    table = torch.zeros(len(lengths), max(1, *pages), dtype=torch.int32, device=cu_k.device)
    place: list[Tensor] = []
    taken = 0
    for request, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        mine = torch.tensor(order[taken : taken + count], dtype=torch.int32, device=cu_k.device)
        table[request, :count] = mine
        token = torch.arange(length, device=cu_k.device)
        place.append(mine.long()[token // PAGE] * PAGE + token % PAGE)
        taken += count
    return table, torch.cat(place), total * PAGE


_SPARSE_OPTIONS = {"sink": "sink", "lengths": "lengths"}
_FLASH_MLA_OPTIONS = {"sink": "attn_sink", "lengths": "topk_length"}

ADAPTERS: tuple[Adapter, ...] = (
    Adapter(
        "flash-mla",
        "sparse_mqa",
        "kernel(q [s,h,c+r], kv [n,1,c+r], indices [s,1,k], sm_scale, d_v, attn_sink, topk_length)"
        " -> out [s,h,c], …, lse [s,h]",
        ("q", "kv", "indices", "sm_scale"),
        _adapting(SparseArguments, flash_mla),
        _FLASH_MLA_OPTIONS,
    ),
    Adapter(
        "flash-mla-paged",
        "sparse_mqa",
        "kernel(q [s,1,h,c+r], k_cache [blocks,64,1,c+r], block_table, cache_seqlens, head_dim_v, softmax_scale,"
        " indices [s,1,k]) -> out [s,1,h,c], lse [s,h,1]",
        ("q", "k_cache", "block_table", "cache_seqlens", "head_dim_v", "softmax_scale", "indices"),
        _adapting(SparseArguments, flash_mla_paged),
        _FLASH_MLA_OPTIONS,
    ),
    Adapter(
        "unabsorbed",
        "sparse_mqa",
        "kernel(q_nope [s,h,p], q_pe [s,h,r], ckv [n,c], kpe [n,r], w_uk [h,p,c], w_uv [h,c,v], indices [s,k],"
        " sm_scale) -> out [s,h,v], lse [s,h]",
        ("q_nope", "q_pe", "ckv", "kpe", "w_uk", "w_uv", "indices", "sm_scale"),
        _adapting(SparseArguments, unabsorbed),
        _SPARSE_OPTIONS,
    ),
    Adapter(
        "absorbed",
        "sparse_mqa",
        "kernel(q_nope [s,h,c], q_pe [s,h,r], ckv [n,c], kpe [n,r], indices [s,k], sm_scale) -> out [s,h,c], lse [s,h]",
        ("q_nope", "q_pe", "ckv", "kpe", "indices", "sm_scale"),
        _adapting(SparseArguments, absorbed),
        _SPARSE_OPTIONS,
    ),
    Adapter(
        "vllm-paged",
        "dense_mha",
        "kernel(q [s,h,d], k [blocks,64,h,d], v [blocks,64,h,v], cu_seqlens_q, seqused_k, max_seqlen_q, max_seqlen_k,"
        " softmax_scale, causal, block_table) -> out [s,h,v], lse [h,s]",
        ("q", "k", "v", "cu_seqlens_q", "seqused_k", "max_seqlen_q", "softmax_scale", "block_table"),
        _adapting(DenseArguments, vllm_paged),
        {"noncausal": "causal"},
    ),
    Adapter(
        "flash-attn-varlen",
        "dense_mha",
        "kernel(q [s,h,d], k [t,h,d], v [t,h,v], cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,"
        " softmax_scale, causal) -> out [s,h,v], lse [h,s]",
        ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale"),
        _adapting(DenseArguments, flash_attn_varlen),
        {"noncausal": "causal"},
    ),
)
