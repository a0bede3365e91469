"""What an implementation promises.

A contract turns "close enough" into arithmetic: the verdict derives its error budget from the number formats named
here, and normalises conventions (log base, empty rows) by it. A field is a fact about the implementation, found in its
source or by probing, never a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Format = Literal["fp64", "fp32", "fp22", "tf32", "bf16", "fp16", "e4m3", "e5m2"]

#: Largest relative error of rounding to nearest in each format. fp22 is no storage format: Hopper's fp8 tensor cores
#: keep 13 of fp32's 23 mantissa bits while they add (DeepSeek-V3 report, section 3.3.2; SageAttention2, section 3.2).
UNIT_ROUNDOFF: dict[str, float] = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "fp22": 2.0**-14,
    "tf32": 2.0**-11,
    "bf16": 2.0**-8,
    "fp16": 2.0**-11,
    "e4m3": 2.0**-4,
    "e5m2": 2.0**-3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Number formats and conventions of one implementation."""

    scores: Format = "fp32"
    """Format of the scores S = scale * q.k and of the softmax arithmetic."""
    probabilities: Format | None = "bf16"
    """Format the unnormalised probabilities exp(S - max) are rounded to before they meet V; None: that of V, which is
    bf16 where a quantised cache is widened."""
    probability_scale: float = 1.0
    """What the probabilities are multiplied by before they are rounded: 448 fills the range of e4m3."""
    dequantised: Format | None = None
    """Format that values of a cache with a scale a tile (fp8_ds_mla) are rounded to, to nearest even, once they are
    multiplied by it in fp32; None: they are used exactly. One scale for the whole cache is a factor outside the
    products and rounds nothing."""
    accumulator: Format = "fp32"
    """Format that q.k and P.V are accumulated in."""
    partials: Format | None = None
    """Format of partial outputs that are merged afterwards (split keys); None: there are none."""
    output: Format | None = None
    """Format of the output; None: that of the queries, bf16 where those are e4m3."""
    exp_error: float = 2.0**-22
    """Largest relative error of exp. 2**-22 holds for ex2.approx.ftz.f32 on NVIDIA GPUs."""
    row_sum: Literal["unrounded", "rounded"] = "unrounded"
    """Whether the softmax denominator sums the probabilities before or after they are rounded."""
    lse_base: Literal["e", "2"] | None = "e"
    """Base of the log-sum-exp that is returned, and in a merge of those that are taken; None: there is none."""
    lse_error: float = 0.0
    """Error of the LSE beyond fp32 arithmetic, in natural log units, relative to max(1, |lse|)."""
    empty_out: Literal["zero", "nan", "undefined"] = "zero"
    """Output of a query that sees no key."""
    empty_lse: Literal["-inf", "+inf", "nan", "zero", "sentinel", "undefined"] = "-inf"
    """LSE of a query that sees no key; sentinel: finite, at most -4e4 in the declared base."""
    empty_side: Literal["ignored", "undefined"] = "ignored"
    """What a merge does with a side whose LSE is -inf: whatever it holds is ignored, or nothing is promised."""
    invalid_index: Literal["ignored", "negative-ignored", "undefined"] = "ignored"
    """Index < 0 or >= n: both ignored; only the negative ones ignored; neither may occur."""
    duplicates: Literal["counted", "collapsed", "undefined"] = "counted"
    """What an index named twice in one row means."""
    head_multiple: int = 1
    """Heads are padded to a multiple of this, with whatever the memory holds, and cut off again."""
    index_space: Literal["physical", "request-local"] = "physical"
    """What an index counts: rows of the cache, or key positions of the request."""
    outside_window: Literal["-inf", "undefined"] = "-inf"
    """Scores of the indexer outside a query's window; undefined: whatever the memory held."""
    causal_alignment: Literal["bottom-right", "top-left"] = "bottom-right"
    """Which corner the causal diagonal is anchored to when a request has more keys than queries."""
    topk_order: Literal["any", "descending", "ascending"] = "any"
    """Order of selected indices where there is a choice: in a window of more than k keys."""
    topk_short: Literal["identity", "any"] = "identity"
    """Order where there is none: a window of at most k keys gives 0, 1, …, or all its positions in any order."""
    topk_ties: Literal["any", "lowest-index"] = "any"
    """Which of several equal scores at the threshold are selected."""
    scale_quotient: Literal["division", "reciprocal"] = "division"
    """How ``quantize`` gets codes where a scale is no power of two: x / scale, or x times the rounded 1 / scale."""
    scale_read: Literal["fp32", "ue8m0", "bf16"] = "fp32"
    """How stored fp32 scales are read: as they are, by their exponent alone, or rounded to bf16."""
    nonfinite: Literal["element", "undefined"] = "element"
    """NaN and infinities among the values of a block: they spoil their own code alone, or may not occur."""
    compaction: Literal["stable", "any"] = "stable"
    """Order of the valid entries that ``convert_indices`` brings to the front."""
    mask_rest: Literal["zero", "undefined"] = "zero"
    """Words of a bit mask behind the keys and rows behind the queries of a request."""
    deterministic: bool = True
    """Two runs on the same inputs agree bit for bit."""
    batch_invariant: bool = False
    """A request alone and the same request in a batch agree bit for bit."""
    graph_safe: bool = False
    """May be captured in a CUDA graph and replayed on changed buffers."""

    def __post_init__(self) -> None:
        for name in ("scores", "probabilities", "dequantised", "accumulator", "partials", "output"):
            value = getattr(self, name)
            if value is not None and value not in UNIT_ROUNDOFF:
                raise ValueError(f"contract field {name!r}: expected one of {sorted(UNIT_ROUNDOFF)}, got {value!r}")
        if not 0.0 <= self.exp_error < 1.0:
            raise ValueError(f"contract field 'exp_error': expected a relative error in [0, 1), got {self.exp_error}")
        if not 0.0 < self.probability_scale < float("inf"):
            raise ValueError(
                f"contract field 'probability_scale': expected a finite value above 0, got {self.probability_scale}"
            )
        if self.head_multiple < 1:
            raise ValueError(f"contract field 'head_multiple': expected 1 or more, got {self.head_multiple}")
        if not 0.0 <= self.lse_error < float("inf"):
            raise ValueError(f"contract field 'lse_error': expected a finite value >= 0, got {self.lse_error}")
        if self.output in ("tf32", "fp22"):
            raise ValueError(f"contract field 'output': {self.output} is no storage format; expected fp32 or another")

    def as_dict(self) -> dict[str, object]:
        """The contract as JSON-ready values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
