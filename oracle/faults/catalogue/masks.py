"""Causal alignment, lengths and tiles: which keys a query of dense attention sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..fault import sited
from ..wrapped import reread

fault = sited("masks")


def _longer_keys(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q, reread(k, extra_rows=64), reread(v, extra_rows=64)


def _window(cols: Tensor, last: Tensor) -> Tensor:
    return (cols <= last[:, None]) & (cols > last[:, None] - 128)


def _full_tile(cols: Tensor, last: Tensor) -> Tensor:
    return (cols <= last[:, None]) | (cols.max() <= last.max())


def _twice_at_multiple(stop: int, block: int) -> Sequence[int]:
    tiles = list(range(0, stop, block))
    return tiles + tiles[-1:] if stop % block == 0 else tiles


MASKS = (
    fault(
        "causal-off-by-one", "dense_mha", "A query sees one key past its diagonal.", "", "element",
        last_key=lambda rows, q_len, k_len: rows + (k_len - q_len) + 1,
    ),
    fault(
        "causal-too-strict", "masked_mha", "A query does not see its own position.", "ATOM#2118", "element",
        last_key=lambda rows, q_len, k_len: rows + (k_len - q_len) - 1,
    ),
    fault(
        "causal-top-left", "dense_mha", "The causal diagonal starts at the first key, not at the last.",
        "flash-attention#282", "element", last_key=lambda rows, q_len, k_len: rows,
    ),
    fault(
        "causal-ignored", "dense_mha", "The causal mask is not applied.", "", "element",
        causal=lambda causal, q_len, k_len: False,
    ),
    fault(
        "causal-ignored-for-multi-query", "dense_mha", "Several new tokens on a cached prefix see each other's future.",
        "aiter#3046", "element", causal=lambda causal, q_len, k_len: causal and not 1 < q_len < k_len,
    ),
    fault(
        "causal-forced", "dense_mha", "A non-causal call is computed as causal.", "", "element",
        options=("noncausal",), causal=lambda causal, q_len, k_len: True,
    ),
    fault(
        "causal-forced-with-mask", "masked_mha", "A non-causal call with a mask is computed as causal.", "", "element",
        options=("noncausal",), causal=lambda causal, q_len, k_len: True,
    ),
    fault(
        "causal-clamped-at-zero", "dense_mha", "With more queries than keys, early queries see the first key.",
        "flash-attention#1778", "element",
        last_key=lambda rows, q_len, k_len: (rows + (k_len - q_len)).clamp(min=0),
    ),
    fault(
        "stray-window", "dense_mha", "A sliding window of 128 keys is left on.", "transformers#39408", "element",
        diagonal=_window,
    ),
    fault(
        "last-key-dropped", "dense_mha", "The newest key of each request is not seen.", "", "element",
        inside=lambda cols, k_len: cols < k_len - 1,
    ),
    fault(
        "first-key-dropped", "masked_mha", "The first key of each request is not seen.", "", "element",
        seen=lambda seen, cols: seen & (cols > 0),
    ),
    fault(
        "tile-edge-key-dropped", "dense_mha", "The last key of each tile is not seen.", "", "element",
        seen=lambda seen, cols: seen & (cols % 64 != 63),
    ),
    fault(
        "tile-skipped", "masked_mha", "The second tile of keys is skipped.", "", "element",
        tiles=lambda stop, block: [start for start in range(0, stop, block) if start != block],
    ),
    fault(
        "last-partial-tile-dropped", "dense_mha", "Keys after the last whole tile are not visited.", "", "element",
        tiles=lambda stop, block: range(0, stop // block * block, block),
    ),
    fault(
        "exact-multiple-adds-tile", "dense_mha", "Where the keys fill their last tile, that tile is visited twice.",
        "", "element", tiles=_twice_at_multiple,
    ),
    fault(
        "causal-stop-from-first-row", "dense_mha", "Tiles beyond the diagonal of a tile's first query are skipped.",
        "", "element", stop=lambda last, k_len: min(k_len, max(0, int(last.min()) + 1)),
    ),
    fault(
        "diagonal-tile-taken-as-full", "dense_mha", "A tile on the diagonal is computed without a mask.",
        "pytorch#182593", "element", diagonal=_full_tile,
    ),
    fault(
        "tile-overlap-counts-twice", "dense_mha", "Tiles advance by 63 keys: every 64th counts twice.", "", "element",
        tiles=lambda stop, block: range(0, stop, block - 1),
    ),
    fault(
        "zero-key-request-reads-neighbour", "dense_mha", "A request without keys reads the first key of the next.",
        "TensorRT-LLM#14940", "element", options=("k=0",),
        key_range=lambda cu, b: (cu[b], max(cu[b + 1], cu[b] + 1)),
    ),
    fault(
        "key-range-starts-early", "dense_mha", "A request sees the last key of the one before.", "", "element",
        key_range=lambda cu, b: (max(cu[b] - 1, 0), cu[b + 1]),
    ),
    fault(
        "key-length-of-first-request", "dense_mha", "All requests have as many keys as the first.", "", "element",
        key_range=lambda cu, b: (cu[b], cu[b] + min(cu[1], cu[-1] - cu[b])),
    ),
    fault(
        "last-tile-loads-unguarded", "dense_mha", "Rows past the last key are loaded: 0 * NaN poisons the row.",
        "pytorch#101967", "structure", keep=torch.ones_like, inputs=_longer_keys,
    ),
    fault(
        "row-tile-edge-unwritten", "masked_mha", "Queries of a last, partial tile are not stored.", "sglang#19902",
        "element", rows_written=lambda rows, q_len: rows[rows < max(q_len // 32 * 32, min(q_len, 1))],
    ),
    fault(
        "diagonal-from-tile-start", "dense_mha", "The causal limit is that of the first query of the tile.", "",
        "element", diagonal=lambda cols, last: cols <= last[:1, None].expand_as(last[:, None]),
    ),
)
