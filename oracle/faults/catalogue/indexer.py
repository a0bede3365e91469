"""The lightning indexer: ReLU, weights, key scales, windows."""

from __future__ import annotations

import torch
from torch import Tensor

from ..fault import sited
from ..simulated.indexer import window
from ..simulated.sites import rounded

fault = sited("indexer")
BF16 = torch.bfloat16


def floor_power_of_two(x: Tensor) -> Tensor:
    """2 ** floor(log2 x), the exponent bits alone."""
    return (x.contiguous().view(torch.int32) & 0x7F800000).view(torch.float32)


def ceil_power_of_two(x: Tensor) -> Tensor:
    """2 ** ceil(log2 x)."""
    floor = floor_power_of_two(x)
    return torch.where(floor == x, floor, 2 * floor)


def _shared_end(cols: Tensor, ks: Tensor, ke: Tensor) -> Tensor:
    """Windows that all end where the widest of their tile of 64 rows does."""
    widest = torch.cat([part.amax(0, keepdim=True).expand_as(part) for part in torch.split(ke, 64)]) if len(ke) else ke
    return window(cols, ks, torch.where(ke > ks, widest, ke))


INDEXER = (
    fault(
        "relu-missing", "indexer_scores", "The ReLU is missing: negative q.k of a head is not cut at 0.",
        "transformers#44690", "element",
        activate=lambda x: x,
    ),
    fault(
        "relu-after-weighting", "indexer_scores", "The ReLU is applied after the head weight.", "", "element",
        activate=lambda x: x, weigh=lambda x, weight: torch.relu(x * weight[:, None]),
    ),
    fault(
        "relu-after-head-sum", "indexer_scores", "The ReLU is applied to the sum over heads.", "", "element",
        activate=lambda x: x, output=torch.relu,
    ),
    fault(
        "relu-keeps-slope", "indexer_scores", "A leaky ReLU with slope 0.01 stands for the ReLU.", "", "element",
        activate=lambda x: torch.nn.functional.leaky_relu(x, 0.01),
    ),
    fault(
        "absolute-value-for-relu", "indexer_scores", "|q.k| stands for max(q.k, 0).", "", "element",
        activate=torch.abs,
    ),
    fault(
        "head-weight-of-next-head", "indexer_scores", "Each head has the weight of the next.", "", "element",
        weight=lambda weights, head: weights[:, (head + 1) % weights.shape[1]],
    ),
    fault(
        "head-weights-of-first-row", "indexer_scores", "All queries use the head weights of the first.", "", "element",
        weight=lambda weights, head: weights[:1, head].expand(weights.shape[0]),
    ),
    fault(
        "head-weights-in-bf16", "indexer_scores", "Head weights are rounded to bf16.", "axolotl#3832", "element",
        weight=lambda weights, head: rounded(weights[:, head], BF16),
    ),
    fault(
        "head-weights-not-negative", "indexer_scores", "Negative head weights are cut at 0.", "", "element",
        weight=lambda weights, head: weights[:, head].relu(),
    ),
    fault(
        "head-weights-unscaled", "indexer_scores", "n_heads^-1/2 is missing from the weights.", "", "element",
        weight=lambda weights, head: weights[:, head] * weights.shape[1] ** 0.5,
    ),
    fault(
        "last-head-dropped", "indexer_scores", "The loop over heads stops one early.", "", "element",
        heads=lambda count: range(count - 1) if count > 1 else range(0),
    ),
    fault(
        "heads-past-block-dropped", "indexer_scores", "Only the first half of the heads is summed.", "", "element",
        heads=lambda count: range(count // 2),
    ),
    fault(
        "key-scale-skipped", "indexer_scores", "Keys are not multiplied by their scale.", "", "element",
        dequantise=lambda total, k_scale: total,
    ),
    fault(
        "key-scale-twice", "indexer_scores", "Keys are multiplied by their scale twice.", "", "element",
        dequantise=lambda total, k_scale: total * k_scale * k_scale,
    ),
    fault(
        "key-scale-exponent-only", "indexer_scores", "The fp32 scale is read as an exponent.", "FlashMLA#184",
        "element", dequantise=lambda total, k_scale: total * floor_power_of_two(k_scale),
    ),
    fault(
        "key-scale-rounded-up", "indexer_scores", "The scale is rounded up to a power of two, the values are not.",
        "vllm#49435", "element", dequantise=lambda total, k_scale: total * ceil_power_of_two(k_scale),
    ),
    fault(
        "key-scale-per-block", "indexer_scores", "One scale serves a block of 64 keys.", "", "element",
        dequantise=lambda total, k_scale: total * k_scale[torch.arange(len(k_scale), device=k_scale.device) // 64 * 64],
    ),
    fault(
        "key-scale-of-neighbour", "indexer_scores", "The scale of the key before is used.", "", "element",
        dequantise=lambda total, k_scale: total * k_scale.roll(1),
    ),
    fault(
        "key-scale-in-bf16", "indexer_scores", "The scale is rounded to bf16.", "", "element",
        dequantise=lambda total, k_scale: total * rounded(k_scale, BF16),
    ),
    fault(
        "scores-through-bf16", "indexer_scores", "Scores pass through bf16.", "", "element",
        output=lambda scores: rounded(scores, BF16),
    ),
    fault(
        "scores-through-fp16", "indexer_scores", "Scores pass through fp16 and may overflow.", "", "element",
        output=lambda scores: rounded(scores, torch.float16),
    ),
    fault(
        "head-sum-in-bf16", "indexer_scores", "The sum over heads is kept in bf16.", "", "element",
        total=lambda total: rounded(total, BF16),
    ),
    fault(
        "head-score-in-bf16", "indexer_scores", "q.k of a head is rounded to bf16.", "", "element",
        dot=lambda q, k: rounded(q @ k.T, BF16),
    ),
    fault(
        "window-start-ignored", "indexer_scores", "Columns before ks are scored.", "sglang#12582", "structure",
        window=lambda cols, ks, ke: window(cols, torch.zeros_like(ks), ke),
    ),
    fault(
        "window-end-ignored", "indexer_scores", "Columns from ke on are scored.", "", "structure",
        window=lambda cols, ks, ke: cols >= ks[:, None],
    ),
    fault(
        "window-end-inclusive", "indexer_scores", "Column ke is scored.", "", "structure",
        window=lambda cols, ks, ke: window(cols, ks, ke + 1),
    ),
    fault(
        "window-end-exclusive-of-self", "indexer_scores", "The last column of the window is cut.", "ATOM#2118",
        "structure", window=lambda cols, ks, ke: window(cols, ks, ke - 1),
    ),
    fault(
        "window-end-of-tile", "indexer_scores", "The rows of a tile share the largest ke.", "vllm#47629", "structure",
        window=_shared_end,
    ),
    fault(
        "outside-window-zero", "indexer_scores", "Columns outside the window are 0, not -inf.", "", "structure",
        outside=0.0,
    ),
    fault(
        "outside-window-finite", "indexer_scores", "Columns outside the window are -10000, not -inf.", "",
        "structure", outside=-1e4,
    ),
    fault(
        "keys-read-from-first-request", "indexer_scores", "Keys are read at the request-local position.",
        "sglang#12582", "element", by_request=lambda cols, ks: cols - ks[:, None],
    ),
)  # fmt: skip
