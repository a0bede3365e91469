"""Suite ``production``: what engines run, for a GPU; thousands of queries, all heads, top-2048, 65,536 keys."""

from __future__ import annotations

from collections.abc import Iterator

from ..case import Case
from .layouts import PRODUCTION
from .row import Row, cases, ragged


def production(seed: int) -> Iterator[Case]:
    """Prefill and decode of every operator as engines run them, in order."""
    yield from cases("deepseek-v3.2", "sparse_mqa", (Row((4096,), (65536,), "randn", (), 2048, 128),), 0, seed)
    yield from cases("glm-5.2", "sparse_mqa", (Row((4096,), (65536,), "needle", (), 2048, 16),), 0, seed + 1)
    yield from cases("glm-5", "sparse_mqa", (Row((4096,), (8192,), "wide", ("lengths",), 2048, 64),), 0, seed + 2)
    for geometry, heads in (("deepseek-v3.2", 16), ("glm-5", 8)):
        yield from cases(geometry, "dense_mha", (Row((8192,), (8192,), heads=heads),), 0, seed + 3)
        yield from cases(geometry, "dense_mha", (Row((1024,), (9216,), "wide", heads=heads),), 0, seed + 4)
        yield from cases(geometry, "masked_mha", (Row((8192,), (8192,), "randn", (), 2048, heads),), 0, seed + 5)
    yield from cases("deepseek-v3.2", "indexer_scores", (Row((4096,), (32768,), heads=64, dtype="e4m3"),), 0, seed + 6)
    yield from cases("glm-5.2", "indexer_scores", (Row((2048,), (8192,), heads=32, dtype="bf16"),), 0, seed + 7)
    paged = Row((4,) * 128, (8192,) * 128, "randn", ("ds-mla", "pages", "pow2-scales"), 2048, 128)
    yield from cases("deepseek-v3.2", "sparse_mqa", (paged,), 0, seed + 12)
    plain = Row((1,) * 256, (4096,) * 256, "wide", (), 2048, 64, "e4m3")
    yield from cases("glm-5.2", "sparse_mqa", (plain,), 0, seed + 13)
    compressed = Row(*ragged((2048, 16384), (2048, 4096)), "randn", ("compressed", "q-scale"), heads=64, dtype="e4m3")
    yield from cases("deepseek-v3.2", "indexer_scores", (compressed,), 0, seed + 10)
    decode = Row((2,) * 128, tuple(range(8192, 8192 + 128 * 64, 64)), heads=64, dtype="e4m3")
    yield from cases("deepseek-v3.2", "paged_indexer_scores", (decode,), 0, seed + 11)
    for kind in ("randn", "clustered", "zeros", "ties"):
        yield from cases("deepseek-v3.2", "topk_select", (Row((4096,), (32768,), kind, (), 2048, 1),), 0, seed + 8)
    yield from cases("deepseek-v3.2", "merge_lse", (Row((4096,), (4096,), "wide", heads=128),), 0, seed + 9)
    for operator, rows in PRODUCTION.items():
        yield from cases("deepseek-v3.2", operator, rows, 1, seed + 20)
