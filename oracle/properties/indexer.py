"""Properties 36 to 41: indexer scores add over heads, scale with their factors, and stay where they belong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..judge import indexer as judge
from .call import Arguments, Call, equal
from .claim import Claim, DoesNotApply, near, same
from .keys import coarse, shuffled


def head_sum(call: Call) -> Iterator[Claim]:
    """Scores of heads A and B together ~ scores of A + scores of B; the order of heads does not matter ~."""
    a, answer = call.plain()
    heads = torch.arange(a["weights"].shape[1], device=answer.out.device)
    parts = [call.answer({**a, "weights": a["weights"] * (heads % 2 == which)}) for which in (0, 1)]
    allowed = parts[0].allowed + parts[1].allowed + answer.allowed
    yield near("scores summed over two sets of heads", parts[0].out + parts[1].out, answer.out, allowed)
    order = heads.flip(0)
    turned = {**a, "q": a["q"][..., order, :], "weights": a["weights"][:, order]}
    if a.get("q_scale") is not None:
        turned["q_scale"] = a["q_scale"][:, order]
    other = call.answer(turned)
    yield near("scores with heads in another order", other.out, answer.out, other.allowed + answer.allowed)


def homogeneity(call: Call) -> Iterator[Claim]:
    """Queries or weights times 2^k give scores times 2^k ==; scores are linear in the weights ~."""
    a, answer = call.plain()
    bound = 0.0 if call.repeats else 4 * answer.allowed
    doubled = call.answer({**a, "weights": a["weights"] * 2})
    yield near("scores of doubled weights", doubled.out, 2 * answer.out, bound)
    if a["q"].dtype.itemsize > 1:
        doubled = call.answer({**a, "q": a["q"] * 2})
        yield near("scores of doubled queries", doubled.out, 2 * answer.out, bound)
    one = coarse(a["weights"])
    two = one.roll(1, 1)
    x, y, both = (call.answer({**a, "weights": w}) for w in (one, two, one + two))
    yield near("scores of a sum of weights", both.out, x.out + y.out, both.allowed + x.allowed + y.allowed)


def key_scale(call: Call) -> Iterator[Claim]:
    """A key's scale times 2^k multiplies its column by 2^k == and no other."""
    a, answer = call.plain()
    changed = dict(a)
    if "k_scale" in a:
        changed["k_scale"] = a["k_scale"] * 2
    else:
        codes, scales = page_parts(a)
        changed["k_cache"] = joined(codes, scales * 2)
    doubled = call.answer(changed)
    yield near("scores of doubled key scales", doubled.out, 2 * answer.out, 0.0 if call.repeats else 4 * answer.allowed)


def page_parts(a: Arguments) -> tuple[Tensor, Tensor]:
    """Codes uint8 [p,page,e] and scales fp32 [p,page] of planar pages."""
    e = a["q"].shape[-1]
    page = a["k_cache"].shape[1] // (e + 4)
    codes = a["k_cache"][:, : page * e].reshape(-1, page, e)
    return codes, a["k_cache"][:, page * e : page * (e + 4)].contiguous().view(torch.float32)


def joined(codes: Tensor, scales: Tensor) -> Tensor:
    return torch.cat((codes.flatten(1), scales.contiguous().view(torch.uint8)), 1)


def sign(call: Call) -> Iterator[Claim]:
    """w >= 0 gives scores >= 0; where q.k <= 0 for all heads they are 0 exactly; X(q) + X(-q) = sum w |q.k| ~."""
    a, _ = call.plain()
    plus = {**a, "weights": a["weights"].abs()}
    if a.get("q_scale") is not None:
        plus["q_scale"] = a["q_scale"].abs()
    answer = call.answer(plus)
    inside = answer.out > -torch.inf
    seen = torch.where(inside, answer.out, 0.0)
    yield same("no score below 0 under weights above 0", seen, seen.clamp_min(0.0))
    away = {**plus, "q": _unsigned(a["q"])}
    if "k" in a:
        away["k"] = _negative(a["k"])
    else:
        codes, scales = page_parts(a)
        away["k_cache"] = joined(codes | 0x80, scales)
    nothing = call.answer(away).out
    yield same("scores of keys against all queries", nothing, torch.where(inside, 0.0, -torch.inf))
    mirrored = call.answer({**a, "q": _flipped(a["q"])})
    base = call.answer(a)
    want = _absolute(call, a, base.out.shape)
    yield near("scores of q and -q together", base.out + mirrored.out, want, 2 * base.allowed + mirrored.allowed)


def _unsigned(x: Tensor) -> Tensor:
    return (x.view(torch.uint8) & 0x7F).view(x.dtype) if x.dtype.itemsize == 1 else x.abs()


def _negative(x: Tensor) -> Tensor:
    return (x.view(torch.uint8) | 0x80).view(x.dtype) if x.dtype.itemsize == 1 else -x.abs()


def _flipped(x: Tensor) -> Tensor:
    return (x.view(torch.uint8) ^ 0x80).view(x.dtype) if x.dtype.itemsize == 1 else -x


def _absolute(call: Call, a: Arguments, shape: torch.Size) -> Tensor:
    """k_scale sum w |q.k| in fp64, -inf outside the windows."""
    want = torch.full(tuple(shape), -torch.inf, dtype=torch.float64, device=a["weights"].device)
    columns = torch.arange(shape[1], device=want.device)
    for block in judge.packed(**a) if call.name == "indexer_scores" else judge.paged(**a):
        if not len(block.k):
            continue
        w = block.weights.double() * (1.0 if block.q_scale is None else block.q_scale.double())
        first, low, high = (x[:, None] for x in (block.first, block.low, block.high))
        shown = (columns >= low) & (columns < high) & (first + columns < len(block.k))
        at = torch.where(shown, first + columns, 0)
        read = torch.zeros(len(block.k), dtype=torch.bool, device=want.device)
        read[at[shown]] = True
        keys = torch.where(read[:, None], block.k.float().double(), 0.0)
        products = torch.einsum("sie,te->sit", block.q.float().double(), keys).abs()
        scores = torch.einsum("si,sit->st", w, products) * torch.where(read, block.k_scale.double(), 0.0)
        want[block.rows] = torch.where(shown, scores.gather(1, at), -torch.inf)
    return want


def locality(call: Call) -> Iterator[Claim]:
    """A score depends on its own key alone: another key leaves it as it is ==; outside its window it is -inf."""
    a, answer = call.plain()
    low, high = judge.windows(**a)
    columns = torch.arange(answer.out.shape[1], device=answer.out.device)
    inside = (columns >= low[:, None]) & (columns < high[:, None])
    yield same("window of -inf", torch.isneginf(answer.out) & ~inside, ~inside)
    changed = dict(a)
    if "k" in a:
        if a.get("max_seqlen_k") is not None:
            raise DoesNotApply("scores are compressed: a key is in another column for every query")
        key = len(a["k"]) // 2
        changed["k"] = a["k"].clone()
        changed["k"][key] = _flipped(a["k"][key])
        others = columns != key
    else:
        codes, scales = page_parts(a)
        codes = codes.clone()
        page = int(a["block_table"][0, 0])
        codes[page, 0] ^= 0x80
        changed["k_cache"] = joined(codes, scales)
        others = columns != 0
    moved = call.answer(changed)
    bound = 0.0 if call.repeats else answer.allowed[:, others]
    yield near("scores of the other keys", moved.out[:, others], answer.out[:, others], bound)


def key_columns(call: Call) -> Iterator[Claim]:
    """Keys in another order have their columns in that order: == if batch invariance is declared, else ~."""
    a, _ = call.plain()
    if a.get("max_seqlen_k") is not None:
        raise DoesNotApply("scores are compressed: a key is in another column for every query")
    t = len(a["k"])
    whole: dict[str, Any] = {**a, "ks": torch.zeros_like(a["ks"]), "ke": torch.full_like(a["ke"], t)}
    for name in ("k", "k_scale"):  # keys outside every window hold anything
        if a[name].dtype.itemsize > 1:
            whole[name] = a[name].nan_to_num(1.0, 1.0, 1.0)
    order = shuffled(t, call.case.seed, a["k"].device)
    answer = call.answer(whole)
    moved = call.answer({**whole, "k": whole["k"][order], "k_scale": whole["k_scale"][order]})
    allowed = 0.0 if call.invariant else moved.allowed + answer.allowed[:, order]
    yield near("columns of keys in another order", moved.out, answer.out[:, order], allowed)


def scores_shift(call: Call) -> Iterator[Claim]:
    """Keys put before all others, with ks and ke moved by as many, move the scores and change none."""
    a, answer = call.plain()
    by = 3
    more = {name: torch.cat((a[name][:by], a[name])) for name in ("k", "k_scale")}
    shift = {name: a[name] + min(by, len(a["k"])) for name in ("ks", "ke")}
    moved = call.answer({**a, **more, **shift})
    if a.get("max_seqlen_k") is not None:
        yield from (
            equal(call, "of moved windows", moved, answer)
            if call.invariant
            else [near("scores of moved windows", moved.out, answer.out, moved.allowed + answer.allowed)]
        )
        return
    skipped = min(by, len(a["k"]))
    got = moved.out[:, skipped:]
    allowed = 0.0 if call.invariant else moved.allowed[:, skipped:] + answer.allowed
    yield near("scores of moved windows", got, answer.out, allowed)
