"""Faults at exactly a size that engines use, and on values far from 1: they act on rows of ``suites/sizes`` alone.

A kernel has a path of its own for what is common, and a path for the rest that small batches take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..fault import sited
from ..simulated import Kernel
from ..simulated.sites import INF
from ..wrapped import altered, around, mangled

fault = sited("sizes")
_TILE = 64


def _swapped(operator: str, heads: int) -> Callable[[], Kernel]:
    """With exactly so many heads the two in the middle are exchanged."""

    def change(*outputs: Tensor) -> tuple[Tensor, ...]:
        order = torch.arange(outputs[0].shape[1], device=outputs[0].device)
        if len(order) == heads:
            order[heads // 2 - 1 : heads // 2 + 1] = order[heads // 2 - 1 : heads // 2 + 1].flip(0)
        return tuple(x[:, order] for x in outputs)

    return altered(operator, change)


def _through_fp16(operator: str, *names: str) -> Callable[[], Kernel]:
    """Tensors of bf16 go through fp16, which has more digits and less range."""

    def change(inputs: dict[str, Any]) -> dict[str, Any]:
        return {name: inputs[name].half().bfloat16() for name in names if inputs[name].dtype == torch.bfloat16}

    return mangled(operator, change)


def _last_key_lost_of(length: int) -> Callable[[list[int], int], tuple[int, int]]:
    return lambda cu, b: (cu[b], cu[b + 1] - (cu[b + 1] - cu[b] == length))


def _in_steps_of_95(peak: Tensor) -> Tensor:
    """A maximum is renewed when it has grown by 95, and exp overflows at 89."""
    return torch.where(peak == -INF, 0.0, torch.where(peak > 0, (peak / 95).floor() * 95, peak))


def _not_zero(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys of zeros are padding: they are moved to where no score reaches."""
    return q, k, torch.where((k == 0).all(-1, keepdim=True), 0.0, v)


def _no_diagonal_behind_a_decode(kernel: Kernel, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
    """The flag that a batch is all decodes is that of its first request."""
    alone = inputs["cu_q"][1] - inputs["cu_q"][0] == 1
    return kernel(**{**inputs, "causal": bool(inputs["causal"] and not alone)})


def _last_slot_lost(heads: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(inputs: dict[str, Any]) -> dict[str, Any]:
        indices = inputs["indices"]
        if (inputs["q"].shape[1], indices.shape[1]) != (heads, 2048):
            return {}
        return {"indices": torch.where(torch.arange(2048, device=indices.device) == 2047, -1, indices)}

    return change


def _ends_with_an_invalid_tile(inputs: dict[str, Any]) -> dict[str, Any]:
    """The loop ends at the first tile of 64 slots without a valid one behind a tile that has one."""
    indices = inputs["indices"]
    tile = torch.arange(indices.shape[1], device=indices.device) // _TILE
    tiles = int(tile[-1]) + 1
    used = torch.zeros(len(indices), tiles, dtype=torch.int64, device=indices.device)
    used.scatter_add_(1, tile.expand_as(indices), ((indices >= 0) & (indices < len(inputs["kv"]))).long())
    ended = ((used == 0) & (used.cumsum(1) > 0)).long().cumsum(1) > 0
    return {"indices": torch.where(ended[:, tile], -1, indices)}


def _share_of_exponentials(lse: Tensor, sink: Tensor) -> Tensor:
    """exp(lse) / (exp(lse) + exp(sink)) as it is written, which overflows at 89."""
    share = torch.exp(lse) / (torch.exp(lse) + torch.exp(sink.float()))
    return torch.where((lse == -INF) | (sink == INF), 0.0, share)


def _weight_of_the_last_head(heads: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """With query scales and exactly so many heads the last weight is 0."""

    def change(inputs: dict[str, Any]) -> dict[str, Any]:
        weights = inputs["weights"]
        if inputs.get("q_scale") is None or weights.shape[1] != heads:
            return {}
        return {"weights": torch.where(torch.arange(heads, device=weights.device) == heads - 1, 0.0, weights)}

    return change


def _even_start(cols: Tensor, ks: Tensor, ke: Tensor) -> Tensor:
    """Past 2048 columns a window starts at an even one."""
    return (cols >= torch.where(ks > 2048, ks - ks % 2, ks)[:, None]) & (cols < ke[:, None])


def _pages_of_the_same_prompt(inputs: dict[str, Any]) -> dict[str, Any]:
    """Requests that begin with one page are taken to be one prompt: they read the pages of the first."""
    table, lengths = inputs["block_table"], inputs["context_lens"]
    same = (table[:, :1] == table[:1, :1]) & (lengths > 0)[:, None]
    return {"block_table": torch.where(same, table[:1], table)} if bool(lengths[0] > 0) else {}


def _one_key_more_than(k: int) -> Callable[..., tuple[Tensor]]:
    def body(kernel: Kernel, inputs: dict[str, Any]) -> tuple[Tensor]:
        """A window of k + 1 columns is taken for one of k."""
        (indices,) = kernel(**inputs)
        short = ((inputs["ke"] - inputs["ks"] == k + 1) & (inputs["k"] == k))[:, None]
        return (torch.where(short, torch.arange(inputs["k"], device=indices.device), indices).to(indices.dtype),)

    return body


def _infinity_as_nan(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"scores": inputs["scores"].nan_to_num(nan=INF, posinf=INF, neginf=-INF)}


def _few_candidates(kernel: Kernel, inputs: dict[str, Any]) -> tuple[Tensor]:
    """A buffer for 16,384 equal scores: rows with more of them select its first columns."""
    (indices,) = kernel(**inputs)
    crowded = ((inputs["scores"] == 0).sum(1) > 16384)[:, None] & (inputs["ke"] - inputs["ks"] > inputs["k"])[:, None]
    return (torch.where(crowded, torch.arange(inputs["k"], device=indices.device), indices).to(indices.dtype),)


def _far_below(inputs: dict[str, Any]) -> dict[str, Any]:
    """An LSE below -1000 is taken for the -inf of an empty side."""
    return {name: torch.where(inputs[name] < -1000, -INF, inputs[name]) for name in ("lse_a", "lse_b")}


def _nan_cleaned(kernel: Kernel, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
    """An empty side has weight 0 and its NaN is cleaned; an infinity there becomes a NaN."""
    out, lse = kernel(**inputs)
    left = torch.zeros_like(out)
    for side in ("a", "b"):
        empty = (inputs[f"lse_{side}"] == -INF)[..., None]
        left += torch.where(empty & ~inputs[f"out_{side}"].isnan(), inputs[f"out_{side}"] * 0, 0)
    return out + left, lse


def _large_scale_clamped(amax: Tensor, least_amax: float, least_scale: float) -> Tensor:
    scale = (amax.clamp_min(least_amax) / torch.full_like(amax, 448.0)).clamp_min(least_scale)
    return scale.clamp(max=2.0**90)


def _times_reciprocal(inputs: dict[str, Any]) -> dict[str, Any]:
    """Values are multiplied by the rounded 1 / k_scale."""
    if inputs["cache_format"] != "fp8_e4m3":
        return {}
    factor = 1 / torch.tensor(inputs["k_scale"], dtype=torch.float32)
    return {**{name: inputs[name].float() * factor for name in ("latent", "rope")}, "k_scale": 1.0}


def _ascending_slots(inputs: dict[str, Any]) -> dict[str, Any]:
    """A token is written if its slot is behind those before it."""
    slots = inputs["slots"]
    return {"slots": torch.where(slots < torch.cummax(slots, 0).values, -1, slots)} if len(slots) else {}


def _three_bits_of_the_start(inputs: dict[str, Any]) -> dict[str, Any]:
    """The page at which a request starts is kept in three bits."""
    starts, size = inputs["starts"], inputs["cache"].shape[1]
    return {"starts": starts - starts // size // 8 * 8 * size}


SIZES = (
    fault(
        "exactly-64-heads-two-exchanged", "dense_mha", "With 64 heads the two in the middle are exchanged.", "",
        "element", plant=_swapped("dense_mha", 64), options=("reach=exactly-64-heads",),
    ),
    fault(
        "context-of-1024-loses-a-key", "dense_mha", "Exactly 1024 keys: the last is not seen.", "", "element",
        key_range=_last_key_lost_of(1024), options=("reach=drafts-and-contexts",),
    ),
    fault(
        "four-drafts-miss-themselves", "dense_mha", "Exactly four queries have the diagonal one key early.", "",
        "element", last_key=lambda rows, q, k: rows + (k - q) - int(q == 4), options=("reach=drafts-and-contexts",),
    ),
    fault(
        "values-through-fp16", "dense_mha", "Values of bf16 are copied to fp16 for the second product.", "", "element",
        plant=_through_fp16("dense_mha", "v"), options=("reach=powers",),
    ),
    fault(
        "zero-keys-weigh-nothing", "dense_mha", "Values of keys that are zero are taken for padding.", "", "element",
        inputs=_not_zero, options=("reach=blank",),
    ),
    fault(
        "maximum-renewed-in-steps-of-95", "masked_mha", "A maximum is renewed when it has grown by 95.", "",
        "structure", block_k=4096, base=_in_steps_of_95,
        log=lambda peak, total: _in_steps_of_95(peak) + torch.log(total), options=("reach=climbing",),
    ),
    fault(
        "diagonal-of-the-first-request", "masked_mha", "Behind a decode no request is causal.", "", "element",
        plant=around("masked_mha", _no_diagonal_behind_a_decode), options=("reach=prefills-behind-a-decode",),
    ),
    fault(
        "top-2048-of-64-heads-loses-a-slot", "sparse_mqa", "64 heads and top-2048: the last slot is not read.", "",
        "element", plant=mangled("sparse_mqa", _last_slot_lost(64)), options=("reach=top-2048-of-64-heads",),
    ),
    fault(
        "ends-with-an-invalid-tile", "sparse_mqa", "A tile of slots without a key ends the row.", "", "element",
        plant=mangled("sparse_mqa", _ends_with_an_invalid_tile), options=("reach=islands",),
    ),
    fault(
        "rows-through-fp16", "sparse_mqa", "Queries and cache rows of bf16 go through fp16.", "", "element",
        plant=_through_fp16("sparse_mqa", "q", "kv"), options=("reach=powers",),
    ),
    fault(
        "sink-share-without-maximum", "sparse_mqa", "exp(lse) overflows beside a sink.", "", "structure",
        sink=_share_of_exponentials, options=("reach=large-scores-beside-a-sink",),
    ),
    fault(
        "query-scales-of-64-heads-lose-one", "indexer_scores", "With query scales the last of 64 weights is lost.", "",
        "element", plant=mangled("indexer_scores", _weight_of_the_last_head(64)),
        options=("reach=exactly-64-heads-e4m3",),
    ),
    fault(
        "window-far-out-starts-even", "indexer_scores", "Past 2048 columns a window starts at an even one.", "",
        "structure", window=_even_start, options=("reach=windows-far-and-empty",),
    ),
    fault(
        "context-of-1024-misses-itself", "paged_indexer_scores", "Exactly 1024 keys: the last is left out.", "",
        "structure", end=lambda length, m, query: length - m + query + (length != 1024), options=("reach=contexts",),
    ),
    fault(
        "same-first-page-same-prompt", "paged_indexer_scores", "Requests that share a page read those of the first.",
        "", "element", plant=mangled("paged_indexer_scores", _pages_of_the_same_prompt),
        options=("reach=shared-prefix",),
    ),
    fault(
        "window-past-2048-taken-as-short", "topk_select", "With top-2048 a window of 2049 columns counts as short.", "",
        "topk", plant=around("topk_select", _one_key_more_than(2048)), options=("reach=window-past-2048",),
    ),
    fault(
        "infinity-ranks-with-nan", "topk_select", "NaN is replaced by +inf before scores are ranked.", "", "topk",
        plant=mangled("topk_select", _infinity_as_nan), options=("reach=specials",),
    ),
    fault(
        "equal-scores-past-16384-dropped", "topk_select", "A buffer holds 16,384 equal scores.", "", "topk",
        plant=around("topk_select", _few_candidates), options=("reach=crowded-bin",),
    ),
    fault(
        "merge-low-side-taken-as-empty", "merge_lse", "An LSE below -1000 is taken for that of an empty side.", "",
        "structure", plant=mangled("merge_lse", _far_below), options=("reach=powers",),
    ),
    fault(
        "merge-infinity-of-an-empty-side", "merge_lse", "NaN of an empty side is cleaned, an infinity is not.", "",
        "structure", plant=around("merge_lse", _nan_cleaned), options=("reach=leftovers",),
    ),
    fault(
        "scales-past-2-90-clamped", "quantize", "Scales are at most 2**90.", "", "exact", floor=_large_scale_clamped,
        options=("reach=large",),
    ),
    fault(
        "k-scale-by-reciprocal", "write_cache", "Values are multiplied by the rounded 1 / k_scale.", "", "exact",
        plant=mangled("write_cache", _times_reciprocal), options=("dtype=fp32", "fp8_e4m3", "kind=edges"),
    ),
    fault(
        "slots-taken-as-ascending", "write_index", "A token whose slot is before another's is not written.", "",
        "exact", plant=mangled("write_index", _ascending_slots), options=("reach=reversed",),
    ),
    fault(
        "start-page-in-three-bits", "gather", "The page at which a request starts is kept in three bits.", "", "exact",
        plant=mangled("gather", _three_bits_of_the_start), options=("reach=late",),
    ),
    fault(
        "late-positions-lose-the-first", "build_mask", "Behind position 1024 the first key of a span is lost.", "",
        "exact", plant=mangled("build_mask", lambda a: {"indices": _without_first(a)}), options=("reach=late",),
    ),
)  # fmt: skip


def _without_first(inputs: dict[str, Any]) -> Tensor:
    request = torch.repeat_interleave(inputs["cu_q"].diff().long())
    start = inputs["starts"][request][:, None]
    indices = inputs["indices"]
    return torch.where((indices == start) & (start >= 1024), -1, indices)
