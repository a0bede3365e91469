"""Properties 7 to 10: keys shared out and merged, empty parts, keys that nobody sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...reference.masked_mha import unpack_bits
from .call import Answer, Call, alike, equal, lse_of
from .claim import Claim, DoesNotApply, near
from .keys import coarse, counted_indices, every_key, halves, key_counts, opened, packed, packed_bits, regrouped


def split_and_merge(call: Call) -> Iterator[Claim]:
    """O = sum softmax(L_i) O_i and L = logsumexp L_i ~, over the answers to any partition of the keys."""
    a, whole = opened(call)
    lse, lse_allowed = lse_of(whole)
    parts = [call.answer(part) for part in halves(call, a)]
    out, allowed, merged, merged_allowed = combined(*parts)
    yield near("out of the merged parts", out, whole.out, allowed + whole.allowed)
    yield near("lse of the merged parts", merged, lse, merged_allowed + lse_allowed)


def combined(first: Answer, second: Answer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two answers merged in fp64: out and its bound, LSE and its bound.

    LSEs that err by d_i change the ratio of the weights by exp(d_1 + d_2) at most, so each weight by w_1 w_2 times
    expm1 of that, and the merged LSE by no more than the larger of the two.
    """
    (lse_a, bound_a), (lse_b, bound_b) = lse_of(first), lse_of(second)
    lse = torch.logaddexp(lse_a, lse_b)
    w_a = torch.where(lse_a > -torch.inf, (lse_a - lse).exp(), 0.0)[..., None]
    w_b = torch.where(lse_b > -torch.inf, (lse_b - lse).exp(), 0.0)[..., None]
    out = w_a * first.out + w_b * second.out
    moved = w_a * w_b * torch.expm1(bound_a + bound_b)[..., None] * (first.out - second.out).abs()
    allowed = w_a * first.allowed + w_b * second.allowed + moved
    return out, allowed, lse, torch.maximum(bound_a, bound_b)


def empty_part(call: Call) -> Iterator[Claim]:
    """A part without keys, with LSE -inf, leaves a merge unchanged: out and LSE are those of the other part ==."""
    if call.name != "merge_lse":
        a, whole = opened(call)
        lse_of(whole)
        nothing = call.answer(_without_keys(call, a))
        out, _, lse, _ = combined(whole, nothing)
        yield near("out merged with an empty part", out, whole.out, 0.0)
        assert whole.lse is not None
        yield near("lse merged with an empty part", lse, whole.lse, 0.0)
        return
    if call.contract.empty_side != "ignored":
        raise DoesNotApply("it promises nothing for a side whose LSE is -inf")
    a, _ = call.plain()
    lse, out = torch.full_like(a["lse_a"], -torch.inf), torch.full_like(a["out_a"], torch.nan)
    none = call.answer({"out_a": out, "lse_a": lse, "out_b": out, "lse_b": lse})
    yield near("out of two empty sides", none.out, torch.zeros_like(none.out), 0.0)
    assert none.lse is not None
    yield near("lse of two empty sides", none.lse, lse.double(), 0.0)
    for full, void in (("a", "b"), ("b", "a")):
        side, out = a[f"lse_{full}"], a[f"out_{full}"]
        there = torch.isfinite(side) & torch.isfinite(out).all(-1)
        b = {
            f"out_{full}": out,
            f"lse_{full}": side,
            f"out_{void}": torch.full_like(out, torch.nan),
            f"lse_{void}": torch.full_like(side, -torch.inf),
        }
        merged = call.answer({**a, **b})
        yield near(f"out with side {void} empty", merged.out[there], out.double()[there], 0.0)
        assert merged.lse is not None and merged.lse_allowed is not None
        unit = merged.lse.new_tensor(1.0) if call.contract.lse_base != "2" else merged.lse.new_tensor(2.0).log()
        want = side.double() * unit
        yield near(f"lse with side {void} empty", merged.lse[there], want[there], merged.lse_allowed[there])


def _without_keys(call: Call, a: dict[str, Any]) -> dict[str, Any]:
    if not packed(call):
        return {**a, "indices": torch.full_like(a["indices"], -1)}
    if "mask" in a:
        return {**a, "mask": torch.zeros_like(a["mask"])}
    # Packed keys of one request only: the others have none.
    return regrouped(a, [own[:0] for own in every_key(a)])


def masked_keys(call: Call) -> Iterator[Claim]:
    """Keys that the mask hides change nothing ~, whatever finite values they hold and wherever they stand."""
    a, answer = opened(call)
    old = unpack_bits(a["mask"], a["mask"].shape[-1] * 32)
    device = old.device
    for what, position in (("behind the last", 1), ("before the first", 0)):
        orders, bits = [], torch.zeros(*old.shape[:2], max(key_counts(a)) + 5, dtype=torch.bool, device=device)
        for request, count in enumerate(key_counts(a)):
            extra = torch.zeros(min(5, count), dtype=torch.long, device=device)
            own = torch.arange(count, device=device)
            orders.append(torch.cat((own, extra) if position else (extra, own)))
            shift = 0 if position else len(extra)
            bits[request, :, shift : shift + count] = old[request, :, :count]
        changed = {**regrouped(a, orders), "mask": packed_bits(bits)}
        yield from alike(f"with hidden keys {what}", call.answer(changed), answer)
    hidden = ~_seen_by_anybody(call, a)
    if bool(hidden.any()):
        k, v = a["k"].clone(), a["v"].clone()
        k[hidden], v[hidden] = coarse(torch.ones_like(k[hidden])), coarse(torch.ones_like(v[hidden]))
        yield from equal(call, "with other values in hidden keys", call.answer({**a, "k": k, "v": v}), answer)


def _seen_by_anybody(call: Call, a: dict[str, Any]) -> Tensor:
    from .keys import visible

    return visible(call, a).any(0)


def invalid_slots(call: Call) -> Iterator[Claim]:
    """Invalid indices at any position change nothing ~: leading, between, trailing; negative, and past the end where
    that is declared."""
    a, answer = opened(call)
    if call.contract.invalid_index == "undefined":
        raise DoesNotApply("invalid indices may not occur, as declared")
    indices = counted_indices(a)
    rows = a["kv"].shape[:-1].numel()
    wrong = [-1, -123456, -(2**31)]
    if call.contract.invalid_index == "ignored":
        wrong += [rows, 2**31 - 1]
    padding = torch.tensor(wrong, dtype=indices.dtype, device=indices.device).expand(len(indices), -1)
    width = indices.shape[1]
    call.require(topk=width + len(wrong))
    for what, parts in (
        ("with leading invalid indices", (padding, indices)),
        ("with trailing invalid indices", (indices, padding)),
        ("with invalid indices between", (indices[:, : width // 2], padding, indices[:, width // 2 :])),
    ):
        yield from alike(what, call.answer({**a, "indices": torch.cat(parts, 1)}), answer)
