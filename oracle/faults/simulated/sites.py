"""The error sites of the simulated attention kernels: every place where a real kernel has been seen to go wrong.

A site is a field whose default is right. A fault replaces one field (rarely two) and nothing else, so that what it
does is exactly what its description says. Shapes in the softmax sites: ``B`` is what runs side by side (heads of
dense attention, queries of sparse attention), ``R`` the rows that share a key tile, ``n`` the keys of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .latent import LATENT_SITES, LatentSites

INF = float("inf")


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` rounded to nearest in ``dtype`` and read back in its own dtype."""
    return x.to(dtype).to(x.dtype)


#: Format of the probabilities of the kernel that is being explained; None: that of what it reads.
_DECLARED: ContextVar[torch.dtype | None] = ContextVar("declared", default=None)
_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@contextmanager
def probabilities_in(declared: str | None) -> Iterator[None]:
    """Simulated kernels round their probabilities to the declared format meanwhile, as far as it is one of torch's
    that needs no scale."""
    token = _DECLARED.set(_FORMATS.get(declared or ""))
    try:
        yield
    finally:
        _DECLARED.reset(token)


def narrow(dtype: torch.dtype) -> torch.dtype:
    """Format of the unnormalised probabilities of a kernel that reads ``dtype``: the one declared (see
    ``probabilities_in``) or its own, bf16 for one-byte inputs."""
    return _DECLARED.get() or (torch.bfloat16 if dtype.itemsize == 1 else dtype)


def mask_bits(mask: Tensor, request: int, rows: Tensor, cols: Tensor) -> Tensor:
    """Bits of the packed mask [b, s_padded, words] as bool [rows, cols]; columns past the last word read as unset."""
    words = mask.shape[2]
    word = (cols >> 5).clamp(max=max(words - 1, 0))
    picked = mask[request][rows][:, word].to(torch.int64)
    return ((picked >> (cols & 31)) & 1).bool() & (cols < words * 32)


def split_evenly(tiles: Sequence[int], splits: int) -> list[Sequence[int]]:
    """Consecutive runs of tiles, one for each split; the last may be short or empty."""
    size = max(1, -(-len(tiles) // splits))
    return [tiles[i * size : (i + 1) * size] for i in range(splits)]


def divide(acc: Tensor, total: Tensor) -> Tensor:
    """acc / total, and 0 where nothing was summed."""
    return torch.where(total == 0, torch.zeros_like(acc), acc / total)


def sink_factor(lse: Tensor, sink: Tensor) -> Tensor:
    """exp(lse) / (exp(lse) + exp(sink)), 0 for a query with no key."""
    return torch.where(lse == -INF, torch.zeros_like(lse), torch.sigmoid(lse - sink.float()))


@dataclass(frozen=True, slots=True)
class Sites:
    """Every field is right by default; see the module. Sites are called with positional arguments."""

    # Shape of the launch.
    block_q: int = 32
    block_k: int = 64
    splits: int = 1

    # What is read, and from where.
    inputs: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = lambda q, k, v: (q, k, v)
    """q, k, v as read from memory."""
    query_range: Callable[[list[int], int], tuple[int, int]] = lambda cu, b: (cu[b], cu[b + 1])
    key_range: Callable[[list[int], int], tuple[int, int]] = lambda cu, b: (cu[b], cu[b + 1])
    scale: Callable[[float, int], float] = lambda scale, q_len: scale
    """Softmax scale, and how many queries the request has."""
    prescale: Callable[[Tensor, float], tuple[Tensor, float]] = lambda q, scale: (q, scale)
    keep: Callable[[Tensor], Tensor] = lambda seen: seen
    """Which rows of K and V are loaded, [n] or [s, n]; the others are zeros, so that their bits cannot matter."""

    # Who sees whom in dense and masked attention.
    causal: Callable[[bool, int, int], bool] = lambda causal, q_len, k_len: causal
    last_key: Callable[[Tensor, int, int], Tensor] = lambda rows, q_len, k_len: rows + (k_len - q_len)
    """Last key that each query of the request sees under a causal mask."""
    stop: Callable[[Tensor, int], int] = lambda last, k_len: min(k_len, max(0, int(last.max()) + 1))
    """Keys to visit for a tile of queries: the rest lies beyond the diagonal of all of them."""
    tiles: Callable[[int, int], Sequence[int]] = lambda stop, block: range(0, stop, block)
    """First key of each tile that is visited."""
    inside: Callable[[Tensor, int], Tensor] = lambda cols, k_len: cols < k_len
    diagonal: Callable[[Tensor, Tensor], Tensor] = lambda cols, last: cols <= last[:, None]
    bits: Callable[[Tensor, int, Tensor, Tensor], Tensor] = mask_bits
    """Mask, request, rows and columns of the request -> bool [rows, cols]."""
    combine_masks: Callable[[Tensor, Tensor], Tensor] = lambda bits, diagonal: bits & diagonal
    skip: Callable[[Tensor], bool] = lambda seen: not bool(seen.any())
    """Whether a tile [rows, n] is left out because nobody sees it."""
    seen: Callable[[Tensor, Tensor], Tensor] = lambda seen, cols: seen
    """Last word on visibility, bool [rows, n] and the columns of the tile."""

    # Which cache rows a query of sparse attention reads.
    indices: Callable[[Tensor, int], Tensor] = lambda indices, n: indices
    """The index rows as the kernel understands them, and the cache size."""
    counted: Callable[[Tensor | None, Tensor], Tensor | None] = lambda lengths, indices: lengths
    valid: Callable[[Tensor, int], Tensor] = lambda entry, n: (entry >= 0) & (entry < n)
    address: Callable[[Tensor, int], Tensor] = lambda entry, n: entry
    """Cache row of a valid entry."""
    gather: Callable[[Tensor, Tensor], Tensor] = lambda kv, rows: kv[rows]
    latent: LatentSites = LATENT_SITES
    """How rows of a quantised cache are decoded."""
    values: Callable[[Tensor, int], Tensor] = lambda rows, c: rows[..., :c]
    entries: Callable[[Tensor, Tensor], Tensor] = lambda indices, slots: indices[:, slots]
    """Entries of a tile of slots; the slots are clamped to the row."""
    slots: Callable[[int, int], Sequence[int]] = lambda k, block: range(0, k, block)
    sink: Callable[[Tensor, Tensor], Tensor] = sink_factor

    # Online softmax.
    dot: Callable[[Tensor, Tensor], Tensor] = lambda q, k: q @ k.transpose(-1, -2)
    score: Callable[[Tensor, float], Tensor] = lambda qk, scale: qk * scale
    masked: Callable[[Tensor, Tensor], Tensor] = lambda s, seen: s.masked_fill(~seen, -INF)
    start: float = -INF
    """Running maximum before the first tile."""
    peak: Callable[[Tensor], Tensor] = lambda s: s.amax(-1)
    base: Callable[[Tensor], Tensor] = lambda peak: torch.where(peak == -INF, torch.zeros_like(peak), peak)
    """What is subtracted in exponents: finite even before any key was seen."""
    exp: Callable[[Tensor], Tensor] = torch.exp
    decay_sum: Callable[[Tensor], Tensor] = lambda decay: decay
    decay_acc: Callable[[Tensor], Tensor] = lambda decay: decay
    probabilities: Callable[[Tensor, torch.dtype], Tensor] = lambda p, dtype: rounded(p, narrow(dtype))
    summand: Callable[[Tensor, Tensor], Tensor] = lambda p, p_rounded: p
    """What the denominator sums: the probabilities before rounding."""
    total: Callable[[Tensor], Tensor] = lambda total: total
    product: Callable[[Tensor, Tensor], Tensor] = lambda p, v: p @ v
    acc: Callable[[Tensor], Tensor] = lambda acc: acc

    # Epilogue and merge of splits.
    normalise: Callable[[Tensor, Tensor], Tensor] = divide
    log: Callable[[Tensor, Tensor], Tensor] = lambda peak, total: peak + torch.log(total)
    partial: Callable[[Tensor], Tensor] = lambda out: out
    scratch: Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor]] = lambda out, lse, ran: (out, lse)
    """Partial result of a split as read back from the workspace, and whether that split had any tile."""
    merge: Callable[[Any, Any], tuple[Tensor, Tensor]] | None = None
    """Merge of two partial results (out, lse); None: the simulated ``merge_lse``."""
    output: Callable[[Tensor, torch.dtype], Tensor] = lambda out, dtype: out.to(dtype)
    lse: Callable[[Tensor, Tensor], Tensor] = lambda lse, out: lse
    allocate: Callable[[Tensor], Tensor] = torch.zeros_like
    """Output buffer like the given one; every element is written afterwards."""
    rows_written: Callable[[Tensor, int], Tensor] = lambda rows, q_len: rows
    target: Callable[[int, int], int] = lambda start, request: start
    """First output row of a request."""


SITES = Sites()
