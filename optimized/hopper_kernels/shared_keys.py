"""One list of keys for several neighbouring queries, each key once, with a bit for every query that selected it.

Two kernels: the first sets a bit for every valid slot in a table of groups by keys, a bit a query in an entry, so that
the tables stay in the L2; the second writes the entries that are not zero, keys ascending. With few heads a tile of a
sparse MQA kernel has room for the heads of several queries, and a key that several of them selected is then gathered,
and multiplied, once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

#: Queries of a group at most.
MOST = 8
#: Slots that are marked, and entries that are listed, in one step.
_SLOTS, _ENTRIES = 1024, 4096


@triton.jit
def _mark_kernel(
    indices_ptr, lengths_ptr, table_ptr, k, n, words, indices_stride, HAS_LENGTHS: tl.constexpr, GROUP: tl.constexpr,
    BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    PER_WORD: tl.constexpr = 32 // BITS
    query = tl.program_id(0)
    length = k
    if HAS_LENGTHS:
        length = tl.minimum(k, tl.load(lengths_ptr + query))
    table_ptr += (query // GROUP).to(tl.int64) * words
    indices_ptr += query.to(tl.int64) * indices_stride
    bit = 1 << (query % GROUP)
    for start in range(0, length, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        key = tl.load(indices_ptr + slot, mask=slot < length, other=-1)
        valid = (key >= 0) & (key < n)
        tl.atomic_or(table_ptr + key // PER_WORD, bit << (key % PER_WORD * BITS), mask=valid, sem="relaxed")


@triton.jit
def _list_kernel(table_ptr, keys_ptr, bits_ptr, counts_ptr, words, slots, BITS: tl.constexpr, BLOCK: tl.constexpr):
    PER_WORD: tl.constexpr = 32 // BITS
    group = tl.program_id(0).to(tl.int64)
    table_ptr += group * words
    keys_ptr += group * slots
    bits_ptr += group * slots
    count = 0
    part = tl.arange(0, PER_WORD)
    for start in range(0, words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        packed = tl.load(table_ptr + word, mask=word < words, other=0)
        bits = (packed[:, None] >> (BITS * part)[None, :]) & ((1 << BITS) - 1)
        # A word's share first, then the places within it.
        here = (bits != 0).to(tl.int32)
        in_word = tl.sum(here, 1)
        before = count + tl.cumsum(in_word, 0) - in_word
        place = before[:, None] + tl.cumsum(here, 1) - here
        tl.store(keys_ptr + place, word[:, None] * PER_WORD + part[None, :], mask=bits != 0)
        tl.store(bits_ptr + place, bits, mask=bits != 0)
        count += tl.sum(in_word, 0)
    tl.store(counts_ptr + group, count)


class SharedKeys(NamedTuple):
    """For every group of neighbouring queries, the keys that any of them selected; unset beyond its count."""

    keys: torch.Tensor
    """[groups, slots] int32 rows of the cache, ascending."""
    bits: torch.Tensor
    """[groups, slots] int32: bit g says that query g of the group selected the key."""
    counts: torch.Tensor
    """[groups] int32"""


def shared_keys(indices: torch.Tensor, n: int, lengths: torch.Tensor | None, group: int) -> SharedKeys:
    """Merge the lists [s, k] of every ``group`` queries; entries outside 0..n-1 or beyond their length are left out."""
    if not 1 <= group <= MOST:
        raise ValueError(f"group: expected 1 to {MOST} queries, got {group}")
    s, k = indices.shape
    bits = 1 << (group - 1).bit_length()
    groups, words = -(-s // group), max(1, -(-n * bits // 32))
    slots = max(1, min(n, group * k))
    device = indices.device
    table = torch.zeros((groups, words), dtype=torch.int32, device=device)
    found = SharedKeys(
        torch.empty((groups, slots), dtype=torch.int32, device=device),
        torch.empty((groups, slots), dtype=torch.int32, device=device),
        torch.empty((groups,), dtype=torch.int32, device=device),
    )
    _mark_kernel[(s,)](
        indices, lengths, table, k, n, words, indices.stride(0),
        HAS_LENGTHS=lengths is not None, GROUP=group, BITS=bits, BLOCK=_SLOTS, num_warps=4,
    )  # fmt: skip
    _list_kernel[(groups,)](table, *found, words, slots, BITS=bits, BLOCK=_ENTRIES * bits // 32, num_warps=8)
    return found
