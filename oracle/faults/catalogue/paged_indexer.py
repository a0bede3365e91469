"""The fp8 indexer: scales of the queries, compressed scores, and keys on the pages of a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..fault import sited
from ..simulated.indexer import INDEXER_SITES
from ..simulated.paged_indexer import SCALE, planar
from ..simulated.sites import rounded

fault = sited("paged-indexer")
PAGED = "paged_indexer_scores"


def _by_record(raw: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """A page taken for records of codes and scale side by side."""
    records = raw.view(-1, dim + SCALE)
    codes = records[:, :dim].contiguous().view(torch.float8_e4m3fn)
    return codes, records[:, dim:].contiguous().view(torch.float32)[:, 0]


def _scales_by_record(raw: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return planar(raw, dim)[0], _by_record(raw, dim)[1]


def _scales(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    """Scales of a page [page] changed by ``change``."""

    def page(raw: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        codes, scales = planar(raw, dim)
        return codes, change(scales)

    return page


def _shifted_scales(raw: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Scales that begin where one page of half the keys would have them."""
    codes, scales = planar(raw, dim)
    half = len(scales) // 2 * dim
    return codes, raw[half : half + scales.numel() * SCALE].view(torch.float32)


def _as_type(dtype: torch.dtype) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    def page(raw: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        codes, scales = planar(raw, dim)
        return codes.view(torch.uint8).view(dtype), scales

    return page


def _wrapped(pages: Tensor, count: int) -> Tensor:
    """Byte offsets that keep 31 bits, for pages of 64 keys of 128 codes and a scale."""
    size = 64 * (128 + SCALE)
    return ((pages.long() * size) & 0x7FFFFFFF) // size


QUERY_SCALES = (
    fault(
        "query-scale-forgotten",
        "indexer_scores",
        "Scales of the queries are not applied.",
        "",
        "element",
        options=("q-scale",),
        fold=lambda weights, q_scale: weights,
    ),
    fault(
        "query-scale-twice",
        "indexer_scores",
        "Scales of the queries are folded into the weights twice.",
        "",
        "element",
        options=("q-scale",),
        fold=lambda weights, q_scale: weights * q_scale * q_scale,
    ),
    fault(
        "query-scale-of-first-head",
        "indexer_scores",
        "All heads have the query scale of the first.",
        "",
        "element",
        options=("q-scale",),
        fold=lambda weights, q_scale: weights * q_scale[:, :1],
    ),
    fault(
        "compressed-from-column-0",
        "indexer_scores",
        "Compressed rows start at the first key of the batch.",
        "sglang#12582",
        "structure",
        options=("compressed", "requests=2"),
        compress=lambda scores, ks, ke, columns: torch.nn.functional.pad(scores, (0, columns), value=float("-inf"))[
            :, :columns
        ],
    ),
    fault(
        "compressed-tail-zero",
        "indexer_scores",
        "Compressed rows are 0 behind their window.",
        "",
        "structure",
        options=("compressed",),
        compress=lambda scores, ks, ke, columns: torch.nan_to_num(
            INDEXER_SITES.compress(scores, ks, ke, columns), neginf=0.0
        ),
    ),
    fault(
        "compressed-one-key-late",
        "indexer_scores",
        "Compressed rows start at the second key of their window.",
        "",
        "structure",
        options=("compressed",),
        compress=lambda scores, ks, ke, columns: INDEXER_SITES.compress(scores, (ks + 1).minimum(ke), ke, columns),
    ),
)

PAGED_INDEXER = (
    *QUERY_SCALES,
    fault(
        "paged-relu-missing",
        PAGED,
        "Negative q.k of a head is not cut at 0.",
        "transformers#44690",
        "element",
        scoring=replace(INDEXER_SITES, activate=lambda x: x),
    ),
    fault(
        "paged-accumulator-in-fp16",
        PAGED,
        "q.k of a head is kept in fp16 and overflows.",
        "",
        "structure",
        options=("kind=saturated",),
        scoring=replace(INDEXER_SITES, dot=lambda q, k: rounded(q @ k.T, torch.float16)),
    ),
    fault(
        "paged-scores-through-bf16",
        PAGED,
        "Scores pass through bf16, undeclared.",
        "",
        "element",
        scoring=replace(INDEXER_SITES, output=lambda scores: rounded(scores, torch.bfloat16)),
    ),
    fault(
        "paged-query-scale-forgotten",
        PAGED,
        "Scales of the queries are not applied.",
        "",
        "element",
        options=("q-scale",),
        scoring=replace(INDEXER_SITES, fold=lambda weights, q_scale: weights),
    ),
    fault(
        "page-planar-read-as-records",
        PAGED,
        "Pages hold all codes, then all scales; they are read by record.",
        "vllm#50576",
        "element",
        page=_by_record,
    ),
    fault(
        "page-scales-read-by-record",
        PAGED,
        "Codes are read planar, scales where a record would end.",
        "vllm#50576",
        "element",
        page=_scales_by_record,
    ),
    fault(
        "page-scales-of-half-page",
        PAGED,
        "Scales are looked for behind half of the codes.",
        "",
        "element",
        page=_shifted_scales,
    ),
    fault(
        "page-scale-of-first-slot",
        PAGED,
        "One scale serves all keys of a page.",
        "",
        "element",
        page=_scales(lambda scales: scales[:1].expand_as(scales)),
    ),
    fault(
        "page-scale-of-next-slot",
        PAGED,
        "Each key has the scale of the next slot.",
        "",
        "element",
        page=_scales(lambda scales: scales.roll(-1)),
    ),
    fault(
        "page-scale-skipped",
        PAGED,
        "Keys are not multiplied by their scale.",
        "",
        "element",
        page=_scales(torch.ones_like),
    ),
    fault(
        "page-scale-twice",
        PAGED,
        "Keys are multiplied by their scale twice.",
        "",
        "element",
        page=_scales(torch.square),
    ),
    fault(
        "page-scale-exponent-only",
        PAGED,
        "fp32 scales are read through e8m0.",
        "FlashMLA#184",
        "element",
        page=_scales(lambda scales: (scales.contiguous().view(torch.int32) & 0x7F800000).view(torch.float32)),
    ),
    fault(
        "page-codes-read-as-fnuz",
        PAGED,
        "e4m3 codes are read as the FNUZ variant: half the value.",
        "vllm#45720",
        "element",
        page=_as_type(torch.float8_e4m3fnuz),
    ),
    fault(
        "page-codes-read-as-e5m2",
        PAGED,
        "e4m3 codes are read as e5m2.",
        "",
        "element",
        page=_as_type(torch.float8_e5m2),
    ),
    fault(
        "table-row-of-next-request",
        PAGED,
        "A request reads the table row of the next.",
        "sglang#26019",
        "element",
        options=("requests=2",),
        table=lambda table, request: table[(request + 1) % len(table)],
    ),
    fault(
        "table-row-of-first-request",
        PAGED,
        "All requests read the pages of the first.",
        "sglang#26019",
        "element",
        options=("requests=2",),
        table=lambda table, request: table[0],
    ),
    fault(
        "table-ignored",
        PAGED,
        "Pages are taken in the order of the cache.",
        "",
        "element",
        pages=lambda row, length, page: torch.arange(-(-length // page), device=row.device),
    ),
    fault(
        "partial-last-page-dropped",
        PAGED,
        "Only whole pages of a context are read.",
        "",
        "structure",
        pages=lambda row, length, page: row[: length // page],
    ),
    fault(
        "next-n-offset-missing",
        PAGED,
        "Every query of a request sees its whole context.",
        "ATOM#2118",
        "structure",
        end=lambda length, m, query: length,
    ),
    fault(
        "next-n-rows-end-with-first",
        PAGED,
        "All queries of a request end where its first does.",
        "ATOM#2118",
        "structure",
        end=lambda length, m, query: length - m + 1,
    ),
    fault(
        "next-n-rows-reversed",
        PAGED,
        "The first query of a request sees most keys.",
        "",
        "structure",
        end=lambda length, m, query: length - query,
    ),
    fault(
        "query-misses-itself",
        PAGED,
        "A query does not see its own key.",
        "",
        "structure",
        end=lambda length, m, query: length - m + query,
    ),
    fault(
        "end-rounded-to-page",
        PAGED,
        "Scores reach to the end of the last page.",
        "",
        "structure",
        end=lambda length, m, query: -(-(length - m + query + 1) // 64) * 64,
    ),
    fault(
        "context-of-first-request",
        PAGED,
        "Every request has the context length of the first.",
        "flashinfer#4382",
        "structure",
        options=("requests=2",),
        lengths=lambda context_lens: context_lens[:1].expand_as(context_lens),
    ),
    fault(
        "weights-query-major",
        PAGED,
        "Weights are read with the requests of each query together.",
        "flashinfer#4382",
        "element",
        rows=lambda x, request, m: x[request :: len(x) // m],
    ),
    fault(
        "weights-of-first-query",
        PAGED,
        "All queries of a request have the weights of its first.",
        "aiter#3910",
        "element",
        rows=lambda x, request, m: x[request * m : request * m + 1].expand(m, -1),
    ),
    fault(
        "weights-heads-reversed",
        PAGED,
        "Head weights are applied in the opposite order.",
        "",
        "element",
        rows=lambda x, request, m: x[request * m : (request + 1) * m].flip(1),
    ),
    fault(
        "queries-overstrided",
        PAGED,
        "A request's queries are looked for next_n times too far.",
        "aiter#3910",
        "element",
        options=("requests=2",),
        queries=lambda q, request: q[request * q.shape[1] % len(q)],
    ),
    fault(
        "first-query-for-all",
        PAGED,
        "All rows of a request are scored with its first query.",
        "",
        "element",
        queries=lambda q, request: q[request, :1].expand_as(q[request]),
    ),
    fault(
        "page-offset-wraps-at-31-bits",
        PAGED,
        "Page times bytes keeps 31 bits.",
        "flashinfer#3136",
        "element",
        options=("hugerows",),
        address=_wrapped,
    ),
    fault(
        "scores-tail-finite",
        PAGED,
        "Columns behind a context are -10000, not -inf.",
        "",
        "structure",
        store=lambda scores: torch.nan_to_num(scores, nan=float("nan"), neginf=-1e4),
    ),
)
