"""Properties 24 to 27: causality, windows, and masks that hide nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .call import Answer, Arguments, Call, alike, equal
from .claim import Claim, DoesNotApply
from .keys import coarse, packed, packed_bits, spans, visible
from .siblings import dense_sibling


def causal_plain(call: Call) -> tuple[dict[str, Any], Answer]:
    """The call with the causal mask on, whatever the case has."""
    if "causal" in call.given() and "noncausal" in call.case.options:
        raise DoesNotApply("the case is not causal")
    if call.contract.causal_alignment != "bottom-right":
        raise DoesNotApply("its causal diagonal is anchored at the top left, as declared")
    return call.plain()


def growing_prefix(call: Call) -> Iterator[Claim]:
    """Query i of a causal call ~ a request of its own with the first i + 1 + T - S keys and no causal mask."""
    a, answer = causal_plain(call)
    call.with_option("noncausal")
    rows, keys, bits = [], [], []
    for request, ((q0, q1), (k0, k1)) in enumerate(zip(spans(a["cu_q"]), spans(a["cu_k"]), strict=True)):
        for i in range(q1 - q0):
            rows.append(q0 + i)
            keys.append(torch.arange(k0, max(k0, k1 - (q1 - q0) + i + 1), device=a["k"].device))
            if "mask" in a:
                bits.append(a["mask"][request, i])
    changed: dict[str, Any] = {**a, "causal": False, "q": a["q"][rows]}
    chosen = torch.cat(keys)
    changed["k"], changed["v"] = a["k"][chosen], a["v"][chosen]
    counts = torch.tensor([0, *map(len, keys)], device=chosen.device)
    changed["cu_k"] = counts.cumsum(0).to(a["cu_k"].dtype)
    changed["cu_q"] = torch.arange(len(rows) + 1, device=chosen.device, dtype=a["cu_q"].dtype)
    if "mask" in a:
        changed["mask"] = torch.stack(bits)[:, None].repeat(1, a["mask"].shape[1], 1)
    yield from alike("of queries with their own prefix", call.answer(changed), answer, slice(None), rows)


def causality(call: Call) -> Iterator[Claim]:
    """Another value in a key or row that a query may not see leaves its answer as it is ==."""
    a, answer = call.plain()
    if not packed(call) and a["kv"].dtype.itemsize == 1:
        raise DoesNotApply("its cache is quantised: changed values would be rounded")
    seen = visible(call, a)
    partly = seen.any(0) & ~seen.all(0)
    if not bool(partly.any()):
        raise DoesNotApply("every query sees every key of this case")
    for what, place in (("last", -1), ("first", 0)):
        key = int(partly.nonzero()[place])
        blind = ~seen[:, key]
        changed = dict(a)
        for name in ("k", "v") if packed(call) else ("kv",):
            changed[name] = a[name].clone()
            changed[name][key] = coarse(a[name][key].float().nan_to_num(0.0) + 1.0).to(a[name].dtype)
        yield from equal(
            call, f"of queries that do not see a changed key, the {what}", call.answer(changed), answer, blind, blind
        )


def window(call: Call) -> Iterator[Claim]:
    """A mask and causality ~ the mask with the causal triangle cut out of it; a window of all keys likewise."""
    a, answer = causal_plain(call)
    call.with_option("noncausal")
    cut = call.answer({**a, "causal": False, "mask": _bits(call, a, visible(call, a))})
    yield from alike("with the triangle in the mask", cut, answer)
    everything = torch.full_like(a["mask"], -1)
    whole = {**a, "mask": everything}
    band = {**a, "causal": False, "mask": _bits(call, a, visible(call, whole))}
    yield from alike("of a window of all keys", call.answer(band), call.answer(whole))


def _bits(call: Call, a: Arguments, seen: Tensor) -> Tensor:
    """The mask that shows every query the keys ``seen`` [s,t], in the extents of the mask of ``a``."""
    b, rows, words = a["mask"].shape
    bits = torch.zeros(b, rows, words * 32, dtype=torch.bool, device=seen.device)
    for request, ((q0, q1), (k0, k1)) in enumerate(zip(spans(a["cu_q"]), spans(a["cu_k"]), strict=True)):
        bits[request, : q1 - q0, : k1 - k0] = seen[q0:q1, k0:k1]
    return packed_bits(bits)[..., :words]


def full_mask(call: Call) -> Iterator[Claim]:
    """A mask of ones equals no mask ~, and bits beyond the keys and queries of a request mean nothing ==."""
    a, _ = call.plain()
    everything = {**a, "mask": torch.full_like(a["mask"], -1)}
    answer = call.answer(everything)
    inside = {**a, "mask": _bits(call, a, visible(call, everything | {"causal": False}))}
    yield from equal(call, "without bits beyond keys and queries", call.answer(inside), answer)
    dense = dense_sibling(call).answer({name: value for name, value in a.items() if name != "mask"})
    yield from alike("against dense attention", answer, dense)
