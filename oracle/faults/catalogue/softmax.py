"""Softmax and scale: what goes wrong between q.k and the weights."""

from __future__ import annotations

import torch
from torch import Tensor

from ..fault import sited
from ..simulated.sites import rounded

fault = sited("softmax")


def truncated(x: Tensor) -> Tensor:
    """fp32 cut to the bits of bf16 instead of rounded."""
    return (x.view(torch.int32) & -65536).view(torch.float32)


def _prescaled(q: Tensor, scale: float) -> tuple[Tensor, float]:
    return (q.float() * scale).to(q.dtype), 1.0


def _rippled_exp(x: Tensor) -> Tensor:
    return torch.exp(x) * (1 + 1e-3 * torch.cos(40 * x.clamp(min=-100.0)))


SOFTMAX = (
    fault(
        "scale-off-1-percent", "dense_mha", "The softmax scale is 1% too large.", "", "element",
        scale=lambda scale, q_len: scale * 1.01,
    ),
    fault(
        "scale-off-0.1-percent", "sparse_mqa", "The softmax scale is 0.1% too large.", "", "lse",
        scale=lambda scale, q_len: scale * 1.001,
    ),
    fault(
        "scale-from-latent-width", "sparse_mqa",
        "Absorbed queries are scaled by their own width, (c + r)^-1/2, not by that of the MHA form.", "", "element",
        prescale=lambda q, scale: (q, q.shape[-1] ** -0.5),
    ),
    fault(
        "scale-missing", "masked_mha", "Scores are not scaled.", "", "element",
        scale=lambda scale, q_len: 1.0,
    ),
    fault(
        "scale-rounded-to-bf16", "dense_mha", "The softmax scale is held in bf16.", "mlx#3119", "lse",
        scale=lambda scale, q_len: float(torch.tensor(scale).bfloat16()),
    ),
    fault(
        "scale-twice-for-multi-query", "dense_mha", "Requests with several queries are scaled twice.", "", "element",
        scale=lambda scale, q_len: scale * scale if q_len > 1 else scale,
    ),
    fault(
        "query-prescaled-in-bf16", "masked_mha", "The scale is folded into the queries, which are rounded again.",
        "flashinfer#799", "lse", prescale=_prescaled,
    ),
    fault(
        "exp2-without-log2e", "sparse_mqa", "exp2 is taken of scores that were not multiplied by log2(e).",
        "flashinfer#787", "element", exp=torch.exp2,
    ),
    fault(
        "log2e-in-bf16", "dense_mha", "log2(e) is a bf16 constant: the temperature is off by 0.2%.", "", "lse",
        exp=lambda x: torch.exp2(x * 1.4453125),
    ),
    fault(
        "softcap-left-on", "dense_mha", "Scores pass through 50 tanh(s / 50), another model's soft cap.", "", "element",
        score=lambda qk, scale: 50 * torch.tanh(qk * scale / 50),
    ),
    fault(
        "accumulator-not-rescaled", "dense_mha", "The accumulator keeps its scale when the maximum grows.", "",
        "element", decay_acc=torch.ones_like,
    ),
    fault(
        "sum-not-rescaled", "sparse_mqa", "The denominator keeps its scale when the maximum grows.", "", "element",
        decay_sum=torch.ones_like,
    ),
    fault(
        "small-rescale-skipped", "masked_mha",
        "The accumulator is not rescaled when the maximum grows by less than 0.5, though the denominator is.", "",
        "element", decay_acc=lambda decay: torch.where(decay > 0.6, torch.ones_like(decay), decay),
    ),
    fault(
        "sum-keeps-only-last-tile", "dense_mha", "The denominator forgets all tiles but the last.", "", "element",
        decay_sum=torch.zeros_like,
    ),
    fault(
        "max-starts-at-zero", "dense_mha", "The running maximum starts at 0: very negative scores underflow.", "",
        "element", options=("kind=negative",), start=0.0,
    ),
    fault(
        "leading-masked-tile-nan", "sparse_mqa",
        "Before any valid key, -inf is subtracted from -inf: rows that start with invalid entries become NaN.",
        "vllm#48366", "structure", options=("leading",), base=lambda peak: peak, skip=lambda seen: False,
    ),
    fault(
        "finite-mask-sentinel", "dense_mha", "Masked scores are -10000 rather than -inf, and an empty row sums them.",
        "flashinfer#4452", "element", masked=lambda s, seen: s.masked_fill(~seen, -1e4),
    ),
    fault(
        "masked-keys-score-zero", "dense_mha", "Masked and padded keys score 0 and count in the denominator.", "",
        "element", masked=lambda s, seen: s.masked_fill(~seen, 0.0),
    ),
    fault(
        "invalid-entries-score-zero", "sparse_mqa", "Invalid entries load zeros and count with score 0.", "",
        "element", options=("invalid",), masked=lambda s, seen: s.masked_fill(~seen, 0.0),
    ),
    fault(
        "sum-in-bf16", "masked_mha", "The denominator is kept in bf16.", "", "element",
        total=lambda total: rounded(total, torch.bfloat16),
    ),
    fault(
        "sum-of-rounded-probabilities", "dense_mha",
        "The denominator sums rounded probabilities while the contract says unrounded.", "", "lse",
        summand=lambda p, p_rounded: p_rounded,
    ),
    fault(
        "exp-ripple", "dense_mha", "exp oscillates around its value by 0.1%, a poor polynomial.", "", "lse",
        exp=_rippled_exp,
    ),
    fault(
        "exp-biased", "sparse_mqa", "exp is 0.2% too large for arguments below -1.", "", "lse",
        exp=lambda x: torch.exp(x) * (1 + 2.0**-9 * (x < -1)),
    ),
    fault(
        "probabilities-truncated", "dense_mha", "Probabilities are cut to bf16, not rounded.", "arXiv 2510.04212",
        "bias", probabilities=lambda p, dtype: truncated(p),
    ),
    fault(
        "probabilities-in-fp8", "sparse_mqa", "Probabilities meet V in e4m3, undeclared.", "", "element",
        probabilities=lambda p, dtype: rounded(p, torch.float8_e4m3fn),
    ),
    fault(
        "small-probabilities-flushed", "sparse_mqa", "Probabilities below 2^-9 become 0, as in e4m3 without a scale.",
        "arXiv 2606.06521", "element", options=("kind=sinktoken",),
        probabilities=lambda p, dtype: rounded(p, torch.bfloat16).masked_fill(p < 2.0**-9, 0.0),
    ),
    fault(
        "probabilities-saturate", "masked_mha", "Probabilities are scaled by 512 for e4m3 and saturate at 448.",
        "flash-attention#2716", "element",
        probabilities=lambda p, dtype: rounded(p.clamp(max=448 / 512), torch.bfloat16),
    ),
    fault(
        "scores-in-bf16", "masked_mha", "Scores are rounded to bf16 before the softmax.", "", "element",
        score=lambda qk, scale: rounded(qk * scale, torch.bfloat16),
    ),
    fault(
        "scores-in-fp16", "sparse_mqa", "q.k is held in fp16: coarse, and infinite beyond 65504.",
        "arXiv 2503.01873", "lse", dot=lambda q, k: rounded(q @ k.transpose(-1, -2), torch.float16),
    ),
)
