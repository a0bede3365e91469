"""How far right code may lie from the exact value of a stage, element by element, from its arithmetic alone.

First-order running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, sections 3.1 and 3.3): a sum
of n products is off by at most gamma(n) = n u / (1 - n u) times the sum of their sizes, whatever the order of the sum;
what follows carries that error on. ``u`` is the unit roundoff of the dtype that the code computes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...reference.mla import split_kv_b, up_project
from ...reference.rope import rope_frequencies, yarn_mscale
from ...reference.stages import INDEX_NORM_EPS, Model, Weights, kept, rms_norm

#: (model, weights, inputs, exact outputs, u) to one budget an output; all tensors float64.
Budget = Callable[[Model, Weights, Mapping[str, Any], tuple[Tensor, ...], float], tuple[Tensor, ...]]
#: Roundings of the last few operations of a stage: products by a weight, a scale, a cast.
_FEW = 4


def gamma(n: int, u: float) -> float:
    return n * u / (1.0 - n * u)


def _linear(x: Tensor, weight: Tensor, u: float) -> Tensor:
    return gamma(weight.shape[1] + 1, u) * (x.abs() @ weight.abs().T)


def _normalised(x: Tensor, error: Tensor, weight: Tensor, eps: float, u: float) -> Tensor:
    """Error of x / sqrt(mean(x^2) + eps) * weight for an x that is off by ``error``."""
    n = x.shape[-1]
    total = x.square().sum(-1, keepdim=True) + n * eps
    relative = (x.abs() * error).sum(-1, keepdim=True) / total + gamma(n + _FEW, u)
    return weight.abs() * (n / total).sqrt() * (error + x.abs() * (relative + _FEW * u))


def _rotated(m: Model, x: Tensor, error: Tensor, positions: Tensor, u: float, interleaved: bool) -> Tensor:
    """Error of x [s, …, r] turned: its own, that of the angles (a frequency is a power of theta), and the products."""
    frequency = rope_frequencies(m.rope, m.theta, m.yarn)
    angle = positions.double()[:, None] * frequency * (8 + math.log(m.theta)) * u
    stretch = (
        yarn_mscale(m.yarn.factor, m.yarn.mscale) / yarn_mscale(m.yarn.factor, m.yarn.mscale_all_dim) if m.yarn else 1
    )
    shape = (len(x), *[1] * (x.dim() - 2), m.rope // 2)
    angle = angle.view(shape)
    half = m.rope // 2
    pairs = ((0, 2), (1, 2)) if interleaved else ((0, 1), (half, 1))
    count = half * 2 - 1 if interleaved else half
    size, off = torch.zeros_like(angle), torch.zeros_like(angle)
    for start, step in pairs:
        size = size + x[..., start : start + count : step].abs()
        off = off + error[..., start : start + count : step]
    budget = stretch * (off + size * (angle + 5 * u))
    return budget.repeat_interleave(2, -1) if interleaved else torch.cat((budget, budget), -1)


def _q_latent(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    return (_normalised(x["hidden"] @ w.q_a.T, _linear(x["hidden"], w.q_a, u), w.q_a_norm, m.eps, u),)


def _query(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    return (_linear(x["q_c"], w.q_b, u).view(out[0].shape),)


def _kv_latent(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    both, error = x["hidden"] @ w.kv_a.T, _linear(x["hidden"], w.kv_a, u)
    c = m.latent
    return _normalised(both[:, :c], error[:, :c], w.kv_a_norm, m.eps, u), error[:, c:]


def _rotate_query(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    budget = torch.zeros_like(out[0])
    if m.rope:
        pe = x["q"][..., m.nope :]
        budget[..., m.nope :] = _rotated(m, pe, torch.zeros_like(pe), x["positions"], u, m.interleaved)
    return (budget,)


def _rotate_key(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    k = x["k_pe"]
    return (_rotated(m, k, torch.zeros_like(k), x["positions"], u, m.interleaved) if m.rope else k,)


def _placed(m: Model, x: Tensor, error: Tensor, positions: Tensor, u: float) -> Tensor:
    if m.rope:
        turned = _rotated(m, x[..., : m.rope], error[..., : m.rope], positions, u, m.index_interleaved)
        error = torch.cat((turned, error[..., m.rope :]), -1)
    if m.hadamard:
        size = gamma(m.index_dim + _FEW, u) * x.abs().sum(-1, keepdim=True)
        error = (error.sum(-1, keepdim=True) + size).expand_as(error) / math.sqrt(m.index_dim)
    return error


def _index_query(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    weight = w.need("index_q")
    value, error = (each.view(out[0].shape) for each in (x["q_c"] @ weight.T, _linear(x["q_c"], weight, u)))
    return (_placed(m, value, error, x["positions"], u),)


def _index_key(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    weight, scale, bias = w.need("index_k"), w.need("index_norm"), w.need("index_norm_bias")
    value, error = x["hidden"] @ weight.T, _linear(x["hidden"], weight, u)
    n = m.index_dim
    centred = value - value.mean(-1, keepdim=True)
    error = (
        error + error.mean(-1, keepdim=True) + gamma(n + 2, u) * (value.abs().mean(-1, keepdim=True) + centred.abs())
    )
    normal = torch.nn.functional.layer_norm(value, (n,), scale, bias, INDEX_NORM_EPS)
    error = _normalised(centred, error, scale, INDEX_NORM_EPS, u) + 2 * u * (normal.abs() + bias.abs())
    return (_placed(m, normal, error, x["positions"], u),)


def _index_weights(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    weight = w.need("index_weights")
    return (_linear(x["hidden"], weight, u) / math.sqrt(m.index_dim * m.index_heads) + _FEW * u * out[0].abs(),)


def _index_scores(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    size = torch.einsum("si,sie,te->st", x["weights"].abs(), x["index_q"].abs(), x["index_k"].abs())
    return (gamma(m.index_dim + m.index_heads + _FEW, u) * size,)


def _attention(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    return (_attended(m, w, x, x["indices"], u)[0],)


def _attended(m: Model, w: Weights, x: Mapping[str, Any], indices: Tensor, u: float) -> tuple[Tensor, Tensor]:
    """Of the output [s, h, v] and of the LSE [s, h].

    Holds for the MHA form and for the absorbed one: both add the same products, in another order.
    """
    w_uk, w_uv = split_kv_b(w.kv_b, heads=m.heads, qk_nope_head_dim=m.nope, v_head_dim=m.v)
    keys, values = up_project(x["kv_c"], x["k_pe"], w_uk, w_uv)
    key_sizes, value_sizes = up_project(x["kv_c"].abs(), x["k_pe"].abs(), w_uk.abs(), w_uv.abs())
    allowed = torch.zeros(len(indices), len(keys) + 1, dtype=torch.bool)
    allowed.scatter_(1, torch.where(indices < 0, len(keys), indices).long(), True)
    allowed = allowed[:, :-1]
    scores = torch.einsum("shd,thd->hst", x["q"], keys) * m.scale
    sizes = torch.einsum("shd,thd->hst", x["q"].abs(), key_sizes) * m.scale
    off = gamma(m.latent + m.nope + m.rope + _FEW, u) * sizes  # of a score, hence of the logarithm of its weight
    scores = scores.masked_fill(~allowed, -torch.inf)
    p = scores.softmax(-1).nan_to_num(0.0)
    moved = (p * off).sum(-1, keepdim=True)
    relative = off + moved + gamma(len(keys) + 2 * _FEW, u)
    error = torch.einsum("hst,thv->shv", p * relative, values.abs())
    error = error + gamma(m.latent + len(keys) + _FEW, u) * torch.einsum("hst,thv->shv", p, value_sizes)
    lse = scores.logsumexp(-1).nan_to_num(0.0, 0.0, 0.0)
    return error, (moved[..., 0] + gamma(len(keys) + 2 * _FEW, u) + _FEW * u * lse.abs()).T


def _rank_attention(
    m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float
) -> tuple[Tensor, ...]:
    chosen = (kept(x["indices"], rank, x["ranks"], x["interleave"]) for rank in range(x["ranks"]))
    outs, lses = zip(*(_attended(m, w, x, indices, u) for indices in chosen), strict=True)
    return torch.stack(outs), torch.stack(lses)


def _merge_ranks(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    """A weight is exp of a difference of LSEs, which is rounded relative to the larger of them."""
    lses = x["lses"]
    total = lses.logsumexp(0)
    weights = (lses - total).exp().nan_to_num(0.0)
    largest = torch.maximum(lses.nan_to_num(0.0, 0.0, 0.0).abs().amax(0), total.nan_to_num(0.0, 0.0, 0.0).abs())
    relative = gamma(len(lses) + 2 * _FEW, u) + _FEW * u * largest
    return (relative[..., None] * (weights[..., None] * x["outs"].abs()).sum(0),)


def _draft_input(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    """Position 0 is free: an engine may put zeros for its embedding."""
    halves = []
    for name, norm in (("embedded", "draft_embed_norm"), ("previous", "draft_hidden_norm")):
        value, weight = x[name], w.need(norm)
        halves.append((rms_norm(value, weight, m.eps), _normalised(value, torch.zeros_like(value), weight, m.eps, u)))
    value, error = (torch.cat(parts, -1) for parts in zip(*halves, strict=True))
    projection = w.need("draft_proj")
    budget = _linear(value, projection, u) + error @ projection.abs().T
    return (torch.where((x["positions"] == 0)[:, None], torch.inf, budget),)


def _output(m: Model, w: Weights, x: Mapping[str, Any], out: tuple[Tensor, ...], u: float) -> tuple[Tensor, ...]:
    return (_linear(x["attended"].flatten(1), w.o, u),)


#: ``select`` has none: what may be selected is decided exactly.
BUDGETS: Mapping[str, Budget] = {
    "q_latent": _q_latent,
    "query": _query,
    "kv_latent": _kv_latent,
    "rotate_query": _rotate_query,
    "rotate_key": _rotate_key,
    "index_query": _index_query,
    "index_key": _index_key,
    "index_weights": _index_weights,
    "index_scores": _index_scores,
    "attention": _attention,
    "output": _output,
    "draft_input": _draft_input,
    "rank_attention": _rank_attention,
    "merge_ranks": _merge_ranks,
}
