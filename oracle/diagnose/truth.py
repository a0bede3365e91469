"""What the right diagnosis of every fault of the catalogue is: for measuring diagnosis, never for making one.

A fault of a simulated kernel has its own entry in the dictionary. One in a shipped Triton kernel has none, and has to
be explained by an idea: here stand the ideas that count as the right one. What a verdict gives away by itself has a
mark.
"""

from __future__ import annotations

from ..faults import Fault
from ..faults import fault as by_name
from .dictionary import numeric
from .hypothesis import Stage
from .stages import LAYOUT_STAGES, stage_of

#: Faults that are read off a verdict: name -> marks.
MARKS: dict[str, str] = {
    "write-past-the-end": "stray write",
    "write-past-the-scores": "stray write",
    "write-before-the-start": "stray write",
    "queries-scaled-in-place": "inputs changed",
    "indices-sorted-in-place": "inputs changed",
    "scores-masked-in-place": "inputs changed",
    "output-in-fp32": "output format",
    "lse-in-half-precision": "output format",
    "indices-int64": "output format",
    "output-broadcast": "output shape",
    "lse-missing": "output missing",
    "output-accumulates": "output accumulates",
    "sum-order-varies": "order of sums varies",
    "second-call-differs": "runs differ",
    "tile-lost-on-some-runs": "runs differ",
    "head-sum-race": "runs differ",
    "ties-in-arrival-order": "runs differ",
    "answer-from-recycled-memory": "runs differ",
    "plan-of-first-call": "lengths kept",
    "scale-of-first-call": "scale kept",
    "mask-of-first-call": "mask kept",
    "index-buffer-of-first-call": "indices kept",
    "split-workspace-stale": "state kept",
    "answer-cached-by-pointer": "answer kept",
    "answer-cached-by-shape": "answer kept",
    "selection-cached-by-shape": "answer kept",
    "output-buffer-shared": "output buffer shared",
    "padded-heads-leak-through-amax": "runs differ",
    "triton-padding-written": "stray write",
    "triton-compacted-tail-unset": "not written",
}
#: Faults of the Triton kernels, without ``triton-``: the ideas that are right, the first of which gives the stage.
IDEAS: dict[str, tuple[str, ...]] = {
    "scale-off-1-percent": ("scale-off-1-percent", "softmax scale"),
    "log2e-missing": ("softmax scale", "exp2-without-log2e"),
    "causal-off-by-one": ("causal-off-by-one", "keys read"),
    # The edited line masks the tile on the diagonal alone: of a request with one query, all of it.
    "causal-top-left": ("causal-top-left", "tile-skipped", "keys read"),
    "causal-forced": ("causal-forced", "causal-forced-with-mask"),
    "diagonal-tile-taken-as-full": ("diagonal-tile-taken-as-full", "keys read"),
    "whole-tiles-rounded-up": ("diagonal-tile-taken-as-full", "keys read", "last-tile-loads-unguarded"),
    "limit-of-first-row": ("causal-stop-from-first-row", "diagonal-from-tile-start", "keys read"),
    # On the case's last request it writes outside; where the next request's rows follow, they are overwritten.
    "row-past-request-stored": ("rows past a request", "stray write"),
    "last-key-dropped": ("last-key-dropped", "keys read"),
    "partial-tile-dropped": ("last-partial-tile-dropped", "keys read"),
    "value-head-stride-of-key": ("value-read-with-key-strides", "tensor misread"),
    "keys-of-first-request": ("tensor misread",),
    "queries-of-first-request": ("tensor misread", "request-start-from-fixed-length"),
    "output-head-major": ("output-stored-head-major", "rows moved"),
    "lse-base-2": ("lse-base-2", "LSE base or offset"),
    "lse-mixed-bases": ("parts of the LSE", "LSE base or offset"),
    "accumulator-not-rescaled": ("accumulator-not-rescaled",),
    "sum-not-rescaled": ("sum-not-rescaled",),
    "sum-of-rounded-probabilities": ("sum-of-rounded-probabilities",),
    "accumulator-in-input-dtype": ("accumulator-in-bf16", "format of the accumulator"),
    "main-dims-overwritten": ("dims of q.k",),
    "empty-row-nan": ("empty-row-nan", "rows constant"),
    "first-tiles-unvisited": ("rows constant",),
    "tile-search-strict": ("rows constant",),
    "mask-bits-reversed": ("mask-bits-reversed-in-word",),
    "mask-of-first-request": ("mask-of-first-request", "keys read"),
    "mask-word-of-wrong-tile": ("mask-word-shifted", "keys read"),
    "mask-row-stride-of-words": ("mask-row-stride-unpadded", "keys read"),
    "mask-last-word-unread": ("mask-last-word-dropped", "keys read"),
    "mask-replaces-causal": ("mask-replaces-causal", "keys read"),
    "mask-causal-off-by-one": ("causal-too-strict", "keys read"),
    "mask-tile-lost-by-sign": ("mask-tile-skipped-by-first-word", "keys read"),
    "mask-tiles-overwritten": ("tile-skipped", "keys read"),
    "mask-last-tile-skipped": ("last-partial-tile-dropped", "tile-skipped", "keys read"),
    "mask-scale-twice": ("softmax scale", "scale-twice-for-multi-query"),
    "mask-values-of-first-head": ("tensor misread",),
    "mask-leading-nan": ("leading-masked-tile-nan", "rows constant"),
    "mask-probabilities-in-fp8": ("probabilities-in-fp8", "format of probabilities"),
    "index-past-end-clamped": ("index-past-end-clamped", "keys read"),
    "invalid-maps-to-row-0": ("invalid-maps-to-row-0",),
    "invalid-scores-zero": ("invalid-entries-score-zero", "masked-keys-score-zero"),
    "tail-entry-is-row-0": ("invalid-maps-to-row-0", "rows constant", "keys read"),
    "lengths-ignored": ("lengths-ignored", "keys read"),
    "length-rounded-to-tile": ("lengths-ignored", "keys read"),
    "lengths-of-first-row": ("lengths-of-first-row", "keys read"),
    "partial-slot-tile-dropped": ("partial-slot-tile-dropped", "last-partial-tile-dropped", "keys read"),
    "latent-dims-overwritten": ("dims of q.k",),
    "rope-key-from-latent": ("absorbed-rope-key-one-ahead",),
    "index-row-stride-of-width": ("index-rows-shifted", "keys read"),
    "last-head-unwritten": ("rows constant", "heads-past-block-unwritten"),
    "sink-ignored": ("sink-ignored",),
    "sink-in-base-2": ("sink-in-base-2", "sink logit"),
    "sink-of-first-head": ("sink-of-first-head",),
    "leading-invalid-nan": ("leading-masked-tile-nan", "rows constant"),
    "offset-product-in-int32": ("offset-product-wraps-at-32-bits",),
    "relu-missing": ("relu-missing", "slope of the ReLU"),
    "relu-after-weighting": ("relu-after-weighting",),
    "key-scale-skipped": ("key-scale-skipped",),
    "key-scale-per-block": ("key-scale-per-block", "key scale of a block"),
    "window-end-inclusive": ("window-end-inclusive", "window end"),
    "window-start-ignored": ("window-start-ignored",),
    "outside-window-zero": ("outside-window-zero",),
    "first-head-skipped": ("heads summed", "last-head-dropped"),
    "query-head-not-advanced": ("heads summed",),
    "head-weight-of-first": ("head-weight-of-next-head",),
    "head-score-in-bf16": ("head-score-in-bf16", "format of q.k of a head"),
    "tile-skipped-by-one-row": ("window-end-of-tile",),
    "negative-scores-mirrored": ("negative-scores-mirrored",),
    "nan-ranks-lowest": ("nan-ranks-lowest",),
    "low-byte-ignored": ("score bits compared",),
    "short-test-off-by-one": ("short-test-off-by-one", "short rows"),
    "row-start-ignored": ("row-start-ignored",),
    "indices-absolute": ("indices-absolute",),
    "row-end-inclusive": ("row-end-inclusive", "window end"),
    "one-tie-short": ("ties-not-filled", "ties stored"),
    "ties-not-filled": ("ties-not-filled",),
    "threshold-digit-high": ("threshold-inclusive-overfills", "threshold-one-digit-high"),
    "short-row-padded-with-zero": ("short-row-padded-with-zero",),
    "merge-weight-of-a-twice": ("merge weights",),
    "merge-one-side-base-2": ("base of a side's weight", "merge-natural-lse-as-base-2", "base of a side's LSE"),
    "merge-empties-nan": ("merge-of-empties-nan", "rows constant"),
    "merge-empties-divide-by-zero": ("merge-of-empties-nan", "rows constant"),
    "merge-empty-side-read": ("merge-empty-side-times-zero", "rows constant"),
    "merge-lse-is-max": ("merge-lse-is-max",),
    "merge-lse-log2": ("parts of the LSE",),
    "merge-b-as-contiguous": ("merge-reads-b-as-contiguous",),
    "merge-lse-of-first-head": ("merge-lse-of-first-head", "merge weights"),
    "merge-last-row-unwritten": ("merge-last-row-unwritten", "rows constant"),
    "merge-not-normalised": ("merge-not-normalised", "merge weights"),
    "tile-scale-of-first-tile": ("tile-scale-of-first-tile", "cache-scale-of-first-tile"),
    "tile-scale-of-next-tile": ("tile-scale-of-next-tile", "cache-scale-of-next-tile"),
    "tile-scale-of-neighbour-row": ("scales of a cache row",),
    "tile-scale-row-in-bytes": ("scales of a cache row",),
    "tile-scale-skipped": ("tile-scale-skipped",),
    "tile-scale-exponent-only": ("tile-scale-exponent-only", "cache-scale-exponent-only"),
    "tile-scale-not-on-values": ("tile scale on one side",),
    "tiles-interleaved": ("tiles of a cache row",),
    "rope-from-codes": ("rope of a cache row",),
    "rope-row-stride-of-codes": ("rope of a cache row",),
    "key-scale-not-on-values": ("key-scale-missing-on-values", "factor"),
    "key-scale-twice-on-values": ("key-scale-twice-on-values", "factor"),
    "key-scale-not-on-keys": ("key-scale-missing-on-keys", "softmax scale"),
    "query-scale-missing": ("query-scale-ignored", "softmax scale"),
    "page-stride-of-rows": ("cache row address",),
    "quantised-row-offset-in-int32": ("quantised-row-wraps-at-31-bits", "offset-product-wraps-at-32-bits"),
    "plain-row-offset-in-int32": ("cache row address", "offset-product-wraps-at-32-bits"),
    # The rows that wrapped offsets name are zeros on a CPU: dims of zeros are dims left out.
    "rope-offset-in-int32": ("rope of a cache row", "rope-dims-dropped"),
    "quantised-length-ignored": ("lengths-ignored", "keys read"),
    "quantised-invalid-names-row-0": ("invalid-maps-to-row-0", "keys read"),
    "quantised-index-past-end-clamped": ("index-past-end-clamped", "keys read"),
    "query-scale-ignored": ("query-scale-forgotten",),
    "query-scale-of-first-head": ("query-scale-of-first-head",),
    "query-scale-row-stride-of-weights": ("rows of query scales",),
    "compressed-from-column-0": ("compressed-from-column-0",),
    "compressed-row-stride-of-keys": ("rows of compressed scores",),
    "compressed-tail-unwritten": ("not written",),
    "paged-relu-missing": ("paged-relu-missing", "relu-missing"),
    "paged-relu-after-weighting": ("relu-after-weighting",),
    "paged-weights-of-first-query": ("weights-of-first-query", "rows of weights"),
    "paged-weights-request-stride": ("rows of weights",),
    "paged-query-scale-ignored": ("paged-query-scale-forgotten",),
    "paged-first-query-for-all": ("first-query-for-all", "rows of queries"),
    "paged-queries-overstrided": ("rows of queries",),
    "next-n-offset-missing": ("next-n-offset-missing", "end of a query"),
    "next-n-ends-with-first": ("next-n-rows-end-with-first", "end of a query"),
    "paged-query-misses-itself": ("query-misses-itself", "end of a query"),
    "partial-last-page-dropped": ("partial-last-page-dropped",),
    "table-row-of-first-request": ("table-row-of-first-request", "row of the block table"),
    "table-row-stride-of-width": ("row of the block table",),
    "context-of-first-request": ("context-of-first-request",),
    "page-scale-of-first-slot": ("page-scale-of-first-slot", "scale of a key on a page"),
    "page-scale-at-byte-stride": ("scale of a key on a page",),
    "page-scale-of-first-page": ("scale of a key on a page",),
    "page-scale-skipped": ("page-scale-skipped",),
    "page-planar-read-as-records": ("codes of a key on a page",),
    "page-gap-ignored": ("page that is read",),
    "page-offset-in-int32": ("page-offset-wraps-at-31-bits", "page that is read"),
    "paged-tail-unwritten": ("not written",),
    "paged-last-head-dropped": ("last-head-dropped", "heads summed"),
    "scale-cut-to-a-power": ("rule of scales",),
    "scale-of-a-power-doubled": ("scale-of-a-power-doubled", "rule of scales"),
    "nan-and-infinity-in-amax": ("maximum of a block",),
    "scale-floor-missing": ("scale-floor-missing",),
    "quotient-by-reciprocal": ("quotient-by-reciprocal", "values were multiplied by 1 / scale"),
    "exponent-without-bias": ("exponent byte",),
    "block-stride-of-the-row": ("blocks misread",),
    "written-offset-in-31-bits": ("written-page-wraps-at-31-bits", "offset that wraps"),
    "row-scales-overlap": ("bytes of a row",),
    "row-rope-behind-codes": ("bytes of a row",),
    "index-offset-in-31-bits": ("offset that wraps", "written-page-wraps-at-31-bits"),
    "index-codes-side-by-side": ("bytes of a page",),
    "gathered-offset-in-31-bits": ("gathered-page-wraps-at-31-bits", "offset that wraps"),
    "gathered-scale-of-first-tile": ("scale of a tile",),
    "gathered-in-bf16": ("dequantised-in-bf16",),
    "gathered-rows-unwritten": ("rows-without-a-page-left-unset", "rows not written", "not written"),
    "index-read-in-31-bits": ("offset that wraps", "gathered-page-wraps-at-31-bits"),
    "index-scale-behind-codes": ("bytes of a page",),
    "request-found-late": ("request-found-one-late", "request of a token"),
    "chunk-start-forgotten": ("chunk-start-forgotten", "start of a chunk", "every chunk began at position 0"),
    "missing-page-read": ("missing page",),
    "invalid-index-0": ("invalid-index-becomes-0", "invalid entry", "-1 became 0"),
    "index-product-in-32-bits": ("index-product-wraps-at-32-bits",),
    "valid-count-stops-at-8": ("valid count",),
    "mask-row-of-the-query": ("rows moved",),
    "mask-stored-not-combined": ("mask-words-without-atomics",),
    "mask-before-the-chunk": ("position before a chunk",),
}
#: Stages of ideas that are no entry of the catalogue.
_OF_IDEA: dict[str, Stage] = {
    "scales of a cache row": "quantised cache",
    "tile scale on one side": "quantised cache",
    "tiles of a cache row": "quantised cache",
    "rope of a cache row": "quantised cache",
    "cache row address": "gather",
    "rows of query scales": "logits",
    "rows of compressed scores": "output",
    "not written": "output",
    "rows past a request": "output",
    "dims of q.k": "scores",
    "rows of weights": "logits",
    "rows of queries": "indexer q/k",
    "row of the block table": "gather",
    "scale of a key on a page": "quantised cache",
    "codes of a key on a page": "quantised cache",
    "page that is read": "gather",
    "softmax scale": "scores",
    "keys read": "mask",
    "rows moved": "output",
    "rows constant": "output",
    "LSE base or offset": "lse",
    "parts of the LSE": "lse",
    "heads summed": "logits",
    "tensor misread": "gather",
    "score bits compared": "top-k",
    "merge weights": "merge",
    "base of a side's weight": "merge",
}
_OF_MARK: dict[str, Stage] = {"stray write": "memory", "inputs changed": "memory"}
#: Stages that one operator's answer cannot tell apart: which keys are read is decided by all three.
ALIKE: tuple[frozenset[Stage], ...] = (frozenset(("mask", "index conversion", "gather")),)
#: In an operator that is one stage of a layer, whatever goes wrong is that stage.
_ONE: dict[str, frozenset[Stage]] = {"merge_lse": frozenset(("merge", "lse", "output"))}


def ideas_of(fault: Fault) -> tuple[str, ...]:
    """Names of hypotheses that are right for a fault; empty where nobody has said."""
    if fault.name in MARKS:
        return (MARKS[fault.name],)
    if numeric(fault):
        return (fault.name,)
    return IDEAS.get(fault.name.removeprefix("triton-"), ())


def stage_of_fault(fault: Fault) -> Stage:
    """The stage at which a fault acts."""
    if fault.name in MARKS:
        mark = MARKS[fault.name]
        return _OF_MARK.get(mark, "output" if mark.startswith("output ") and "acc" not in mark else "state")
    if fault.planted_in != "triton":
        return stage_of(fault)
    if fault.operator in LAYOUT_STAGES:
        return LAYOUT_STAGES[fault.operator]
    first = next(iter(ideas_of(fault)), "")
    if first in _OF_IDEA:
        return _OF_IDEA[first]
    return stage_of(by_name(first)) if first else "output"


def alike(a: Stage, b: Stage, operator: str) -> bool:
    """Whether two stages are one, or cannot be told apart in this operator."""
    return a == b or any({a, b} <= group for group in (*ALIKE, _ONE.get(operator, frozenset())))
