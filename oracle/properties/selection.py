"""Properties 42 and 43: a selection follows the order of the scores and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .call import Answer, Arguments, Call
from .claim import Claim, same
from .indexer import scores_shift
from .keys import shuffled


def distinct(call: Call) -> tuple[dict[str, Any], Answer]:
    """The call on scores that are all different whole numbers, so that there is one right set."""

    def arguments() -> dict[str, Any]:
        a = call.given()
        s, t = a["scores"].shape
        rows = [shuffled(t, call.case.seed + row, a["scores"].device) for row in range(s)]
        ranks = torch.stack(rows) if rows else a["scores"].new_zeros(0, t)
        return {**a, "scores": (ranks - t // 2).to(a["scores"].dtype)}

    return call.remembered("distinct", arguments)


def _width(a: Arguments) -> Tensor:
    width: Tensor = a["ke"] - a["ks"]
    return width.clamp_min(0)


def _set(answer: Answer) -> Tensor:
    return answer.raw[0].sort(1).values


def monotone_scores(call: Call) -> Iterator[Claim]:
    """A selection is the same for 2x, x + c and x^3, whatever lies below the k-th, and follows the keys' order; that of
    fewer slots lies within that of more.

    x + 4096 leaves differences to the last bits of a score. A key that is lifted to +inf or NaN is selected; a window
    of no more than k keys is selected whole; among equal scores any k keys are, but k of them.
    """
    a, answer = distinct(call)
    scores = a["scores"]
    chosen = _set(answer)
    for what, other in (("2x", scores * 2), ("x + 7", scores + 7), ("x + 4096", scores + 4096), ("x^3", scores**3)):
        yield same(f"selection by {what}", _set(call.answer({**a, "scores": other})), chosen)
    yield from _below(call, a, answer)
    yield from _turned(call, a, answer)
    yield from _whole(call, a)
    yield from _lifted(call, a, answer)
    k = a["k"]
    if k > 1:
        call.require(topk=k // 2)
        fewer = call.answer({**a, "k": k // 2}).raw[0]
        inside = (fewer[:, :, None] == answer.raw[0][:, None]).any(2) | (fewer == -1)
        long = _width(a) > k
        yield same("a smaller selection within the larger", inside[long], torch.ones_like(inside[long]))


def _below(call: Call, a: dict[str, Any], answer: Answer) -> Iterator[Claim]:
    """Scores of keys that were not selected are lowered, and keys with low scores added behind."""
    scores: Tensor = a["scores"]
    long = _width(a) > a["k"]
    columns = answer.raw[0].long() + a["ks"].long()[:, None]
    member = torch.zeros(len(scores), scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
    valid = (answer.raw[0] >= 0) & (columns < scores.shape[1])
    member.scatter_(1, torch.where(valid, columns, scores.shape[1]), True)
    lowered = torch.where(member[:, :-1], scores, scores - 4096)
    yield same(
        "selection with the others lowered", _set(call.answer({**a, "scores": lowered}))[long], _set(answer)[long]
    )
    more = torch.cat((scores, torch.full_like(scores[:, :5], -8192.0)), 1)
    to_end = a["ke"] == scores.shape[1]
    ke = torch.where(to_end, a["ke"] + more.shape[1] - scores.shape[1], a["ke"])
    grown = call.answer({**a, "scores": more, "ke": ke})
    yield same("selection with low keys added", _set(grown)[long], _set(answer)[long])


def _whole(call: Call, a: dict[str, Any]) -> Iterator[Claim]:
    """Equal scores: as many distinct positions as there can be; all of a short window, in order unless declared."""
    k, width = a["k"], _width(a).long()
    chosen = call.answer({**a, "scores": torch.ones_like(a["scores"])}).raw[0].long()
    slots = torch.arange(k, device=chosen.device)
    due = slots < width.clamp_max(k)[:, None]
    short = width <= k
    whole = torch.where(due, slots, -1)
    found, due = chosen[short], whole[short]
    if call.contract.topk_short == "any":
        found, due = found.sort(1).values, due.sort(1).values
    yield same("a window of at most k keys", found, due)
    ordered = chosen[~short].sort(1).values
    inside = (ordered >= 0) & (ordered < width[~short, None])
    yield same("positions within the window, among equals", inside, torch.ones_like(inside))
    apart = ordered[:, 1:] != ordered[:, :-1]
    yield same("distinct positions among equals", apart, torch.ones_like(apart))


def _lifted(call: Call, a: dict[str, Any], answer: Answer) -> Iterator[Claim]:
    """The lowest key of a long window is lifted above all others."""
    scores, width = a["scores"].clone(), _width(a).long()
    columns = torch.arange(scores.shape[1], device=scores.device)
    inside = (columns >= a["ks"].long()[:, None]) & (columns < a["ke"].long()[:, None])
    lowest = torch.where(inside, scores, torch.inf).argmin(1)
    long = (width > a["k"]) & (a["k"] > 0)
    for what, value in (("+inf", torch.inf), ("NaN", torch.nan)):
        lifted = scores.clone()
        lifted[torch.arange(len(scores)), lowest] = value
        chosen = call.answer({**a, "scores": lifted}).raw[0].long()
        there = (chosen == (lowest - a["ks"].long())[:, None]).any(1)
        yield same(f"the key lifted to {what}", there[long], torch.ones_like(there[long]))


def _turned(call: Call, a: dict[str, Any], answer: Answer) -> Iterator[Claim]:
    t = a["scores"].shape[1]
    there = _width(a) > 0
    ks = torch.where(there, t - a["ke"], 0).to(a["ks"].dtype)
    ke = torch.where(there, t - a["ks"], 0).to(a["ke"].dtype)
    turned = call.answer({**a, "scores": a["scores"].flip(1), "ks": ks, "ke": ke}).raw[0]
    back = torch.where(turned >= 0, (_width(a) - 1)[:, None] - turned, turned).sort(1).values
    long = _width(a) > a["k"]
    yield same("selection of keys turned round", back[long], _set(answer)[long])


def selection_shift(call: Call) -> Iterator[Claim]:
    """Columns put before all others, with ks and ke moved by as many, leave the selected positions as they are."""
    a, answer = distinct(call)
    by = 3
    high = torch.full((len(a["scores"]), by), 1e6, dtype=a["scores"].dtype, device=a["scores"].device)
    moved = {**a, "scores": torch.cat((high, a["scores"]), 1), "ks": a["ks"] + by, "ke": a["ke"] + by}
    yield same("selection in moved windows", _set(call.answer(moved)), _set(answer))


def window_shift(call: Call) -> Iterator[Claim]:
    """Keys put before all others, with ks and ke moved by as many, move the scores and leave selected positions.

    Positions of a selection count from ks, scores from the first packed key, unless they are compressed.
    """
    yield from (scores_shift if call.name == "indexer_scores" else selection_shift)(call)
