"""From request-local key positions to rows of a paged cache.

    physical = block_table[request, p // block_size] * page_rows + p % block_size

for a position p of at least 0 that the block table reaches with a page inside the cache; every other entry becomes -1.
``page_rows`` is the distance of two pages in rows, more than ``block_size`` where pages are padded. With ``compact``
the valid entries of a row come first, in their order, and -1 after them.

Source: vLLM 0.33.0 ``vllm/v1/attention/backends/mla/sparse_utils.py``.

Shapes:
    indices: int32 [s, k]    requests: int32 [s]    block_table: int32 [b, most pages]
    physical: int32 [s, k]    counts: int32 [s]
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import bind_sizes, require_integers
from .paging import place_of


def convert_indices(
    indices: Tensor,
    requests: Tensor,
    block_table: Tensor,
    *,
    block_size: int,
    blocks: int,
    page_rows: int,
    compact: bool = False,
) -> tuple[Tensor, Tensor]:
    """Physical rows, and how many of each row of indices are valid.

    ``requests`` names the row of the block table of each query; one outside the table makes its entries -1. Raises
    ValueError for shapes that do not fit, sizes that cannot be, and a cache whose rows int32 cannot count.
    """
    bind_sizes(("indices", indices, "s k"), ("requests", requests, "s"))
    require_integers(indices=indices, requests=requests, block_table=block_table)
    require_rows(block_size, blocks, page_rows)
    known = (requests >= 0) & (requests < len(block_table))
    positions = torch.where(known[:, None], indices.long(), -1)
    request = torch.where(known, requests.long(), 0)[:, None]
    page, place = place_of(block_table, request, positions, block_size, blocks)
    valid = page >= 0
    physical = torch.where(valid, page * page_rows + place, -1)
    if compact:
        order = torch.argsort(valid.logical_not().to(torch.uint8), dim=1, stable=True)
        physical = physical.gather(1, order)
    return physical.to(torch.int32), valid.sum(1, dtype=torch.int32)


def require_rows(block_size: int, blocks: int, page_rows: int) -> None:
    """Raises ValueError unless int32 counts the rows of such a cache."""
    if block_size < 1 or blocks < 0 or page_rows < block_size:
        raise ValueError(
            f"block_size, blocks, page_rows: expected pages of at least one row, as far apart as they are long, "
            f"got {block_size}, {blocks}, {page_rows}"
        )
    if blocks * page_rows > 2**31:
        raise ValueError(
            f"blocks: expected a cache whose rows int32 can count, got {blocks} pages of {page_rows} rows; "
            f"at most {2**31 // page_rows}"
        )
