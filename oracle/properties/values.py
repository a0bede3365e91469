"""Properties 11 to 16: an answer is linear in its values and lies between them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .call import Call
from .claim import Claim, near
from .keys import freed, packed, values_of, visible, with_values


def value_linearity(call: Call) -> Iterator[Claim]:
    """A(Q, K, V1 + V2) ~ A(Q, K, V1) + A(Q, K, V2), and the LSE stays what it is; a merge is linear in its sides."""
    if call.name == "merge_lse":
        a, whole = call.plain()
        zero = {f"out_{side}": torch.zeros_like(a[f"out_{side}"]) for side in "ab"}
        one = call.answer({**a, "out_b": zero["out_b"]})
        two = call.answer({**a, "out_a": zero["out_a"]})
        there = torch.isfinite(a["out_a"]).all(-1) & torch.isfinite(a["out_b"]).all(-1)
        allowed = one.allowed + two.allowed + whole.allowed
        yield near("merge of both sides", whole.out[there], (one.out + two.out)[there], allowed[there])
        return
    a, one = freed(call)
    v1 = values_of(call, a)
    v2 = v1.roll(1, -1)
    two, both = call.answer(with_values(call, a, v2)), call.answer(with_values(call, a, v1 + v2))
    yield near("out of a sum of values", both.out, one.out + two.out, both.allowed + one.allowed + two.allowed)
    if one.lse is not None and both.lse is not None and one.lse_allowed is not None:
        yield near("lse of other values", both.lse, one.lse, 0.0 if call.repeats else 2 * one.lse_allowed)


def value_scale(call: Call) -> Iterator[Claim]:
    """Values times 2^k give outputs times 2^k == (nothing over- or underflows), and the LSE stays what it is."""
    if call.name == "merge_lse":
        a, answer = call.plain()
        doubled = call.answer({**a, "out_a": a["out_a"] * 2, "out_b": a["out_b"] * 2})
    else:
        a, answer = freed(call)
        doubled = call.answer(with_values(call, a, values_of(call, a) * 2))
    exact = call.repeats
    yield near("out of doubled values", doubled.out, 2 * answer.out, 0.0 if exact else doubled.allowed * 2)
    if answer.lse is not None and doubled.lse is not None and answer.lse_allowed is not None:
        yield near("lse of doubled values", doubled.lse, answer.lse, 0.0 if exact else 2 * answer.lse_allowed)


def constant_values(call: Call) -> Iterator[Claim]:
    """Where all values are c, so is every output ~, whatever the scores; a query without keys has 0."""
    if call.name == "merge_lse":
        a, answer = call.plain()
        c = torch.full_like(a["out_a"], 1.5)
        merged = call.answer({**a, "out_a": c, "out_b": c})
        there = torch.isfinite(a["lse_a"]) | torch.isfinite(a["lse_b"])
        yield near("out of equal sides", merged.out[there], merged.out.new_tensor(1.5), merged.allowed[there])
        return
    a, _ = freed(call)
    values = values_of(call, a)
    column = 1.0 + (torch.arange(values.shape[-1], device=values.device) % 3)  # 1, 2, 3: all exact
    answer = call.answer(with_values(call, a, column.to(values.dtype).expand_as(values)))
    assert answer.empty is not None
    want = torch.where(answer.empty[..., None], 0.0, column.double())
    yield near("out of constant values", answer.out, want, answer.allowed)


def value_offset(call: Call) -> Iterator[Claim]:
    """A(Q, K, V + c) ~ A(Q, K, V) + c for every query that sees a key."""
    a, answer = freed(call)
    values = values_of(call, a)
    moved = call.answer(with_values(call, a, values + 2.0))
    assert answer.empty is not None
    want = torch.where(answer.empty[..., None], answer.out, answer.out + 2.0)
    yield near("out of values moved by 2", moved.out, want, moved.allowed + answer.allowed)


def one_hot_values(call: Call) -> Iterator[Claim]:
    """One-hot values make outputs probabilities: in [0, 1], 0 for keys that a query may not see, 1 in sum."""
    a, _ = freed(call)
    values = values_of(call, a)
    count, width = values.shape[0], values.shape[-1]
    seen = visible(call, a)
    for start in range(0, count, width):  # a window of tokens at a time has a column for each
        tokens = torch.arange(start, min(count, start + width), device=values.device)
        if not bool(seen[:, tokens].any()):
            continue
        hot = torch.zeros_like(values)
        hot[tokens, ..., tokens - start] = 1.0
        answer = call.answer(with_values(call, a, hot))
        out, allowed = answer.out[..., : len(tokens)], answer.allowed[..., : len(tokens)]
        yield near("a probability", out, out.clamp(0.0, 1.0), allowed)
        blind = ~seen[:, None, tokens].expand_as(out)
        yield near(
            "weight of keys that a query may not see", torch.where(blind, out, 0.0), torch.zeros_like(out), allowed
        )
        if start == 0 and count <= width:
            total = torch.where(seen.any(1), 1.0, 0.0)[:, None].expand(out.shape[:2])
            yield near("sum of a query's probabilities", out.sum(-1), total, allowed.sum(-1))


def convexity(call: Call) -> Iterator[Claim]:
    """Every output lies between the least and the largest value that the query sees, rounding apart."""
    if call.name == "merge_lse":
        a, answer = call.plain()
        sides = [torch.where(torch.isfinite(a[f"lse_{x}"])[..., None], a[f"out_{x}"].double(), torch.nan) for x in "ab"]
        low = torch.fmin(*sides).nan_to_num(0.0)
        high = torch.fmax(*sides).nan_to_num(0.0)
        yield near("a merge between its sides", answer.out, answer.out.clamp(low, high), answer.allowed)
        return
    a, answer = freed(call)
    values = values_of(call, a).double()
    values = values if packed(call) else values.flatten(0, -2)[:, None]
    for row, seen in enumerate(visible(call, a)):
        if not bool(seen.any()):
            continue
        low, high = values[seen].amin(0), values[seen].amax(0)
        out = answer.out[row]
        yield near(f"out of query {row} between its values", out, out.clamp(low, high), answer.allowed[row])
