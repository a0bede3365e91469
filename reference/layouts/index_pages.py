"""The indexer's cache: pages in which all codes come first and all scales after them.

    byte  p e + j                   code j of the token in place p of the page            p < block_size, j < e
    byte  block_size e + 4 p ...    its fp32 scale

So a page of 64 tokens and e = 128 has 8,192 bytes of codes and 256 of scales; the same 132 bytes a token read as a row
of 128 codes and a scale give plausible nonsense (vllm#50576).

Source: vLLM 0.33.0 ``indexer_k_quant_and_cache``; DeepGEMM at 54e2261, paged MQA logits.

Shapes:
    pages: uint8 [blocks, block_size (e + 4)]    codes: uint8 [blocks, block_size, e]    scales: [blocks, block_size]
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Bytes of the scale of a token.
SCALE_BYTES = 4


def index_page_size(pages: Tensor, e: int) -> int:
    """Tokens a page. Raises ValueError for pages that do not hold a whole number of tokens of ``e`` codes."""
    token = e + SCALE_BYTES
    if pages.dim() != 2 or pages.dtype != torch.uint8 or e < 1 or pages.shape[1] % token or not pages.shape[1]:
        raise ValueError(
            f"pages: expected uint8 [blocks, block_size * {token}], codes first and then scales, "
            f"got {pages.dtype} {list(pages.shape)}"
        )
    return pages.shape[1] // token


def decode_index_pages(pages: Tensor, *, e: int) -> tuple[Tensor, Tensor]:
    """Codes uint8 [blocks, block_size, e] and fp32 scales [blocks, block_size] of whole pages."""
    size = index_page_size(pages, e)
    codes = pages[:, : size * e].reshape(len(pages), size, e)
    stored = pages[:, size * e :].to(torch.int32).view(len(pages), size, SCALE_BYTES)
    bits = (stored << torch.arange(0, 32, 8, device=pages.device)).sum(-1, dtype=torch.int32)
    return codes, bits.view(torch.float32)
