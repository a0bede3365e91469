"""What reaches an operator wrong: RoPE styles, Hadamard transforms, absorption and up-projection, transfers.

The kernel is right; its inputs are mangled the way the faulty stage before it would mangle them. Inputs are taken to
come from a right pipeline: rotated dims first in the indexer (64 of them, or half of a smaller head), last in MLA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ....reference.rope import rope_tables, rotate_halves, rotate_interleaved
from ..fault import Fault, sited
from ..simulated import Kernel
from ..simulated.merge import MERGE_SITES, merge_pair
from ..wrapped import Inputs, Outputs, around, mangled

fault = sited("pipeline")
THETA = 10000.0


def _turned(x: Tensor, positions: Tensor, back: bool = False, halves: bool = False) -> Tensor:
    """x [m, r] or [m, h, r] rotated to its positions, or back from them."""
    cos, sin = rope_tables(positions.cpu(), dim=x.shape[-1], theta=THETA, dtype=torch.float32)
    rotate = rotate_halves if halves else rotate_interleaved
    turned: Tensor = rotate(x.float(), cos.to(x.device), (-sin if back else sin).to(x.device))
    return turned


def _key_positions(x: Inputs) -> Tensor:
    """Position of each indexer key in its request; requests begin where some window begins."""
    keys = torch.arange(x["k"].shape[0], device=x["k"].device)
    starts = torch.unique(torch.cat((x["ks"].long(), keys[:1])))
    starts = starts[starts < max(len(keys), 1)]
    return keys - starts[torch.searchsorted(starts, keys, right=True) - 1] if len(keys) else keys


def _query_positions(x: Inputs) -> Tensor:
    last: Tensor = (x["ke"] - x["ks"] - 1).clamp(min=0).long()
    return last


def _replaced(x: Tensor, rotated: Tensor, first: int) -> Tensor:
    """x with the dims from ``first`` on replaced by ``rotated``, in the dtype of x."""
    changed = x.float().clone()
    changed[..., first : first + rotated.shape[-1]] = rotated
    return changed.to(x.dtype)


def _rotated(x: Tensor) -> Tensor:
    return x[..., : min(64, x.shape[-1] // 2)].float()


def _as_halves(x: Tensor, positions: Tensor) -> Tensor:
    """Interleaved rotation undone and the half-split one applied."""
    return _replaced(x, _turned(_turned(_rotated(x), positions, back=True), positions, halves=True), 0)


def _both_as_halves(x: Inputs) -> Inputs:
    return {"q": _as_halves(x["q"], _query_positions(x)), "k": _as_halves(x["k"], _key_positions(x))}


def _key_as_halves(x: Inputs) -> Inputs:
    return {"k": _as_halves(x["k"], _key_positions(x))}


def _key_unrotated(x: Inputs) -> Inputs:
    return {"k": _replaced(x["k"], _turned(_rotated(x["k"]), _key_positions(x), back=True), 0)}


def _query_one_ahead(x: Inputs) -> Inputs:
    one = torch.ones(x["q"].shape[0], dtype=torch.int64)
    return {"q": _replaced(x["q"], _turned(_rotated(x["q"]), one), 0)}


def _keys_by_packed_position(x: Inputs) -> Inputs:
    """Keys rotated to their place in the batch; queries to their place in the request."""
    extra = torch.arange(x["k"].shape[0], device=x["k"].device) - _key_positions(x)
    return {"k": _replaced(x["k"], _turned(_rotated(x["k"]), extra), 0)}


def hadamard(x: Tensor) -> Tensor:
    """Orthonormal Walsh-Hadamard transform of the largest power-of-two prefix of the last dim."""
    size = 1 << (x.shape[-1].bit_length() - 1)
    y, width = x[..., :size].float(), 1
    while width < size:
        pairs = y.reshape(*x.shape[:-1], size // (2 * width), 2, width)
        y = torch.stack((pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]), -2).flatten(-3)
        width *= 2
    return _replaced(x, y * size**-0.5, 0)


def _first_half_of_keys_lost(x: Inputs) -> Inputs:
    """Keys that another machine prefilled never arrived: the older half of each request is 0."""
    k, position = x["k"].float().clone(), _key_positions(x)
    longest = int((x["ke"] - x["ks"]).amax()) if len(x["ke"]) else 0
    k[position < longest // 2] = 0
    return {"k": k.to(x["k"].dtype)}


def _newest_key_missing(x: Inputs) -> Inputs:
    k = x["k"].float().clone()
    k[(x["ke"][x["ke"] > x["ks"]] - 1).long()] = 0
    return {"k": k.to(x["k"].dtype)}


def _query_scale_missing(x: Inputs) -> Inputs:
    """The quantisation scale of the query, amax / 448 a head, never reached the weights."""
    return {"weights": x["weights"] / (x["q"].float().abs().amax(-1) / 448).clamp(min=1e-4)}


def _rope_width(x: Inputs) -> int:
    return min(64, int(x["q"].shape[-1]) // 2)


def _mha_key_one_ahead(x: Inputs) -> Inputs:
    width, k = _rope_width(x), x["k"]
    one = torch.ones(k.shape[0], dtype=torch.int64)
    return {"k": _replaced(k, _turned(k[..., -width:], one), k.shape[-1] - width)}


def _mha_key_as_halves(x: Inputs) -> Inputs:
    width, k = _rope_width(x), x["k"]
    positions = torch.cat([torch.arange(n) for n in x["cu_k"].diff().tolist()] or [torch.arange(0)])
    turned = _turned(_turned(k[..., -width:], positions, back=True), positions, halves=True)
    return {"k": _replaced(k, turned, k.shape[-1] - width)}


def _rope_key_of_first_head_only(x: Inputs) -> Inputs:
    k = x["k"].clone()
    k[:, 1:, -_rope_width(x) :] = 0
    return {"k": k}


def _nope_and_value_exchanged(x: Inputs) -> Inputs:
    """Rows of kv_b_proj are split as (value, nope) rather than (nope, value)."""
    nope, width = x["k"].shape[-1] - _rope_width(x), x["v"].shape[-1]
    both = torch.cat((x["k"][..., :nope], x["v"]), -1)
    return {"v": both[..., :width], "k": torch.cat((both[..., width:], x["k"][..., nope:]), -1)}


def _mqa_rope_key_one_ahead(x: Inputs) -> Inputs:
    c, kv = x["value_dim"], x["kv"]
    if kv.shape[1] == c:
        return {}
    one = torch.ones(kv.shape[0], dtype=torch.int64)
    return {"kv": _replaced(kv, _turned(kv[:, c:], one), c)}


def _absorbed_by_next_head(x: Inputs) -> Inputs:
    """q_nope of a head is multiplied by w_uk of the next."""
    c = x["value_dim"]
    return {"q": torch.cat((x["q"][..., :c].roll(1, 1), x["q"][..., c:]), -1)}


def _latent_normalised_twice(x: Inputs) -> Inputs:
    latent = x["kv"][:, : x["value_dim"]].float()
    norm = latent * torch.rsqrt(latent.square().mean(-1, keepdim=True) + 1e-6)
    return {"kv": _replaced(x["kv"], norm, 0)}


def _rope_dims_first(x: Inputs) -> Inputs:
    """Queries are cat(rope, latent) while the cache is cat(latent, rope)."""
    c = x["value_dim"]
    return {"q": torch.cat((x["q"][..., c:], x["q"][..., :c]), -1)}


def _prefix_twice(kernel: Kernel, x: Inputs) -> Outputs:
    """The cached context is attended on its own and again with the new tokens, and both are merged."""
    out, lse = kernel(**x)
    starts, lengths = x["cu_k"][:-1], (x["cu_k"].diff() - x["cu_q"].diff()).clamp(min=0)
    keep = torch.cat([torch.arange(s, s + n) for s, n in zip(starts.tolist(), lengths.tolist(), strict=True)])
    cu = torch.cat((x["cu_k"][:1], lengths.cumsum(0))).to(x["cu_k"].dtype)
    prefix = kernel(**{**x, "k": x["k"][keep], "v": x["v"][keep], "cu_k": cu, "causal": False})
    merged, joint = merge_pair(out.float(), lse, prefix[0].float(), prefix[1], MERGE_SITES)
    return merged.to(out.dtype), joint


def staged(theme: str) -> Callable[..., Fault]:
    """Makes faults of pipeline stages: ``stage(name, operator, description, source, check, change)``.

    The right kernel is handed ``change(inputs)``.
    """
    of_theme = sited(theme)

    def stage(
        name: str, operator: str, description: str, source: str, check: str, change: Any, **options: Any
    ) -> Fault:
        plant = mangled(operator, change)
        return of_theme(
            name, operator, description, source, check, planted_in="reference-pipeline", plant=plant, **options
        )

    return stage


stage = staged("pipeline")


PIPELINE = (
    stage(
        "indexer-rope-halves", "indexer_scores", "Query and key are rotated in halves instead of interleaved pairs.",
        "vllm#28968", "element", _both_as_halves,
    ),
    stage(
        "indexer-rope-key-halves", "indexer_scores", "The key alone is rotated in halves.", "vllm-ascend#7341",
        "element", _key_as_halves,
    ),
    stage(
        "indexer-rope-key-missing", "indexer_scores", "The key is not rotated.", "transformers#46842", "element",
        _key_unrotated,
    ),
    stage(
        "indexer-rope-query-one-ahead", "indexer_scores", "The query is rotated one position too far.", "",
        "element", _query_one_ahead,
    ),
    stage(
        "indexer-rope-packed-position", "indexer_scores", "Keys are rotated to their place in the batch.", "",
        "element", _keys_by_packed_position, options=("requests=2",),
    ),
    stage(
        "hadamard-on-query-only", "indexer_scores", "The Hadamard transform is applied to the query alone.",
        "ATOM#1507", "element", lambda x: {"q": hadamard(x["q"])},
    ),
    stage(
        "hadamard-on-key-only", "indexer_scores", "The Hadamard transform is applied to the key alone.", "ATOM#1507",
        "element", lambda x: {"k": hadamard(x["k"])},
    ),
    stage(
        "index-keys-not-transferred", "indexer_scores", "Older keys of each request are 0: their pool was not sent.",
        "TensorRT-LLM#16197", "element", _first_half_of_keys_lost,
    ),
    stage(
        "newest-index-key-missing", "indexer_scores", "The key of the current token is not in the cache yet.",
        "sglang#11892", "element", _newest_key_missing,
    ),
    stage(
        "query-scale-missing", "indexer_scores", "The query's quantisation scale is not folded into the weights.", "",
        "element", _query_scale_missing,
    ),
    stage(
        "rope-key-one-ahead", "dense_mha", "Keys are rotated one position too far.", "", "element",
        _mha_key_one_ahead,
    ),
    stage(
        "rope-key-halves", "masked_mha", "Keys are rotated in halves, queries in interleaved pairs.",
        "ik_llama.cpp#2099", "element", _mha_key_as_halves,
    ),
    stage(
        "rope-key-of-first-head-only", "dense_mha", "The shared rotated key reaches the first head only.", "",
        "element", _rope_key_of_first_head_only,
    ),
    stage(
        "nope-and-value-exchanged", "dense_mha", "kv_b_proj is split as (value, nope).", "", "element",
        _nope_and_value_exchanged,
    ),
    stage(
        "absorbed-rope-key-one-ahead", "sparse_mqa", "Rotated dims of the cache are one position ahead.", "",
        "element", _mqa_rope_key_one_ahead,
    ),
    stage(
        "absorbed-by-next-head", "sparse_mqa", "Queries are absorbed with w_uk of the next head.", "", "element",
        _absorbed_by_next_head,
    ),
    stage(
        "latent-normalised-twice", "sparse_mqa", "The latent passes through its RMS norm twice.", "", "element",
        _latent_normalised_twice,
    ),
    stage(
        "rope-dims-first", "sparse_mqa", "Queries are cat(rope, latent), cache rows cat(latent, rope).",
        "sglang-jax#1036", "element", _rope_dims_first,
    ),
    fault(
        "cached-prefix-counted-twice", "dense_mha", "Context keys enter both parts of a merge.", "vllm#27491",
        "element", options=("k>q",), planted_in="reference-pipeline", plant=around("dense_mha", _prefix_twice),
    ),
    fault(
        "other-rank-not-merged", "dense_mha", "Of keys dealt round to two ranks, one rank's are missing.",
        "vllm#54541", "element", planted_in="reference-pipeline", seen=lambda seen, cols: seen & (cols % 2 == 0),
    ),
)
