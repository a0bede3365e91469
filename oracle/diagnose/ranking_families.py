"""Hypotheses with parameters for the indexer, the selection and the merge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..faults.simulated import simulated
from ..faults.simulated.indexer import window
from ..faults.simulated.radix import ordered_key
from .hypothesis import Hypothesis, Stage
from .observation import Observation
from .rules import described

BLOCKS = (16, 32, 64, 128)
#: Their sites hold what was solved for.
SOLVED = ("slope of the ReLU", "heads summed")
SHIFTS = (-3, -2, -1, 1, 2, 3)


def indexer(seen: Observation) -> Iterator[Hypothesis]:
    """Slopes, head coefficients, powers and blocks of key scales, windows."""
    yield from _indexer_linear(seen)
    for block in BLOCKS:
        yield _site(
            seen, "key scale of a block", "logits", f"One key scale serves a block of {block} keys.",
            dequantise=lambda total, s, b=block: total * s[torch.arange(len(s)) // b * b],
        )  # fmt: skip
    for shift in SHIFTS:
        yield _site(
            seen, "key scale of a neighbour", "logits", f"A key has the scale of the key {shift:+d} before.",
            dequantise=lambda total, s, d=shift: total * s.roll(d),
        )  # fmt: skip
        yield _site(
            seen, "head weight of a neighbour", "logits", f"A head has the weight of head {shift:+d}.",
            weight=lambda w, head, d=shift: w[:, (head + d) % w.shape[1]],
        )  # fmt: skip
        for name, moved in (("start", (shift, 0)), ("end", (0, shift))):
            yield _site(
                seen, f"window {name}", "logits", f"The window's {name} is off by {shift:+d}.",
                window=lambda cols, ks, ke, m=moved: window(cols, ks + m[0], ke + m[1]),
            )  # fmt: skip
    for tile in (8, 16, 32, 64, 128):
        yield _site(
            seen, "window end of a tile", "logits", f"The rows of a tile of {tile} share the largest window end.",
            window=lambda cols, ks, ke, t=tile: window(cols, ks, _shared(ke, t)),
        )  # fmt: skip


def _indexer_linear(seen: Observation) -> Iterator[Hypothesis]:
    """What is linear in the score: the slope of negative products, and one coefficient a head."""
    got, exact = seen.answer.get("scores"), seen.expected.exact["scores"]
    if got is None or got.shape != exact.shape:
        return
    a = seen.arguments
    if a.get("max_seqlen_k") is not None:
        return  # compressed rows have other columns than the keys
    weights = a["weights"].cpu().double()
    if a.get("q_scale") is not None:
        weights = weights * a["q_scale"].cpu().double()
    q, k = (x.detach().cpu().float().double() for x in (a["q"], a["k"]))
    inside = torch.isfinite(exact) & torch.isfinite(got)
    if not bool(inside.any()):
        return
    k = torch.where(inside.any(0)[:, None], k, 0.0)
    factor = torch.where(inside.any(0), a["k_scale"].cpu().double(), 0.0)
    products = torch.einsum("sie,te->sit", q, k)
    weighted = weights[..., None] * products.clamp_min(0.0) * factor
    negative = (weights[..., None] * products.clamp_max(0.0) * factor).sum(1)
    missing = torch.where(inside, got - exact, 0.0)
    size = float((negative[inside] ** 2).sum())
    if size > 0:
        slope = float((negative[inside] * missing[inside]).sum()) / size
        words = "ReLU is missing" if abs(slope - 1) < 1e-3 else f"Negative products keep a slope of {slope:.4g}"
        yield _site(
            seen, "slope of the ReLU", "logits", words + ".",
            activate=lambda x: torch.where(x < 0, x * slope, x),
        )  # fmt: skip
    heads = q.shape[1]
    design = weighted.transpose(0, 1)[:, inside].T  # [elements, heads]
    if design.shape[0] >= heads and heads > 1:
        weight = (1.0 / seen.expected.allowed["scores"][inside]).clamp_max(1e30)
        solved = torch.linalg.lstsq(design * weight[:, None], got[inside][:, None] * weight[:, None], driver="gelsd")
        coefficient = solved.solution[:, 0]
        whole = torch.where((coefficient - coefficient.round()).abs() < 0.02, coefficient.round(), coefficient)
        off = whole != 1.0
        if bool(off.any()) and not bool(off.all()):
            places = torch.arange(heads)
            rule = next(described(places, off, torch.ones_like(off), heads, "head"), "some heads")
            alike = float(whole[off].min()) == float(whole[off].max())
            how = {0.0: "Left out", 2.0: "Counted twice"}.get(float(whole[off][0])) if alike else None
            yield _site(
                seen, "heads summed", "logits", f"{how or 'Weighted otherwise'}: {rule}.",
                weigh=_per_head(whole),
            )  # fmt: skip


def _per_head(coefficient: Tensor) -> Any:
    """A ``weigh`` site that multiplies the heads, one after another, by their coefficients."""
    turn = {"head": 0}

    def weigh(x: Tensor, weight: Tensor) -> Tensor:
        factor = float(coefficient[turn["head"] % len(coefficient)])
        turn["head"] += 1
        return x * weight[:, None] * factor

    return weigh


def _shared(ke: Tensor, tile: int) -> Tensor:
    return torch.cat([part.amax(0, keepdim=True).expand_as(part) for part in torch.split(ke, tile)]) if len(ke) else ke


def selection(seen: Observation) -> Iterator[Hypothesis]:
    """Windows, stored values, keys cut short, buffers that overflow, rows moved."""
    for shift in SHIFTS:
        for name, moved in (("start", (shift, 0)), ("end", (0, shift))):
            yield _site(
                seen, f"window {name}", "top-k", f"The {name} of a row is off by {shift:+d}.",
                window=lambda ks, ke, t, m=moved: (max(ks + m[0], 0), max(min(ke + m[1], t), ks + m[0], 0)),
            )  # fmt: skip
        yield _site(
            seen, "stored index", "top-k", f"Stored indices are off by {shift:+d}.",
            local=lambda columns, ks, d=shift: columns + d,
        )  # fmt: skip
        yield _site(
            seen, "rows moved", "top-k", f"A query has the selection of the query {shift:+d} before.",
            output=lambda indices, d=shift: indices.roll(d, 0),
        )  # fmt: skip
        if shift > 0:
            yield _site(
                seen, "short rows", "top-k", f"A row of up to k + {shift} columns counts as short.",
                is_short=lambda count, k, d=shift: count <= k + d,
            )  # fmt: skip
    for bits in (4, 8, 12, 16, 20, 24):
        yield _site(
            seen, "score bits compared", "top-k", f"The last {bits} bits of a score are not compared.",
            key=lambda scores, b=bits: ordered_key(scores) >> b << b,
        )  # fmt: skip
    for extra in (0, 8, 16, 32, 64, 128, 256, 512, 1024):
        for how, keep in (("first", slice(None, extra)), ("last", slice(-extra, None))):
            if extra:
                yield _site(
                    seen, "bin that overflows", "top-k", f"A bin keeps its {how} {extra} candidates.",
                    stash=lambda candidates, k, s=keep: candidates[s],
                )  # fmt: skip
    for part in (2, 4, 8):
        for how in ("first", "last", "no"):
            yield _site(
                seen, "bin that overflows", "top-k", f"A bin of more than k + k / {part} candidates keeps {how} ones.",
                stash=lambda candidates, k, p=part, h=how: _kept(candidates, k + k // p, h),
            )  # fmt: skip
    for limit in (1, 2, 4, 8, 16, 32):
        yield _site(
            seen, "ties stored", "top-k", f"At most {limit} ties at the threshold are stored; -1 fills the rest.",
            ties=lambda candidates, need, k, n=limit: _limited(candidates[:need], n),
        )  # fmt: skip


def _kept(candidates: Tensor, room: int, how: str) -> Tensor:
    if how == "no":
        return candidates if len(candidates) <= room else candidates[:0]
    return candidates[:room] if how == "first" else candidates[-room:]


def _limited(ties: Tensor, count: int) -> Tensor:
    return torch.where(torch.arange(len(ties)) < count, ties, -1)


def merge(seen: Observation) -> Iterator[Hypothesis]:
    """Bases and offsets of either side's LSE, and the weights themselves, solved for row by row."""
    bases = {1.0: "natural", math.log(2): "times ln 2", 1 / math.log(2): "over ln 2"}
    kernel = simulated("merge_lse")
    for x, in_a in bases.items():
        for y, in_b in bases.items():
            if (x, y) != (1.0, 1.0):
                yield Hypothesis(
                    "base of a side's LSE", "merge", f"The LSE of a is taken {in_a}, that of b {in_b}.",
                    lambda x=x, y=y, **a: kernel(**{**a, "lse_a": a["lse_a"] * x, "lse_b": a["lse_b"] * y}), 1,
                )  # fmt: skip
                yield Hypothesis(
                    "base of a side's weight", "merge", f"Exponents of the weights: a's are {in_a}, b's {in_b}.",
                    partial(_weighted, x, y), 1, fixed=True,
                )  # fmt: skip
    got = seen.answer.get("out")
    if got is None or got.shape != seen.expected.exact["out"].shape:
        return
    a, b = (torch.nan_to_num(seen.arguments[n].cpu().double()) for n in ("out_a", "out_b"))
    aa, bb, ab = (a * a).sum(-1), (b * b).sum(-1), (a * b).sum(-1)
    clean = torch.nan_to_num(got)
    ya, yb = (a * clean).sum(-1), (b * clean).sum(-1)
    det = (aa * bb - ab * ab).clamp_min(1e-30)
    of_a, of_b = (bb * ya - ab * yb) / det, (aa * yb - ab * ya) / det
    both = torch.isfinite(seen.arguments["lse_a"].cpu()) & torch.isfinite(seen.arguments["lse_b"].cpu())
    if not bool(both.any()):
        return
    joint = torch.logaddexp(seen.arguments["lse_a"].cpu().double(), seen.arguments["lse_b"].cpu().double())
    right_a = torch.exp(seen.arguments["lse_a"].cpu().double() - joint)
    total = (of_a + of_b)[both]
    words = [f"weights sum to {float(total.median()):.4g}"] if float((total - 1).abs().median()) > 5e-3 else []
    if float((of_a[both] - of_a[both].mean()).abs().max()) < 0.01:
        words.append(f"the weight of a is {float(of_a[both].mean()):.4g} everywhere")
    elif float((of_a - (1 - right_a))[both].abs().median()) < 5e-3:
        words.append("each side has the weight of the other")
    out = torch.where(both[..., None], of_a[..., None] * a + of_b[..., None] * b, seen.right["out"])
    out = out.to(seen.arguments["out_a"].dtype).double()
    told = f"The sides are weighted wrongly: {'; '.join(words) or 'by row'}."
    yield Hypothesis("merge weights", "merge", told, lambda **x: (out, seen.right["lse"]), 4)


def _weighted(x: float, y: float, *, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Any, ...]:
    """A merge whose weights are exp((lse - top) x) for a and exp((lse - top) y) for b."""
    top = torch.maximum(lse_a, lse_b)
    base = torch.where(top == -math.inf, 0.0, top)
    parts = [((out_a, lse_a), x), ((out_b, lse_b), y)]
    weights = [torch.where(lse == -math.inf, 0.0, torch.exp((lse - base) * f)) for (_, lse), f in parts]
    total = weights[0] + weights[1]
    shares = [weight / torch.where(total == 0.0, 1.0, total) for weight in weights]
    sides = [torch.where(lse[..., None] == -math.inf, 0.0, out.float()) for (out, lse), _ in parts]
    out = sides[0] * shares[0][..., None] + sides[1] * shares[1][..., None]
    return out.to(out_a.dtype), base + torch.log(total)


def _site(seen: Observation, name: str, stage: Stage, words: str, **sites: Any) -> Hypothesis:
    def predict(**a: Any) -> tuple[Any, ...]:
        return simulated(seen.operator, **sites)(**a)

    return Hypothesis(name, stage, words, predict, 1, fixed=name not in SOLVED)
