"""Quantised latent caches read wrongly: scales of tiles, scales of the whole cache, rotated dims, pages, heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..fault import sited
from ..simulated.latent import LatentSites, tiles_of
from ..wrapped import Inputs, Outputs, around

fault = sited("latent-cache")
MQA = "sparse_mqa"
TILED = ("ds-mla",)
PLAIN = ("dtype=e4m3",)


def _scale_bytes(shift: Callable[[int], int]) -> Callable[[Tensor, int], Tensor]:
    """Scales looked for at another byte of the row."""

    def scales(rows: Tensor, c: int) -> Tensor:
        start = shift(c)
        return rows[..., start : start + 4 * tiles_of(c)]

    return scales


def _rope_at(shift: Callable[[int], int]) -> Callable[[Tensor, int], Tensor]:
    def rope(rows: Tensor, c: int) -> Tensor:
        right = c + 4 * tiles_of(c)
        start = shift(c)
        return rows[..., start : start + rows.shape[-1] - right].contiguous().view(torch.bfloat16).float()

    return rope


def _rope_from_codes(rows: Tensor, c: int) -> Tensor:
    r = (rows.shape[-1] - c - 4 * tiles_of(c)) // 2
    return rows[..., c - r : c].contiguous().view(torch.float8_e4m3fn).float()


def _rope_quantised(rows: Tensor, c: int) -> Tensor:
    rope = LatentSites().rope(rows, c)
    return rope.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def _exponent(scales: Tensor) -> Tensor:
    return (scales.contiguous().view(torch.int32) & 0x7F800000).view(torch.float32)


def _as_type(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda raw: raw.view(dtype).float()


def _wrapped(size: int) -> Callable[[Tensor, int], Tensor]:
    """Rows whose byte offset keeps 31 bits."""
    return lambda entry, n: ((entry * size) & 0x7FFFFFFF) // size


def _neighbour_page(entry: Tensor, n: int) -> Tensor:
    """Page and slot of 64 rows changed over."""
    return (entry % 64 * 64 + entry // 64) % n


def _padded_queries_scaled_together(kernel: Callable[..., Outputs], x: Inputs) -> Outputs:
    """Queries are quantised by the largest value of all heads, the padded ones among them."""
    q = x["q"]
    s, h, d = q.shape
    wide = torch.empty(s, -(-h // 64) * 64, d, dtype=q.dtype, device=q.device)
    wide[:, :h] = q
    amax = wide.float().abs().amax()
    codes = (q.float() / (amax / 448)).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    return kernel(**x | {"q": (codes * (amax / 448)).to(q.dtype)})


def _lse_without_query_scale(kernel: Callable[..., Outputs], x: Inputs) -> Outputs:
    return kernel(**x)[0], kernel(**x | {"q_scale": 1.0})[1]


def _last_heads(kernel: Callable[..., Outputs], x: Inputs) -> Outputs:
    """Of the padded heads the last are cut out, not the first."""
    h = x["q"].shape[1]
    out, lse = kernel(**x)
    heads = (torch.arange(h, device=out.device) + (-h % 64)) % h
    return out[:, heads], lse[:, heads]


LATENT = (
    fault(
        "tile-scale-of-next-tile",
        MQA,
        "Each tile of a row has the scale of the next.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(scale=lambda scales: scales.roll(-1, -1)),
    ),
    fault(
        "tile-scale-of-first-tile",
        MQA,
        "One scale serves all tiles of a row.",
        "vllm#48611",
        "element",
        options=TILED,
        latent=LatentSites(scale=lambda scales: scales[..., :1].expand_as(scales)),
    ),
    fault(
        "tile-scale-of-neighbour-row",
        MQA,
        "A row has the scales of the row gathered before.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(scale=lambda scales: scales.roll(1, -2)),
    ),
    fault(
        "tile-scale-exponent-only",
        MQA,
        "fp32 tile scales are read through e8m0.",
        "FlashMLA#184",
        "element",
        options=TILED,
        latent=LatentSites(scale=_exponent),
    ),
    fault(
        "tile-scale-skipped",
        MQA,
        "Codes are used without their scale.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(scale=torch.ones_like),
    ),
    fault(
        "tile-scale-twice",
        MQA,
        "Codes are multiplied by their scale twice.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(scale=torch.square),
    ),
    fault(
        "tile-scale-inverted",
        MQA,
        "Codes are divided by their scale.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(scale=torch.reciprocal),
    ),
    fault(
        "tile-scale-in-bf16",
        MQA,
        "Tile scales are rounded to bf16.",
        "vllm#49435",
        "element",
        options=TILED,
        latent=LatentSites(scale=lambda scales: scales.bfloat16().float()),
    ),
    fault(
        "tile-of-64",
        MQA,
        "Scales are taken for tiles of 64: the first half of them covers half a row.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(scale=lambda scales: scales.repeat_interleave(2, -1)[..., : scales.shape[-1]]),
    ),
    fault(
        "tile-scales-behind-rope",
        MQA,
        "Scales are read from the end of the row, where the rotated dims are.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(scales=lambda rows, c: rows[..., -4 * tiles_of(c) :]),
    ),
    fault(
        "tile-scales-four-bytes-early",
        MQA,
        "Scales are read one scale too early.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(scales=_scale_bytes(lambda c: c - 4)),
    ),
    fault(
        "rope-from-quantised-bytes",
        MQA,
        "Rotated dims are read from the codes.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(rope=_rope_from_codes),
    ),
    fault(
        "rope-over-scales",
        MQA,
        "Rotated dims are read from behind the codes, where the scales are.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(rope=_rope_at(lambda c: c)),
    ),
    fault(
        "rope-quantised-too",
        MQA,
        "Rotated dims pass through e4m3.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(rope=_rope_quantised),
    ),
    fault(
        "rope-two-dims-late",
        MQA,
        "Rotated dims are read from the third on, and two of the row before.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(rope=lambda rows, c: LatentSites().rope(rows, c).roll(-2, -1)),
    ),
    fault(
        "latent-codes-as-fnuz",
        MQA,
        "e4m3 codes are read as the FNUZ variant: half the value.",
        "vllm#45720",
        "element",
        options=TILED,
        latent=LatentSites(codes=_as_type(torch.float8_e4m3fnuz)),
    ),
    fault(
        "latent-codes-as-e5m2",
        MQA,
        "e4m3 codes are read as e5m2.",
        "",
        "element",
        options=TILED,
        latent=LatentSites(codes=_as_type(torch.float8_e5m2)),
    ),
    fault(
        "key-scale-ignored",
        MQA,
        "k_scale is ignored.",
        "sglang#34765",
        "element",
        options=PLAIN,
        latent=LatentSites(key_scale=lambda k: 1.0, value_scale=lambda k: 1.0),
    ),
    fault(
        "key-scale-missing-on-values",
        MQA,
        "k_scale is restored in q.k and not in P.V.",
        "sglang#34765",
        "element",
        options=PLAIN,
        latent=LatentSites(value_scale=lambda k: 1.0),
    ),
    fault(
        "key-scale-missing-on-keys",
        MQA,
        "k_scale is restored in P.V and not in q.k.",
        "sglang#34765",
        "element",
        options=PLAIN,
        latent=LatentSites(key_scale=lambda k: 1.0),
    ),
    fault(
        "key-scale-twice-on-values",
        MQA,
        "Values are multiplied by k_scale twice.",
        "",
        "element",
        options=PLAIN,
        latent=LatentSites(value_scale=lambda k: k * k),
    ),
    fault(
        "query-scale-ignored",
        MQA,
        "q_scale is ignored.",
        "",
        "element",
        options=PLAIN,
        latent=LatentSites(query=lambda q, q_scale: q),
    ),
    fault(
        "query-scale-forgotten-in-lse",
        MQA,
        "The LSE is that of scores without q_scale.",
        "",
        "lse",
        options=PLAIN,
        plant=around(MQA, _lse_without_query_scale),
    ),
    fault(
        "query-scale-twice-in-scores",
        MQA,
        "q_scale multiplies the scores twice.",
        "",
        "element",
        options=PLAIN,
        latent=LatentSites(query=lambda q, q_scale: q * q_scale * q_scale),
    ),
    fault(
        "scales-changed-over",
        MQA,
        "q_scale stands where k_scale should, and k_scale scales nothing.",
        "",
        "element",
        options=PLAIN,
        latent=LatentSites(key_scale=lambda k: 1.0, query=lambda q, q_scale: q * q_scale),
    ),
    fault(
        "probabilities-in-e4m3",
        MQA,
        "Weights meet V in e4m3, undeclared.",
        "flash-attention#2716",
        "element",
        options=PLAIN,
        probabilities=lambda p, dtype: (p * 448).to(torch.float8_e4m3fn).float() / 448,
    ),
    fault(
        "plain-codes-as-e5m2",
        MQA,
        "e4m3 codes of a plain cache are read as e5m2.",
        "",
        "element",
        options=PLAIN,
        latent=LatentSites(codes=_as_type(torch.float8_e5m2)),
    ),
    fault(
        "page-and-slot-changed-over",
        MQA,
        "The slot is taken for the page and the page for the slot.",
        "",
        "element",
        options=("ds-mla", "pages"),
        address=_neighbour_page,
    ),
    fault(
        "quantised-row-wraps-at-31-bits",
        MQA,
        "Row times 656 bytes keeps 31 bits.",
        "flashinfer#3136",
        "element",
        options=("ds-mla", "hugerows"),
        address=_wrapped(656),
    ),
    fault(
        "padded-heads-leak-through-amax",
        MQA,
        "Queries are quantised by a largest value that padded heads take part in.",
        "vllm#37442",
        "rerun",
        options=TILED,
        plant=around(MQA, _padded_queries_scaled_together),
    ),
    fault(
        "padded-heads-cut-at-the-wrong-end",
        MQA,
        "The last heads of the padded output are returned.",
        "local-inference-lab/vllm#5",
        "element",
        options=("ds-mla", "heads=12"),
        plant=around(MQA, _last_heads),
    ),
)
