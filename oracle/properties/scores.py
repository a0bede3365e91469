"""Properties 17 to 23: what moves scores, and by how much the LSE follows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .call import Arguments, Call, alike, equal, lse_of
from .claim import Claim, DoesNotApply, near
from .keys import (
    coarse,
    counted_indices,
    every_key,
    freed,
    opened,
    packed,
    regrouped,
    visible,
)

#: A key that leads all others by so much leaves them exp(-30), 1e-13, of the weight.
DOMINANT = 30.0


def score_shift(call: Call) -> Iterator[Claim]:
    """K + 1 w^T moves all scores of a query by scale q.w: O stays ~, L moves by as much; so do both LSEs of a merge."""
    if call.name == "merge_lse":
        yield from _merge_shift(call)
        return
    a, answer = freed(call)
    keys = a["k"] if packed(call) else a["kv"]
    w = coarse(torch.linspace(-0.5, 0.5, keys.shape[-1], device=keys.device)).to(keys.dtype)
    if not packed(call):
        w = w.clone()
        w[: a["value_dim"]] = 0.0
    moved = call.answer({**a, ("k" if packed(call) else "kv"): keys + w})
    shift = a["scale"] * a["q"].double() @ w.double()
    yield near("out after a shift of all scores", moved.out, answer.out, moved.allowed + answer.allowed)
    if answer.lse is not None and moved.lse is not None:
        assert answer.lse_allowed is not None and moved.lse_allowed is not None
        allowed = answer.lse_allowed + moved.lse_allowed
        yield near("lse after a shift of all scores", moved.lse, answer.lse + shift, allowed)


def _merge_shift(call: Call) -> Iterator[Claim]:
    a, answer = call.plain()
    step = 8.0
    there = torch.isfinite(a["lse_a"]) | torch.isfinite(a["lse_b"])
    moved_sides = {f"lse_{x}": a[f"lse_{x}"] + step for x in "ab"}
    # A sum of fp32 numbers may round: then the two sides moved by different amounts, and their distance with them.
    exact = torch.ones_like(there)
    for x in "ab":
        side = a[f"lse_{x}"]
        exact &= ~torch.isfinite(side) | ((moved_sides[f"lse_{x}"] - step) == side)
    rows = there & exact
    moved = call.answer({**a, **moved_sides})
    yield near("out with both LSEs moved", moved.out[rows], answer.out[rows], (moved.allowed + answer.allowed)[rows])
    lse, lse_allowed = lse_of(answer)
    assert moved.lse is not None and moved.lse_allowed is not None
    by = step * (math.log(2.0) if call.contract.lse_base == "2" else 1.0)
    yield near("lse with both moved", moved.lse[rows], lse[rows] + by, (moved.lse_allowed + lse_allowed)[rows])


def scale_exchange(call: Call) -> Iterator[Claim]:
    """A power of two moved between Q, K and the scale changes nothing ==: (2Q, K, s/2), (Q, 2K, s/2), (2Q, K/2, s)."""
    a, answer = freed(call)
    half = a["scale"] / 2
    ways: list[tuple[str, dict[str, Any]]] = [("(2Q, K, s/2)", {**a, "q": a["q"] * 2, "scale": half})]
    if packed(call):
        ways.append(("(Q, 2K, s/2)", {**a, "k": a["k"] * 2, "scale": half}))
        ways.append(("(2Q, K/2, s)", {**a, "q": a["q"] * 2, "k": a["k"] / 2}))
    for what, changed in ways:
        yield from equal(call, f"of {what}", call.answer(changed), answer)


def rotation(call: Call) -> Iterator[Claim]:
    """Q R and K R have the scores of Q and K ~, for a signed permutation R of the dims, and for a rotation.

    The rotation is one that stays exact: halves of a Hadamard matrix on four dims at a time; the signed permutation
    turns neighbouring pairs by a quarter, as RoPE does at a position that all tokens share.
    """
    a, answer = freed(call)
    for what, turn in (("turned by a quarter", _quarter), ("rotated", _hadamard)):
        if packed(call):
            changed = {**a, "q": turn(a["q"]), "k": turn(a["k"])}
        else:
            c = a["value_dim"]
            kv = torch.cat((a["kv"][..., :c], turn(a["kv"][..., c:])), -1)
            changed = {**a, "q": torch.cat((a["q"][..., :c], turn(a["q"][..., c:])), -1), "kv": kv}
        yield from alike(f"with q and k {what}", call.answer(changed), answer)


def _quarter(x: Tensor) -> Tensor:
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    return torch.stack((-pairs[..., 1], pairs[..., 0]), -1).flatten(-2)


def _hadamard(x: Tensor) -> Tensor:
    signs = x.new_tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=torch.float32)
    turned: Tensor = x.float().reshape(*x.shape[:-1], -1, 4) @ (signs / 2)
    return turned.flatten(-2).to(x.dtype)


def repeated_keys(call: Call) -> Iterator[Claim]:
    """Every key twice leaves O as it is ~ and raises L by ln 2; merging an answer with itself does the same."""
    if call.name == "merge_lse":
        a, _ = call.plain()
        there = torch.isfinite(a["lse_a"])
        twice = call.answer({**a, "out_b": a["out_a"], "lse_b": a["lse_a"]})
        yield near("out merged with itself", twice.out[there], a["out_a"].double()[there], twice.allowed[there])
        lse, allowed = lse_of(twice)
        by = math.log(2.0) if call.contract.lse_base == "2" else 1.0
        want = a["lse_a"].double() * by + math.log(2.0)
        yield near("lse merged with itself", lse[there], want[there], allowed[there])
        return
    a, answer = opened(call)
    twice = call.answer(_doubled(call, a))
    yield near("out with every key twice", twice.out, answer.out, twice.allowed + answer.allowed)
    if answer.lse is not None and twice.lse is not None:
        assert answer.lse_allowed is not None and twice.lse_allowed is not None
        allowed = twice.lse_allowed + answer.lse_allowed
        yield near("lse with every key twice", twice.lse, answer.lse + math.log(2.0), allowed)


def _doubled(call: Call, a: Arguments) -> dict[str, Any]:
    if packed(call):
        return regrouped(a, [torch.cat((own, own)) for own in every_key(a)])
    indices = counted_indices(a)
    call.require(topk=2 * indices.shape[1])
    rows = a["kv"].shape[:-1].numel()
    valid = (indices >= 0) & (indices < rows)
    copies = torch.where(valid, indices + rows, -1)
    return {**a, "kv": torch.cat((a["kv"], a["kv"])), "indices": torch.cat((indices, copies), 1)}


def duplicate_index(call: Call) -> Iterator[Claim]:
    """An index that stands twice counts as two equal rows would ~, or as one, as declared."""
    if call.contract.duplicates == "undefined":
        raise DoesNotApply("an index may not stand twice, as declared")
    a, answer = opened(call)
    indices = counted_indices(a)
    call.require(topk=indices.shape[1] + 1)
    first = indices[:, :1]
    twice = call.answer({**a, "indices": torch.cat((indices, first), 1)})
    if call.contract.duplicates == "collapsed":
        yield from alike("with an index twice", twice, answer)
        return
    rows = a["kv"].shape[:-1].numel()
    valid = (first >= 0) & (first < rows)
    other = torch.where(valid, first + rows, -1)
    copy = call.answer({**a, "kv": torch.cat((a["kv"], a["kv"])), "indices": torch.cat((indices, other), 1)})
    yield from alike("with an index twice, against two equal rows", twice, copy)


def identical_keys(call: Call) -> Iterator[Claim]:
    """Where all keys of a query are equal, O is the mean of their values ~ and L = scale q.k + ln n."""
    a, _ = freed(call)
    keys = a["k"] if packed(call) else a["kv"]
    one = coarse(torch.linspace(1.0, -1.0, keys.shape[-1], device=keys.device)).to(keys.dtype)
    if packed(call):
        changed = {**a, "k": one.expand_as(keys)}
    else:
        kv = keys.clone()
        kv[..., a["value_dim"] :] = one[a["value_dim"] :]
        changed = {**a, "kv": kv}
    answer = call.answer(changed)
    seen = visible(call, changed)
    times = seen.double()
    if not packed(call):  # an index may stand more than once
        indices = counted_indices(changed)
        valid = (indices >= 0) & (indices < seen.shape[1])
        times = torch.zeros_like(times).scatter_add_(1, torch.where(valid, indices, 0).long(), valid.double())
    count = times.sum(1)
    values = (a["v"] if packed(call) else a["kv"][..., : a["value_dim"]][:, None]).double()
    values = torch.where(seen.any(0)[:, None, None], values, 0.0)
    mean = torch.einsum("st,thv->shv", times, values) / count.clamp_min(1)[:, None, None]
    yield near("out of identical keys", answer.out, mean.expand_as(answer.out), answer.allowed)
    if answer.lse is not None and answer.lse_allowed is not None:
        want = a["scale"] * _score(call, a, one) + count.log()[:, None]
        yield near("lse of identical keys", answer.lse, want, answer.lse_allowed)


def _score(call: Call, a: Arguments, key: Tensor) -> Tensor:
    start = 0 if packed(call) else a["value_dim"]
    score: Tensor = a["q"].double()[..., start:] @ key.double()[start:]
    return score


def dominant_key(call: Call) -> Iterator[Claim]:
    """A key that leads all others by more than 30 takes the answer: O ~ its value, L ~ its score.

    It is put first, last, and at both sides of a tile of 64, where kernels lose keys.
    """
    a, _ = freed(call)
    seen = visible(call, a)
    q = torch.zeros_like(a["q"])
    start = 0 if packed(call) else a["value_dim"]
    q[..., start:] = 1.0
    for place, chosen in _places(call, a, seen):
        rows = seen[torch.arange(len(seen)), chosen] & seen.any(1)
        leaders = torch.unique(chosen)
        keys = (a["k"] if packed(call) else a["kv"]).clone()
        # Scale times the sum of a key's dims is its score; the others are at most MOST a dim.
        large = math.ceil((DOMINANT + 1.0) / (a["scale"] * q[..., start:].shape[-1])) + 4.0
        lifted = 2.0 ** math.ceil(math.log2(large))
        keys[leaders, ..., start:] = lifted
        if bool((seen[:, leaders].sum(1) > 1).any()):
            rows &= seen[:, leaders].sum(1) == 1
        changed = {**a, "q": q, ("k" if packed(call) else "kv"): keys}
        answer = call.answer(changed)
        values = (a["v"] if packed(call) else a["kv"][..., : a["value_dim"]][:, None]).double()
        score = a["scale"] * lifted * q[..., start:].shape[-1]
        others = a["scale"] * 2.0 * q[..., start:].shape[-1]
        rest = seen.shape[1] * math.exp(others - score)
        if score - others <= DOMINANT:
            raise DoesNotApply("the scale is too small for a key to lead by 30 in the format of the keys")
        want = values[chosen].expand_as(answer.out)
        yield near(f"out under a dominant {place} key", answer.out[rows], want[rows], (answer.allowed + 8 * rest)[rows])
        if answer.lse is not None and answer.lse_allowed is not None:
            expected = torch.full_like(answer.lse, score)
            allowed = (answer.lse_allowed + rest)[rows]
            yield near(f"lse under a dominant {place} key", answer.lse[rows], expected[rows], allowed)


def _places(call: Call, a: Arguments, seen: Tensor) -> Iterator[tuple[str, Tensor]]:
    """For each query, the packed key or cache row that is to lead: the first, the last, the 64th and 65th it has."""
    order = torch.arange(seen.shape[1], device=seen.device)
    if not packed(call):  # in the order of the slots
        indices = counted_indices(a)
        valid = (indices >= 0) & (indices < seen.shape[1])
        first = torch.where(valid, 1, 0).argmax(1)
        last = indices.shape[1] - 1 - torch.where(valid, 1, 0).flip(1).argmax(1)
        rows = torch.arange(len(indices), device=seen.device)
        for what, slot in (("first", first), ("last", last)):
            chosen = torch.where(valid[rows, slot], indices[rows, slot], 0).long()
            yield what, chosen[:1].expand(len(chosen)) if what == "first" else chosen[-1:].expand(len(chosen))
        return
    starts = a["cu_k"].long()
    request = torch.bucketize(torch.arange(len(seen), device=seen.device), a["cu_q"].long()[1:-1], right=True)
    counts = (starts[1:] - starts[:-1])[request]
    for what, offset in (("first", 0), ("last", -1), ("64th", 63), ("65th", 64)):
        inside = counts > max(offset, 0)
        if bool(inside.any()):
            own = starts[request] + (counts - 1 if offset < 0 else torch.full_like(counts, offset))
            yield what, torch.where(inside, own, starts[request]).clamp_max(order[-1] if len(order) else 0)
