"""Refusing inputs that a kernel would misread, before it is launched."""

from __future__ import annotations

from collections.abc import Sequence

import torch

ATTENTION_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    letters: str,
    sizes: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> None:
    """Raise ValueError unless ``tensor`` has these sizes (None: any), one of these dtypes, and unit inner stride.

    ``letters`` spells the expected shape for the message, for example ``[s, h, d]``.
    """
    shape = tensor.shape
    fits = len(shape) == len(sizes)
    if fits:  # a plain loop: as a generator this took most of the time in which a short kernel is prepared
        for want, have in zip(sizes, shape, strict=False):
            if want is not None and want != have:
                fits = False
    if not fits:
        wanted = ["any" if size is None else size for size in sizes]
        raise ValueError(f"{name}: expected shape {letters} = {wanted}, got {list(shape)}")
    if tensor.dtype not in dtypes:
        names = " or ".join(str(dtype) for dtype in dtypes)
        raise ValueError(f"{name}: expected {names}, got {tensor.dtype}; convert it first")
    if tensor.device != device:
        raise ValueError(f"{name}: expected device {device}, that of the first input, got {tensor.device}")
    if shape[-1] > 1 and tensor.stride(-1) != 1 and tensor.numel() > 0:
        raise ValueError(
            f"{name}: expected stride 1 in the last dimension, got {tensor.stride(-1)}; make it contiguous"
        )


def check_at_least(name: str, value: int, least: int) -> None:
    """Raise ValueError unless ``value >= least``."""
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")


#: Formats of scales that a cache stores in fp32.
FORMATS = ("fp32", "pow2")


def check_scale(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is a positive finite scale."""
    if not 2.0**-126 <= value < 2.0**128:
        raise ValueError(f"{name}: expected a positive finite number, got {value}")


def check_scale_rule(
    scale_format: str, least_amax: float, least_scale: float, formats: Sequence[str] = (*FORMATS, "ue8m0")
) -> None:
    """Raise ValueError for an unknown format of scales, or a rule that gives a block of zeros none."""
    if scale_format not in formats:
        raise ValueError(f"scale_format: expected one of {', '.join(formats)}, got {scale_format!r}")
    if min(least_amax, least_scale) < 0 or not 2.0**-126 <= max(least_amax / 448.0, least_scale) < 2.0**128:
        raise ValueError(
            f"least_amax, least_scale: expected one of them positive and neither negative, got {least_amax} "
            f"and {least_scale}; a block of zeros has no other scale"
        )


def tile_of(latent: int) -> int:
    """Values of the latent that share a scale: 128, or all of a smaller latent."""
    return min(128, latent)


def check_cache(cache: torch.Tensor, cache_format: str, latent: int, rope: int, device: torch.device) -> None:
    """Raise ValueError unless ``cache`` is [blocks, block_size, width] with the rows of its format, aligned."""
    if latent < 1:
        raise ValueError(f"latent: expected at least 1, got {latent}")
    tiles = latent // tile_of(latent)
    widths = {"model": latent + rope, "fp8_e4m3": latent + rope, "fp8_ds_mla": latent + 4 * tiles + 2 * rope}
    if cache_format not in widths:
        raise ValueError(f"cache_format: expected one of {', '.join(widths)}, got {cache_format!r}")
    dtypes = ATTENTION_DTYPES if cache_format == "model" else (torch.uint8,)
    check_tensor("cache", cache, "[blocks, block_size, width]", (None, None, widths[cache_format]), dtypes, device)
    check_at_least("block_size", cache.size(1), 1)
    if cache_format == "fp8_ds_mla":
        if latent % tile_of(latent) or latent % 4:
            raise ValueError(f"latent: expected whole tiles of 128, or a smaller multiple of 4, got {latent}")
        check_aligned("cache", cache, cache.stride(0), cache.stride(1))


def check_pages(pages: torch.Tensor, e: int, device: torch.device) -> int:
    """Tokens a page of the indexer's cache. Raise ValueError unless pages hold whole tokens, scales aligned."""
    check_at_least("e", e, 1)
    check_tensor("pages", pages, "[blocks, block_size * (e + 4)]", (None, None), (torch.uint8,), device)
    if pages.size(1) == 0 or pages.size(1) % (e + 4):
        raise ValueError(f"pages: expected a multiple of {e + 4} bytes, e + 4 a token, got {pages.size(1)}")
    size = pages.size(1) // (e + 4)
    check_aligned("pages", pages, pages.stride(0), size * e)
    return size


def check_aligned(name: str, tensor: torch.Tensor, *distances: int) -> None:
    """Raise ValueError unless fp32 numbers at such distances from the start of the bytes are aligned."""
    if tensor.data_ptr() % 4 or any(distance % 4 for distance in distances):
        raise ValueError(
            f"{name}: expected scales aligned to 4 bytes, got an address = {tensor.data_ptr() % 4} mod 4 and distances "
            f"of {', '.join(map(str, distances))} bytes"
        )


def check_paging(
    block_table: torch.Tensor, starts: torch.Tensor, cu_k: torch.Tensor, tokens: int, device: torch.device
) -> tuple[int, int]:
    """Requests and most pages of a block table. Raise ValueError for tensors that do not fit each other."""
    check_tensor("block_table", block_table, "[b, most pages]", (None, None), (torch.int32,), device)
    b, most_pages = block_table.shape
    check_tensor("starts", starts, "[b]", (b,), (torch.int32,), device)
    check_tensor("cu_k", cu_k, "[b + 1]", (b + 1,), (torch.int32,), device)
    check_at_least("tokens", tokens, 0)
    return b, most_pages


def check_rows(block_size: int, blocks: int, page_rows: int) -> None:
    """Raise ValueError unless int32 counts the rows of ``blocks`` pages that lie ``page_rows`` rows apart."""
    if block_size < 1 or blocks < 0 or page_rows < block_size:
        raise ValueError(
            f"block_size, blocks, page_rows: expected pages of at least one row, as far apart as they are long, "
            f"got {block_size}, {blocks}, {page_rows}"
        )
    if blocks * page_rows > 2**31:
        raise ValueError(
            f"blocks: expected at most {2**31 // page_rows} pages of {page_rows} rows, which int32 counts, got {blocks}"
        )
