"""Number formats and byte layouts of quantised caches: what a code, a scale, a row and a page mean.

    float8        e4m3 codes and their values
    scales        the scale of a block: fp32, power of two, and ue8m0 bytes
    plain_rows    ``fp8_e4m3``: one code a value and one scale for the whole cache
    mla_rows      ``fp8_ds_mla``: 656 bytes a token for DeepSeek: codes, a scale a tile, rotated dims in bf16
    index_pages   the indexer's keys: in every page all codes first, then all scales

Encoders and decoders of one layout share its sizes and nothing else. Byte order is little-endian throughout. Codes are
uint8 here; ``tensor.view(torch.float8_e4m3fn)`` gives the type that kernels take.
"""

from .float8 import E4M3_MAX, decode_e4m3, encode_e4m3
from .formats import CACHE_FORMATS, CacheFormat, decode_rows, encode_rows, row_width
from .index_pages import SCALE_BYTES, decode_index_pages, index_page_size
from .mla_rows import MlaRow, decode_mla_rows, encode_mla_rows
from .plain_rows import decode_plain_rows, encode_plain_rows
from .scales import (
    SCALE_FORMATS,
    ScaleFormat,
    ScaleRule,
    block_scales,
    decode_ue8m0,
    encode_ue8m0,
    power_of_two_at_least,
    require_scale,
)

__all__ = [
    "CACHE_FORMATS",
    "E4M3_MAX",
    "SCALE_BYTES",
    "SCALE_FORMATS",
    "CacheFormat",
    "MlaRow",
    "ScaleFormat",
    "ScaleRule",
    "block_scales",
    "decode_e4m3",
    "decode_index_pages",
    "decode_mla_rows",
    "decode_plain_rows",
    "decode_rows",
    "decode_ue8m0",
    "encode_e4m3",
    "encode_mla_rows",
    "encode_plain_rows",
    "encode_rows",
    "encode_ue8m0",
    "index_page_size",
    "power_of_two_at_least",
    "require_scale",
    "row_width",
]
