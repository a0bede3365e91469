"""Readings of a config, or of the maths, that are wrong in one way each, stage by stage.

A suite that finds a stage off computes what each of its misreadings gives: the one that the code agrees with is the
name of the fault. Sources: vllm#28968, huggingface/transformers#44690 and #46842, ROCm/ATOM#1507, axolotl#3832,
mlx-lm#1453 and the docstrings of ``reference/stages``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...reference import stages as right
from ...reference.rope import yarn_mscale
from ...reference.stages import Model, Weights
from . import misread_parts as parts

#: (model, weights, **inputs of the stage) to its outputs.
Wrong = Callable[..., Tensor | tuple[Tensor, ...]]
_OTHER_THETA = {10_000.0: 1_000_000.0}
_ROTATING = ("rotate_query", "rotate_key", "index_query", "index_key")


@dataclass(frozen=True, slots=True)
class Misreading:
    """``stages``: where it shows, each with what the stage then computes."""

    name: str
    told: str
    stages: dict[str, Wrong]


def _with(stage: str, change: Callable[[Model], Model]) -> Wrong:
    """A stage of another model."""
    function = getattr(right, stage)
    return lambda m, w, **inputs: function(change(m), w, **inputs)


def _changed(name: str, told: str, change: Callable[[Model], Model], *stages: str) -> Misreading:
    return Misreading(name, told, {stage: _with(stage, change) for stage in stages})


def _other_eps(m: Model) -> Model:
    return replace(m, eps=1e-5 if m.eps == 1e-6 else 1e-6)


def _other_theta(m: Model) -> Model:
    return replace(m, theta=_OTHER_THETA.get(m.theta, 10_000.0))


def _mscaled(m: Model, power: int) -> Model:
    scale = (m.nope + m.rope) ** -0.5
    return replace(m, scale=scale * (yarn_mscale(m.yarn.factor, m.yarn.mscale_all_dim) ** power if m.yarn else 1.0))


def _latent_not_normalised(m: Model, w: Weights, *, hidden: Tensor) -> Tensor:
    return hidden @ w.q_a.T


def _kv_not_normalised(m: Model, w: Weights, *, hidden: Tensor) -> tuple[Tensor, Tensor]:
    both = hidden @ w.kv_a.T
    return both[:, : m.latent], both[:, m.latent :]


def _kv_rope_first(m: Model, w: Weights, *, hidden: Tensor) -> tuple[Tensor, Tensor]:
    both = hidden @ w.kv_a.T
    return right.rms_norm(both[:, m.rope :], w.kv_a_norm, m.eps), both[:, : m.rope]


def _heads_last(m: Model, w: Weights, *, q_c: Tensor) -> Tensor:
    return (q_c @ w.q_b.T).view(len(q_c), m.nope + m.rope, m.heads).transpose(1, 2)


def _query_rope_first(m: Model, w: Weights, *, q: Tensor, positions: Tensor) -> Tensor:
    turned = right.rotate(m, q[..., : m.rope], positions, interleaved=m.interleaved)
    return torch.cat((turned, q[..., m.rope :]), -1)


def _still(function: Callable[..., Any]) -> Wrong:
    """Nothing is turned: every position is 0."""
    return lambda m, w, positions, **inputs: function(m, w, positions=positions * 0, **inputs)


def _from_zero(function: Callable[..., Any]) -> Wrong:
    return lambda m, w, positions, **inputs: function(m, w, positions=positions - positions[0], **inputs)


def _last_dims(m: Model, x: Tensor, positions: Tensor) -> Tensor:
    turned = right.rotate(m, x[..., -m.rope :], positions, interleaved=m.index_interleaved)
    return torch.cat((x[..., : -m.rope], turned), -1)


def _index_query_last(m: Model, w: Weights, *, q_c: Tensor, positions: Tensor) -> Tensor:
    flat = right.index_query(replace(m, rope=0), w, q_c=q_c, positions=positions)
    return _last_dims(m, flat, positions)


def _index_key_last(m: Model, w: Weights, *, hidden: Tensor, positions: Tensor) -> Tensor:
    flat = right.index_key(replace(m, rope=0), w, hidden=hidden, positions=positions)
    return _last_dims(m, flat, positions)


def _no_bias(m: Model, w: Weights, **inputs: Any) -> Tensor:
    return right.index_key(m, replace(w, index_norm_bias=torch.zeros_like(w.need("index_norm_bias"))), **inputs)


def _key_norm(norm: Callable[[Model, Weights, Tensor], Tensor]) -> Wrong:
    def wrong(m: Model, w: Weights, *, hidden: Tensor, positions: Tensor) -> Tensor:
        x = norm(m, w, hidden @ w.need("index_k").T)
        turned = right.rotate(m, x[..., : m.rope], positions, interleaved=m.index_interleaved) if m.rope else x[..., :0]
        return torch.cat((turned, x[..., m.rope :]), -1)

    return wrong


def _layer_norm_with_model_eps(m: Model, w: Weights, x: Tensor) -> Tensor:
    eps = m.eps if m.eps != right.INDEX_NORM_EPS else 1e-5
    return torch.nn.functional.layer_norm(x, (m.index_dim,), w.need("index_norm"), w.need("index_norm_bias"), eps)


def _scores(relu: Callable[[Tensor], Tensor], diagonal: Callable[[int, int], int | None]) -> Wrong:
    def wrong(m: Model, w: Weights, *, index_q: Tensor, index_k: Tensor, weights: Tensor) -> Tensor:
        scores = torch.einsum("si,sit->st", weights, relu(torch.einsum("sie,te->sit", index_q, index_k)))
        s, t = scores.shape
        last = diagonal(s, t)
        return (
            scores if last is None else scores.masked_fill(~torch.ones(s, t, dtype=torch.bool).tril(last), -torch.inf)
        )

    return wrong


def _last_chunk(m: Model, w: Weights, **inputs: Tensor) -> Tensor:
    scores = right.index_scores(m, w, **inputs)
    assert isinstance(scores, Tensor)
    s, t = scores.shape
    return scores.masked_fill(torch.arange(t) < t - s, -torch.inf)


def _kv_b(change: Callable[[Model, Tensor], Tensor]) -> Wrong:
    return lambda m, w, **inputs: right.attention(m, replace(w, kv_b=change(m, w.kv_b)), **inputs)


def _not_per_head(m: Model, kv_b: Tensor) -> Tensor:
    k, v = kv_b[: m.heads * m.nope], kv_b[m.heads * m.nope :]
    return torch.cat((k.view(m.heads, m.nope, -1), v.view(m.heads, m.v, -1)), 1).flatten(0, 1)


def _values_first(m: Model, kv_b: Tensor) -> Tensor:
    by_head = kv_b.view(m.heads, m.nope + m.v, -1)
    return torch.cat((by_head[:, m.v :], by_head[:, : m.v]), 1).flatten(0, 1)


def _keys_as_values(m: Model, kv_b: Tensor) -> Tensor:
    by_head = kv_b.view(m.heads, m.nope + m.v, -1).clone()
    width = min(m.nope, m.v)
    by_head[:, m.nope : m.nope + width] = by_head[:, :width]
    by_head[:, m.nope + width :] = 0.0
    return by_head.flatten(0, 1)


def _attends_to_all(m: Model, w: Weights, *, q: Tensor, kv_c: Tensor, k_pe: Tensor, indices: Tensor) -> Tensor:
    s, t = len(q), len(kv_c)
    last = torch.arange(t - s, t)[:, None]
    every = torch.arange(t).expand(s, -1)
    return right.attention(m, w, q=q, kv_c=kv_c, k_pe=k_pe, indices=torch.where(every <= last, every, -1))


def _heads_mixed(m: Model, w: Weights, *, attended: Tensor) -> Tensor:
    return attended.transpose(1, 2).flatten(1) @ w.o.T


def _weights_plain(m: Model, w: Weights, *, hidden: Tensor) -> Tensor:
    return hidden @ w.need("index_weights").T


def _causal(s: int, t: int) -> int:
    return t - s


MISREADINGS: tuple[Misreading, ...] = (
    _changed("query-norm-eps", "the query latent's norm has another epsilon", _other_eps, "q_latent"),
    Misreading("query-not-normalised", "the query latent is not normalised", {"q_latent": _latent_not_normalised}),
    Misreading("query-heads-last", "q is viewed with the heads last", {"query": _heads_last}),
    _changed("kv-norm-eps", "the latent's norm has another epsilon", _other_eps, "kv_latent"),
    Misreading("kv-not-normalised", "the latent is not normalised", {"kv_latent": _kv_not_normalised}),
    Misreading("latent-rope-first", "k_pe is taken from the front of the projection", {"kv_latent": _kv_rope_first}),
    _changed("rope-style", "the attention's RoPE turns the other pairs",
             lambda m: replace(m, interleaved=not m.interleaved), "rotate_query", "rotate_key"),
    _changed("theta-default", "RoPE has another theta, such as the default of 10000", _other_theta,
             "rotate_query", "rotate_key", "index_query", "index_key"),
    _changed("yarn-left-out", "the frequencies are not stretched by YaRN", lambda m: replace(m, yarn=None),
             "rotate_query", "rotate_key", "index_query", "index_key"),
    Misreading("query-rope-first", "the first dims of q are rotated, not the last",
               {"rotate_query": _query_rope_first}),
    Misreading("not-rotated", "nothing is rotated",
               {name: _still(getattr(right, name)) for name in _ROTATING}),
    Misreading("positions-from-zero", "positions count from the chunk's first token",
               {name: _from_zero(getattr(right, name)) for name in _ROTATING}),
    _changed("index-rope-style", "the indexer's RoPE turns the other pairs",
             lambda m: replace(m, index_interleaved=not m.index_interleaved), "index_query", "index_key"),
    Misreading("index-rope-last", "the indexer's last dims are rotated, not the first",
               {"index_query": _index_query_last, "index_key": _index_key_last}),
    _changed("hadamard-query-only", "a Hadamard rotation on this side alone",
             lambda m: replace(m, hadamard=not m.hadamard), "index_query", "index_key"),
    Misreading("index-no-bias", "the bias of the indexer's LayerNorm is left out", {"index_key": _no_bias}),
    Misreading("index-rms-norm", "the indexer's key has an RMSNorm",
               {"index_key": _key_norm(lambda m, w, x: right.rms_norm(x, w.need("index_norm"), right.INDEX_NORM_EPS))}),
    Misreading("index-norm-eps", "the indexer's LayerNorm has the model's epsilon or torch's default",
               {"index_key": _key_norm(_layer_norm_with_model_eps)}),
    Misreading("index-key-not-normalised", "the indexer's key has no norm",
               {"index_key": _key_norm(lambda m, w, x: x)}),
    Misreading("weights-no-head-factor", "the factor i^-1/2 is missing",
               {"index_weights": lambda m, w, **x: right.index_weights(m, w, **x) * m.index_heads**0.5}),
    Misreading("weights-no-dim-factor", "the factor e^-1/2 is missing",
               {"index_weights": lambda m, w, **x: right.index_weights(m, w, **x) * m.index_dim**0.5}),
    Misreading("weights-no-factor", "both factors are missing",
               {"index_weights": _weights_plain}),
    Misreading("scores-no-relu", "the ReLU of the scores is missing", {"index_scores": _scores(lambda x: x, _causal)}),
    Misreading("scores-not-causal", "keys behind the query are scored",
               {"index_scores": _scores(torch.relu, lambda s, t: None)}),
    Misreading("scores-without-self", "a query does not score its own key",
               {"index_scores": _scores(torch.relu, lambda s, t: t - s - 1)}),
    Misreading("scores-top-left", "the causal mask starts at the chunk's first key",
               {"index_scores": _scores(torch.relu, lambda s, t: 0)}),
    Misreading("scores-last-chunk", "only the last chunk's keys are scored", {"index_scores": _last_chunk}),
    _changed("scale-of-latent-dim", "the softmax scale is that of the absorbed width",
             lambda m: replace(m, scale=(m.latent + m.rope) ** -0.5), "attention"),
    _changed("scale-of-nope", "the softmax scale leaves out the rotated dims",
             lambda m: replace(m, scale=m.nope**-0.5), "attention"),
    _changed("mscale-left-out", "YaRN's mscale is missing in the softmax scale", lambda m: _mscaled(m, 0), "attention"),
    _changed("mscale-once", "YaRN's mscale is not squared", lambda m: _mscaled(m, 1), "attention"),
    Misreading("kv-b-not-per-head", "kv_b_proj is split into all keys and all values",
               {"attention": _kv_b(_not_per_head)}),
    Misreading("kv-b-values-first", "kv_b_proj has each head's values first", {"attention": _kv_b(_values_first)}),
    Misreading("keys-as-values", "the unrotated keys are taken as values", {"attention": _kv_b(_keys_as_values)}),
    Misreading("selection-ignored", "the attention sees all keys, not the selected ones",
               {"attention": _attends_to_all}),
    Misreading("draft-hidden-first", "the draft's projection takes the hidden half first",
               {"draft_input": parts.draft_hidden_first}),
    Misreading("draft-norms-exchanged", "each half of the draft's input has the other's norm",
               {"draft_input": parts.draft_norms_exchanged}),
    Misreading("draft-not-normalised", "the draft's hidden half is not normalised",
               {"draft_input": parts.draft_not_normalised}),
    Misreading("draft-embedding-late", "the draft has the embedding of its own token, not of the next",
               {"draft_input": parts.draft_embedding_late}),
    Misreading("rank-of-blocks", "ranks keep one run of keys each, not several in turn",
               {"rank_attention": parts.rank_of_blocks}),
    Misreading("rank-without-interleave", "ranks keep single keys in turn, whatever the interleave",
               {"rank_attention": parts.rank_without_interleave}),
    Misreading("rank-lse-in-base-2", "the LSE of a rank is a base-2 logarithm",
               {"rank_attention": parts.rank_lse_in_base_2}),
    Misreading("ranks-in-base-2", "ranks are weighed by powers of two of a natural LSE",
               {"merge_ranks": parts.ranks_in_base_2}),
    Misreading("ranks-averaged", "ranks are averaged", {"merge_ranks": parts.ranks_averaged}),
    Misreading("ranks-summed", "ranks are added up", {"merge_ranks": parts.ranks_summed}),
    Misreading("empty-rank-counts", "a rank without a key weighs as much as an LSE of 0",
               {"merge_ranks": parts.empty_rank_counts}),
    Misreading("output-heads-mixed", "the heads are not in order before the output projection",
               {"output": _heads_mixed}),
)  # fmt: skip


def named(m: Model, stage: str) -> tuple[Misreading, ...]:
    """The misreadings of a stage, in the order of the table."""
    return tuple(one for one in MISREADINGS if stage in one.stages)
