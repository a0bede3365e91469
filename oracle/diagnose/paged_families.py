"""Hypotheses about the paged indexer: which query, weight, page, place and end a row has; scores nobody wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..faults.simulated import simulated
from ..faults.simulated.indexer import INDEXER_SITES
from ..faults.simulated.paged_indexer import SCALE, planar
from ..faults.wrapped import packed_strides, reread
from .distance import ratios
from .formats import FORMATS
from .hypothesis import Hypothesis, Stage
from .observation import Observation
from .quantised_families import MOST
from .rules import described

SHIFTS = (-2, -1, 1, 2)


def paged(seen: Observation) -> Iterator[Hypothesis]:
    """One step of the paged indexer done otherwise."""
    yield from _rows(seen)
    yield from _ends()
    yield from _pages(seen)
    yield from _cache(seen)


def _site(idea: str, stage: Stage, words: str, **sites: Any) -> Hypothesis:
    return Hypothesis(idea, stage, words, simulated("paged_indexer_scores", **sites), 1, fixed=True)


def _rows(seen: Observation) -> Iterator[Hypothesis]:
    """Row (request, query) looked for at request * x + query * y."""
    m = seen.arguments["q"].shape[1]
    for of_request in dict.fromkeys((0, 1, m - 1, m, m + 1, m * m)):
        for of_query in (0, 1):
            if (of_request, of_query) == (m, 1):
                continue
            told = f"at {of_request} x request + {of_query} x query, not at {m} x request + query"

            def place(request: int, rows: int, x: int = of_request, y: int = of_query) -> Tensor:
                return (request * x + torch.arange(m) * y) % max(rows, 1)

            yield _site(
                "rows of weights", "logits", f"Weights are looked for {told}.",
                rows=lambda x, request, m, at=place: x[at(request, len(x))],
            )  # fmt: skip
            yield _site(
                "rows of queries", "indexer q/k", f"Queries are looked for {told}.",
                queries=lambda q, request, at=place: q.flatten(0, 1)[at(request, q.shape[0] * q.shape[1])],
            )  # fmt: skip


def _ends() -> Iterator[Hypothesis]:
    ends: dict[str, Callable[[int, int, int], int]] = {}
    for shift in SHIFTS:
        words = f"A query ends {abs(shift)} key{'s' * (abs(shift) > 1)} too {'late' if shift > 0 else 'early'}."
        ends[words] = partial(_shifted_end, shift)
    ends["Every query sees the whole context."] = lambda length, m, query: length
    ends["Every query ends where the first does."] = lambda length, m, query: length - m + 1
    for words, end in ends.items():
        yield _site("end of a query", "logits", words, end=end)


def _shifted_end(shift: int, length: int, m: int, query: int) -> int:
    return length - m + query + 1 + shift


def _pages(seen: Observation) -> Iterator[Hypothesis]:
    table, cache = seen.arguments["block_table"], seen.arguments["k_cache"]
    packed = reread(table, packed_strides(table.shape))
    rows: dict[str, Callable[[Tensor, int], Tensor]] = {
        "Rows of the block table are taken to be contiguous.": lambda table, request: packed[request],
        "All requests use the first row of the block table.": lambda table, request: table[0],
        "A request uses the row of the next.": lambda table, request: table[(request + 1) % len(table)],
    }
    for words, row in rows.items():
        yield _site("row of the block table", "gather", words, table=row)
    stride = max(1, cache.stride(0))
    for bits in (31, 32):
        yield _site(
            "page that is read", "gather", f"Page times stride keeps {bits} bits.",
            address=lambda pages, n, m=(1 << bits) - 1: ((pages.long() * stride) & m) // stride % n,
        )  # fmt: skip
    for shift in SHIFTS:
        yield _site(
            "page that is read", "gather", f"Pages are off by {shift:+d}.",
            address=lambda pages, n, d=shift: (pages + d) % n,
        )  # fmt: skip


def _cache(seen: Observation) -> Iterator[Hypothesis]:
    """Places inside a page, and pages inside the cache."""
    places: dict[str, Callable[[Tensor], Tensor]] = {
        "of the first place": lambda slot: 0 * slot,
        "of the next place": lambda slot: (slot + 1) % len(slot),
        "of the place before": lambda slot: (slot - 1) % len(slot),
        "at a fourth of its place": lambda slot: slot // 4,
        "at four times its place": lambda slot: slot * 4 % len(slot),
    }
    for words, place in places.items():

        def page(raw: Tensor, dim: int, at: Callable[[Tensor], Tensor] = place) -> tuple[Tensor, Tensor]:
            codes, scales = planar(raw, dim)
            return codes, scales[at(torch.arange(len(scales)))]

        yield _site("scale of a key on a page", "quantised cache", f"A key has the scale {words}.", page=page)
    yield _site(
        "codes of a key on a page", "quantised cache", "Codes are looked for as if a scale followed each key.",
        page=_codes_apart,
    )  # fmt: skip
    cache = seen.arguments["k_cache"]
    if cache.numel() > MOST:
        return
    dim = seen.arguments["q"].shape[-1]
    size = cache.shape[1] // (dim + SCALE)
    first = cache.clone()
    first[:, size * dim :] = cache[:1, size * dim :]
    kernel = simulated("paged_indexer_scores")
    changes = {("scale of a key on a page", "All pages have the scales of the first page."): first}
    if cache.stride(0) != cache.shape[1]:
        near = cache.clone()
        near[:, : size * dim] = reread(cache, packed_strides(cache.shape))[:, : size * dim]
        changes["page that is read", "Codes of pages are taken to follow one another."] = near
        changes["page that is read", "Pages are taken to follow one another."] = reread(
            cache, packed_strides(cache.shape)
        )
    for (idea, words), changed in changes.items():
        stage: Stage = "gather" if idea == "page that is read" else "quantised cache"
        yield Hypothesis(
            idea, stage, words, lambda changed=changed, **a: kernel(**{**a, "k_cache": changed}), 1, fixed=True
        )


def _codes_apart(raw: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Codes of place i at i (e + 4), scales where they are."""
    codes, scales = planar(raw, dim)
    at = torch.arange(len(codes))[:, None] * (dim + SCALE) + torch.arange(dim)
    return raw[at.clamp(max=len(raw) - 1)].view(torch.float8_e4m3fn), scales


def paged_formats(seen: Observation) -> Iterator[Hypothesis]:
    """Quantities of the arithmetic in every format."""
    for how, round_ in FORMATS.items():
        sites: dict[str, dict[str, Any]] = {
            "Scores": {"output": round_},
            "Sums over heads": {"total": round_},
            "q.k of heads": {"dot": lambda q, k, r=round_: r(q @ k.T)},
            "Head weights": {"weight": lambda w, head, r=round_: r(w[:, head].float())},
            "Key scales": {"dequantise": lambda total, s, r=round_: total * r(s)},
        }
        for what, changed in sites.items():
            yield _site(
                f"format of {what.lower()}", "logits", f"{what} are {how}.", scoring=replace(INDEXER_SITES, **changed)
            )


def compressed(seen: Observation) -> Iterator[Hypothesis]:
    """Rows of the packed indexer: compressed ones that overlap, scales of queries read as if contiguous."""
    a = seen.arguments
    kernel = simulated("indexer_scores")
    q_scale = a.get("q_scale")
    if q_scale is not None and not q_scale.is_contiguous():
        packed = reread(q_scale, packed_strides(q_scale.shape))
        yield Hypothesis(
            "rows of query scales", "logits", "Query scales are taken to be contiguous.",
            lambda **a: kernel(**{**a, "q_scale": packed}), 1, fixed=True,
        )  # fmt: skip
    if a.get("max_seqlen_k") is None:
        return
    for shift in (-1, 1):

        def predict(d: int = shift, **a: Any) -> tuple[Any, ...]:
            (scores,) = kernel(**a)
            rows, width = scores.shape
            flat = torch.full((rows * (width + 1),), -torch.inf)
            lengths = (a["ke"] - a["ks"].clamp(min=0)).clamp(0, width).tolist()
            for row, length in enumerate(lengths):
                flat[row * (width + d) : row * (width + d) + length] = scores[row, :length]
            return (flat[: rows * width].view(rows, width),)

        yield Hypothesis(
            "rows of compressed scores", "output", f"Compressed rows are {abs(shift)} column too "
            f"{'close' if shift < 0 else 'far apart'}.", predict, 1, fixed=True,
        )  # fmt: skip


def not_written(seen: Observation) -> Iterator[Hypothesis]:
    """Elements that hold the NaN of a fresh allocation."""
    name = next(iter(seen.right))
    got, right = seen.answer.get(name), seen.right[name]
    if got is None or got.shape != right.shape:
        return
    hit = torch.isnan(got) & ~torch.isnan(right)
    off = ratios(got, right, seen.expected.allowed[name]) > 1.0 if seen.expected.allowed else got != right
    if not bool(hit.any()) or int(hit.sum()) < 0.9 * int(off.sum()):
        return
    kept = dict(seen.right)
    kept[name] = torch.where(hit, got, right)
    columns = hit.flatten(0, -2).any(0)
    rule = next(described(torch.arange(len(columns)), columns, torch.ones_like(columns), len(columns), "column"), "")
    exact = seen.expected.exact.get(name)
    behind = exact is not None and bool((exact[hit] == -torch.inf).all())
    where = "what is to be -inf" if behind else rule or f"{int(hit.sum()):,} elements"
    words = f"Never written: {where} (holds the NaN of a fresh allocation)."
    yield Hypothesis("not written", "output", words, lambda **a: (), 4, answer=kept)
