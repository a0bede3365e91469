"""Properties 28 to 32: heads, a selection of everything, sets of keys, and the two forms of MLA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .call import Arguments, Call, alike, equal, lse_of
from .claim import Claim, DoesNotApply, near
from .keys import coarse, freed, halves, opened, packed, require_model_cache, visible
from .parts import combined
from .siblings import dense_sibling


def head_order(call: Call) -> Iterator[Claim]:
    """Heads in another order have their answers in that order ~; equal heads have equal answers ~."""
    a, answer = call.plain()
    h = (a["out_a"] if call.name == "merge_lse" else a["q"]).shape[1]
    if h < 2:
        raise DoesNotApply("the case has one head")
    order = torch.arange(h - 1, -1, -1, device=answer.out.device)
    with_heads: tuple[str, ...] = ("q", "k", "v") if packed(call) else ("q",)
    if call.name == "merge_lse":
        with_heads = ("out_a", "lse_a", "out_b", "lse_b")
    turned = {**a, **{name: a[name][:, order] for name in with_heads}}
    if a.get("sink") is not None:
        turned["sink"] = a["sink"][order]
    yield from alike("of heads in another order", call.answer(turned), answer, slice(None), (slice(None), order))
    first = torch.zeros_like(order)
    equals = {**a, **{name: a[name][:, first].contiguous() for name in with_heads}}
    if a.get("sink") is not None:
        equals["sink"] = a["sink"][first].contiguous()
    yield from alike("of equal heads", call.answer(equals), answer, slice(None), (slice(None), first))


def all_selected(call: Call) -> Iterator[Claim]:
    """A selection of all keys, in any number of slots, is dense attention ~."""
    a, _ = opened(call)
    require_model_cache(a)
    used = visible(call, a).any(0).nonzero()[:, 0]
    width = max(a["indices"].shape[1], len(used))
    call.require(topk=width)
    indices = torch.full((len(a["q"]), width), -1, dtype=a["indices"].dtype, device=used.device)
    indices[:, : len(used)] = used.to(indices.dtype)
    answer = call.answer({**a, "indices": indices})
    rows = a["kv"][used]
    sibling = dense_sibling(call, d=rows.shape[1], v=a["value_dim"])
    yield from alike("against dense attention", answer, sibling.answer(_dense(a, rows, rows[:, : a["value_dim"]])))


def _dense(a: Arguments, keys: torch.Tensor, values: torch.Tensor) -> dict[str, Any]:
    """Dense attention of all queries, as one request, over keys and values [t,·] that the heads share."""
    h = a["q"].shape[1]
    ends = {
        name: torch.tensor([0, n], dtype=torch.int32, device=keys.device)
        for name, n in (("cu_q", len(a["q"])), ("cu_k", len(keys)))
    }
    spread = {name: x[:, None].expand(-1, h, -1).contiguous() for name, x in (("k", keys), ("v", values))}
    return {"q": a["q"], **spread, **ends, "scale": a["scale"], "causal": False}


def monotone_sets(call: Call) -> Iterator[Claim]:
    """More keys never lower the LSE: L(I1 u I2) >= L(I1), L(I2); of disjoint sets it is their logsumexp ~."""
    a, whole = opened(call)
    lse, allowed = lse_of(whole)
    parts = [call.answer(part) for part in halves(call, a)]
    for which, part in zip(("first", "second"), parts, strict=True):
        own, own_allowed = lse_of(part)
        yield near(f"lse of the {which} half against all", torch.maximum(own, lse), lse, own_allowed + allowed)
    _, _, merged, merged_allowed = combined(*parts)
    yield near("logsumexp of disjoint halves", merged, lse, merged_allowed + allowed)


def rope_is_no_value(call: Call) -> Iterator[Claim]:
    """Rope dims act through scores alone: where the rope part of Q is 0, that of the cache does not matter ==."""
    a, _ = opened(call)
    require_model_cache(a)
    q, kv, c = a["q"].clone(), a["kv"].clone(), a["value_dim"]
    q[..., c:] = 0.0
    kv[..., c:] = torch.where(torch.isnan(kv[..., c:]), kv[..., c:], coarse(kv[..., c:] + 1.0))
    with_rope = call.answer({**a, "q": q})
    yield from equal(call, "with other rope dims in the cache", call.answer({**a, "q": q, "kv": kv}), with_rope)


def absorbed(call: Call) -> Iterator[Claim]:
    """MLA absorbed, (q W_uk, latent), ~ MLA unabsorbed, (q, W_uk latent), with W_uv applied to the output or to values.

    The weights are signs and zeros, a dim of the latent for each of a head's, so both forms get exact numbers.
    """
    a, _ = freed(call)
    c, h = a["value_dim"], a["q"].shape[1]
    used = visible(call, a).any(0).nonzero()[:, 0]
    call.require(topk=max(a["indices"].shape[1], len(used)))
    nope = c // 2
    # W_uk of head j takes latent dims j, j + 2, …: a signed selection, so q W_uk and W_uk latent are exact.
    picks = [(2 * torch.arange(nope, device=used.device) + head % 2) % c for head in range(h)]
    signs = torch.where(torch.arange(nope, device=used.device) % 3 == 0, -1.0, 1.0)
    given = freed(call)[0]["q"]
    q_nope = coarse(torch.linspace(-1, 1, nope, device=used.device)).to(given.dtype).expand(len(given), h, nope)
    q = torch.zeros_like(given)
    q[..., c:] = given[..., c:]
    rows = a["kv"][used]
    keys = torch.empty(len(used), h, nope + rows.shape[1] - c, dtype=rows.dtype, device=rows.device)
    values = torch.empty(len(used), h, nope, dtype=rows.dtype, device=rows.device)
    for head, dims in enumerate(picks):
        q[:, head, dims] = q_nope[:, head] * signs.to(q.dtype)
        keys[:, head, :nope] = rows[:, dims] * signs.to(rows.dtype)
        keys[:, head, nope:] = rows[:, c:]
        values[:, head] = rows[:, dims]
    width = max(a["indices"].shape[1], len(used))
    indices = torch.full((len(q), width), -1, dtype=a["indices"].dtype, device=used.device)
    indices[:, : len(used)] = used.to(indices.dtype)
    answer = call.answer({**a, "q": q, "indices": indices})
    dense = _dense(a, rows, rows[:, :c]) | {"k": keys, "v": values}
    dense["q"] = torch.cat((q_nope, given[..., c:]), -1)
    unabsorbed = dense_sibling(call, d=keys.shape[2], v=nope).answer(dense)
    for head, dims in enumerate(picks):
        got, allowed = answer.out[:, head][:, dims], answer.allowed[:, head][:, dims]
        yield near(
            f"out of head {head}, unabsorbed", got, unabsorbed.out[:, head], allowed + unabsorbed.allowed[:, head]
        )
