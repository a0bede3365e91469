"""Bit-packed masks of selected keys.

Bit (j & 31) of word (j >> 5) of a row says that the query may see key j of its request. Duplicates collapse. Query
rows are padded to the longest request of the batch. Source: vLLM 0.33.0 ``sparse_mla_attention.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..build_mask import WORD_BITS, pack_bits


def build_mask(
    indices: Tensor, query_lens: Sequence[int], starts: Sequence[int], lengths: Sequence[int], *, word_multiple: int = 1
) -> Tensor:
    """int32 words [b, s_padded, words] from selections int [s, k] of packed requests.

    Key j of request b's mask is position ``starts[b] + j`` of its sequence, for j below ``lengths[b]``; selections
    outside that span, and negative ones, set no bit.
    """
    words = -(-max(lengths) // WORD_BITS)
    words = max(1, -(-words // word_multiple) * word_multiple)
    mask = torch.zeros(len(query_lens), max(query_lens), words, dtype=torch.int32, device=indices.device)
    row = 0
    for request, (queries, start, length) in enumerate(zip(query_lens, starts, lengths, strict=True)):
        local = indices[row : row + queries].long() - start
        inside = (indices[row : row + queries] >= 0) & (local >= 0) & (local < length)
        spare = words * WORD_BITS  # a column for what sets no bit
        bits = torch.zeros(queries, spare + 1, dtype=torch.bool, device=indices.device)
        bits.scatter_(1, torch.where(inside, local, spare), True)
        mask[request, :queries] = pack_bits(bits[:, :spare])
        row += queries
    return mask
